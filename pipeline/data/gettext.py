"""Catalogs of gettext, as text (.po) and compiled (.mo): what programs say, with its translations.

A message is paired with its translation, or, where neither language is that of the messages, the translations of the
same message in two catalogs.
"""

import codecs
import re
import struct
from collections.abc import Iterator
from gettext import c2py
from pathlib import Path
from typing import NamedTuple

from pipeline.data.config import CorpusConfig
from pipeline.data.files import expand, expand_couples
from pipeline.data.language_tags import language_matches
from pipeline.data.lines import LONGEST, open_binary, quoted, read_lines
from pipeline.data.packages import fetch

LARGEST = 1 << 28
"""Bytes of the largest catalog that is read whole: a compiled one, or the source's side of a couple."""

MANY = 100
"""The number whose form is paired with the message in the plural."""

CATALOG = re.compile(r"\.(po|g?mo)(\.(gz|bz2|xz|zst))?$")
NOT_OF_THE_DOMAIN = {"po", "mo", "gmo", "gz", "bz2", "xz", "zst", "LC_MESSAGES", "locale"}
INSTEAD = "or name catalogs, or a folder of them (corpora.train)"

Row = tuple[str, str, str, str]


class Message(NamedTuple):
    """A message in the singular or in the plural."""

    context: str
    text: str
    translation: str
    fault: str


def catalog_pairs(corpus: CorpusConfig, files: list[str]) -> Iterator[Row]:
    """The messages of catalogs, or of couples of catalogs; what the catalogs are about (text domain) is the group.

    Guessed (fuzzy), obsolete and missing translations are marked as faults. Marks of keys are taken out.
    """
    if _come_in_couples(corpus):
        for source, target in zip(files[::2], files[1::2], strict=True):
            group = _domain(target, corpus.target_language)[-1]
            for first, second, fault in _joined(source, target):
                yield *without_keys(first, second), group, fault
        return
    backwards = language_matches(corpus.message_language, corpus.target_language)
    for file in files:
        group = _domain(file, corpus.source_language if backwards else corpus.target_language)[-1]
        for message in read_catalog(file):
            pair = without_keys(message.text, message.translation)
            yield *(reversed(pair) if backwards else pair), group, message.fault


def _come_in_couples(corpus: CorpusConfig) -> bool:
    """Whether neither language is that of the messages."""
    languages = (corpus.source_language, corpus.target_language)
    return not any(language_matches(corpus.message_language, language) for language in languages)


def _joined(source: str, target: str) -> Iterator[tuple[str, str, str]]:
    messages, size = {}, 0
    for message in read_catalog(source):
        messages[message.context, message.text] = message
        size += sum(map(len, message))
        if size > LARGEST:
            raise ValueError(f"{source}: more than {LARGEST:,} characters, too many for one catalog: divide it")
    for message in read_catalog(target):
        other = messages.get((message.context, message.text))
        translation = other.translation if other else ""
        yield translation, message.translation, message.fault or (other.fault if other else "untranslated")


def catalog_files(corpus: CorpusConfig, names: list[str]) -> list[str]:
    """The catalogs that names of files and folders stand for, or the corpus's packages if there are no names.

    Folders are searched for catalogs in the languages of the corpus.
    """
    names = names or [str(fetch(package, "gettext", INSTEAD)) for package in corpus.package.split()]
    if not _come_in_couples(corpus):
        backwards = language_matches(corpus.message_language, corpus.target_language)
        language = corpus.source_language if backwards else corpus.target_language
        return [file for name in expand(names) for file in _searched(name, language).values()]
    files = []
    names = expand_couples(names)
    for couple in zip(names[::2], names[1::2], strict=True):
        if Path(couple[0]).is_dir() and Path(couple[1]).is_dir():
            sources = _searched(couple[0], corpus.source_language)
            targets = _searched(couple[1], corpus.target_language)
            files += [file for domain in sources if domain in targets for file in (sources[domain], targets[domain])]
        else:
            files += couple
    return files


def _searched(name: str, language: str) -> dict[tuple[str, ...], str]:
    """The file of that name, or all of a folder's catalogs in the language, by their domains."""
    if not Path(name).is_dir():
        return {(): name}
    catalogs = [path for path in sorted(Path(name).rglob("*")) if CATALOG.search(path.name) and path.is_file()]
    found = {}
    for path in catalogs:
        inside = path.relative_to(name)
        named = read_header(path).language
        if (
            language_matches(language, named)
            if named
            else any(language_matches(language, part) for part in _parts(inside))
        ):
            found[(*_domain(inside, language), CATALOG.search(path.name)[1])] = str(path)
    if not found:
        raise ValueError(
            f"{name} has no catalog in {language} among its {len(catalogs)}: name another, or the files themselves"
        )
    return found


def _parts(path: Path) -> list[str]:
    return [part for part in (*path.parts[:-1], *path.name.split(".")) if part not in NOT_OF_THE_DOMAIN]


def _domain(file: str | Path, language: str) -> list[str]:
    """What a catalog's path says besides its language."""
    return [part for part in _parts(Path(file)) if not language_matches(language, part)] or [Path(file).name]


class Header(NamedTuple):
    """What a catalog says of itself."""

    charset: str = "utf-8"
    language: str = ""
    singular: int = 0
    plural: int = 1
    """Numbers of the forms that go with one and with many."""


class Entry(NamedTuple):
    """What a catalog holds of one message."""

    context: str
    text: str
    plural: str | None
    forms: dict[int, str]
    fault: str = ""


def read_header(file: str | Path) -> Header:
    """The header, which is the translation of the empty message; ``ValueError`` where it cannot be understood."""
    first = next(_entries(file, "latin-1"), None)
    if first is None or first.text:
        return Header()
    lines = (line.partition(":") for line in first.forms.get(0, "").split("\n"))
    fields = {name.strip().lower(): value.strip() for name, _, value in lines}
    charset = re.search(r"charset=([\w.:-]+)", fields.get("content-type", ""))
    plural = re.search(r"plural=\s*([^;]+)", fields.get("plural-forms", "").partition(";")[2])
    header = Header(language=fields.get("language", ""))
    try:
        if charset and charset[1] != "CHARSET":  # as templates have it
            header = header._replace(charset=codecs.lookup(charset[1]).name)
        if plural and plural[1] != "EXPRESSION":
            form = c2py(plural[1])
            header = header._replace(singular=form(1), plural=form(MANY))
    except (LookupError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{file}: its header cannot be understood ({quoted(error)}): correct it") from None
    return header


def read_catalog(file: str | Path) -> Iterator[Message]:
    """The messages of a catalog without its header; one with a plural is two, where the language has two forms for it.

    Raises ``ValueError``, with file and line, for what is no catalog.
    """
    header = read_header(file)
    for entry in _entries(file, header.charset):
        texts = {0: entry.text}
        if entry.plural is not None:
            texts = {header.singular: entry.text, header.plural: entry.plural}
        for number, text in texts.items():
            if text:
                translation = entry.forms.get(number, "")
                yield Message(entry.context, text, translation, entry.fault or ("" if translation else "untranslated"))


def _entries(file: str | Path, charset: str) -> Iterator[Entry]:
    return (_written if _form(file) == "po" else _compiled)(file, charset)


def _form(file: str | Path) -> str:
    found = CATALOG.search(str(file))
    if not found:
        raise ValueError(f"{file} is no catalog of gettext: name .po or .mo files, or a folder of them")
    return found[1]


LINE = re.compile(r'(msgctxt|msgid|msgid_plural|msgstr|msgstr\[\d{1,2}\])?\s*"([^"\\]*(?:\\.[^"\\]*)*)"')
ESCAPED = re.compile(r"\\(.)")
CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "", "b": ""}


def _written(file: str | Path, charset: str) -> Iterator[Entry]:
    fields: dict[str, list[str]] = {}
    where = fault = ""
    number = length = 0
    for number, line in enumerate(read_lines(file, charset), 1):
        line = line.strip(" \t\r")
        is_obsolete = line.startswith("#~")
        line = line[2:].lstrip(" \t") if is_obsolete else line
        if where.startswith("msgstr") and line.startswith(("#", "|", "msgctxt", "msgid")):
            yield _entry(fields, fault)
            fields, where, fault, length = {}, "", "", 0
        if line.startswith("#,") and "fuzzy" in re.split(r"[,\s]+", line):
            fault = "fuzzy"
        if not line or line.startswith(("#", "|")):  # | is what a fuzzy message was before
            continue
        found = LINE.fullmatch(line)
        where = found[1] or where if found else ""
        is_second = found and found[1] in fields
        if not where or is_second or (where != "msgctxt" and "msgid" not in fields and where != "msgid"):
            raise ValueError(f"{file}, line {number}: not part of a message: correct it (msgfmt -c says more)")
        length += len(line)
        if length > LONGEST:
            raise ValueError(f"{file}, line {number}: a message of more than {LONGEST:,} characters: leave it out")
        fault = "obsolete" if is_obsolete else fault
        fields.setdefault(where, []).append(ESCAPED.sub(_character, found[2]) if "\\" in line else found[2])
    if fields:
        if not where.startswith("msgstr"):
            raise ValueError(f"{file}, line {number}: the last message has no msgstr: fetch or write the file again")
        yield _entry(fields, fault)


def _character(escaped: re.Match) -> str:
    return CHARACTERS.get(escaped[1], escaped[1])


def _entry(fields: dict[str, list[str]], fault: str) -> Entry:
    texts = {name: "".join(lines) for name, lines in fields.items()}
    forms = {int(name[7:-1] or 0): text for name, text in texts.items() if name.startswith("msgstr")}
    return Entry(texts.get("msgctxt", ""), texts["msgid"], texts.get("msgid_plural"), forms, fault)


def _compiled(file: str | Path, charset: str) -> Iterator[Entry]:
    with open_binary(file) as opened:
        content = opened.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"{file}: more than {LARGEST:,} bytes are no catalog: divide it")
    try:
        order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}[content[:4]]
        _, count, *tables = struct.unpack_from(f"{order}4I", content, 4)
        places = [struct.unpack_from(f"{order}{2 * count}I", content, table) for table in tables]
        lengths, starts = ([*places[0][side::2], *places[1][side::2]] for side in (0, 1))
        if any(length > len(content) - start for length, start in zip(lengths, starts, strict=True)):
            raise ValueError("texts behind its end")
        if sum(lengths) > len(content):
            raise ValueError("texts that lie over each other")
        for number in range(0, 2 * count, 2):
            message, translation = (
                content[place[number + 1] : place[number + 1] + place[number]].decode(charset) for place in places
            )
            context, _, message = message.rpartition("\x04")
            text, *plural = message.split("\0")
            yield Entry(context, text, plural[0] if plural else None, dict(enumerate(translation.split("\0"))))
    except (KeyError, struct.error, ValueError) as error:
        reason = quoted("it does not begin like one" if isinstance(error, KeyError) else error)
        raise ValueError(f"{file} is no compiled catalog, or broken ({reason}): fetch or compile it again") from None


KEY_MARK = re.compile(r"\s?[(（][~_&]\w[)）]|(?<![~_&])[~_&](?=\w)(?!\w+;)")
"""The mark of a letter, with the letter where that stands alone in brackets, as in Chinese and Japanese."""

IN_WORD = re.compile(r"\w+[_&]\w+")


def without_keys(source: str, target: str) -> tuple[str, str]:
    """Both texts without the mark of the letter that is a command's key (``~File``, ``&Edit``, ``編集(_E)``).

    Marks inside a word are none where that is a name (``file_name`` on both sides, ``MAX_SIZE``, ``R&D``), nor is
    ``A&B`` where the other side has none.
    """
    marks = [KEY_MARK.findall(text) for text in (source, target)]
    if not any(marks) or any(len(found) > 1 for found in marks):
        return source, target
    words = [IN_WORD.findall(text) for text in (source, target)]
    if any(words) and (words[0] == words[1] or any(word.isupper() for word in words[0] + words[1])):
        return source, target
    if not all(marks) and any("&" in word for word in words[0] + words[1]):
        return source, target
    return KEY_MARK.sub("", source), KEY_MARK.sub("", target)
