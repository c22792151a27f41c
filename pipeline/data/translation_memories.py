"""Translation memories (TMX) and files under translation (XLIFF 1.2 and 2), as pairs of segments.

A file is read as a stream of XML events, so that one of any size takes the memory of one unit. Nothing outside the file
is ever opened, and documents that declare entities are refused.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple
from xml.parsers import expat

from pipeline.data.config import CorpusConfig
from pipeline.data.language_tags import language_matches
from pipeline.data.lines import LONGEST, open_binary, quoted

BLOCK = 1 << 16
DEEPEST = 256

NATIVE = {"bpt", "ept", "it", "ph", "ut"}
"""Inline elements whose content is code of the document's own format; the content of others is text."""

NOT_YET = {"new", "needs-translation", "initial"}
"""States of XLIFF in which a target, if any, is no translation."""

BLANKS = re.compile("[ \t\r\n]+")

Row = tuple[str, str, str, str]


class Form(NamedTuple):
    """Names of elements."""

    root: str
    units: frozenset[str]
    segments: frozenset[tuple[str, str]]
    """Each with its parent."""


TMX = Form("tmx", frozenset({"tu"}), frozenset({("tuv", "seg")}))
XLIFF = Form(
    "xliff",
    frozenset({"trans-unit", "segment"}),
    frozenset((unit, side) for unit in ("trans-unit", "segment") for side in ("source", "target")),
)


def tmx_pairs(corpus: CorpusConfig, names: list[str]) -> Iterator[Row]:
    """Units of translation memories, in their order."""
    return _pairs(corpus, names, TMX)


def xliff_pairs(corpus: CorpusConfig, names: list[str]) -> Iterator[Row]:
    """Segments of XLIFF files, in their order; the original document is the group."""
    return _pairs(corpus, names, XLIFF)


def _pairs(corpus: CorpusConfig, names: list[str], form: Form) -> Iterator[Row]:
    for name in names:
        units = _Units(form, corpus.source_language, corpus.target_language)
        with open_binary(name) as file:
            for block in iter(lambda: file.read(BLOCK), b""):
                units.read(block, name)
                yield from units.rows
                units.rows.clear()
        units.read(b"", name)
        if units.languages and not all(map(any, zip(*units.languages.values(), strict=True))):
            raise ValueError(
                f"{name} has nothing in {corpus.source_language} and {corpus.target_language}, only in "
                f"{quoted(', '.join(sorted(units.languages)))}: set corpora.source_language and corpora.target_language"
            )


class _Units:
    """Makes rows of XML, block by block."""

    def __init__(self, form: Form, source_language: str, target_language: str):
        self.form = form
        self.wanted = (source_language, target_language)
        self.rows: list[Row] = []
        self.languages: dict[str, tuple[int, int]] = {}
        self.open: list[str] = []
        self.declared = {"source": source_language, "target": target_language}
        self.language = self.group = self.fault = ""
        self.texts: list[tuple[str, str]] = []
        self.text: list[str] | None = None
        self.length = self.native = self.num_bytes = 0
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self.doctype
        self.parser.SkippedEntityHandler = self.entity
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end

    def read(self, block: bytes, name: str) -> None:
        """Add the rows that end in the next block of the file; an empty one is its end."""
        self.num_bytes += len(block)
        try:
            self.parser.Parse(block, not block)
            if block and self.num_bytes - self.parser.CurrentByteIndex > LONGEST:
                raise ValueError(f"a tag or a comment of more than {LONGEST:,} bytes")
        except (ValueError, LookupError, expat.ExpatError) as error:
            reason = expat.ErrorString(error.code) if isinstance(error, expat.ExpatError) else error
            place = f"{name}, line {self.parser.CurrentLineNumber}"
            raise ValueError(f"{place}: {quoted(reason)}: correct it there, or export the file again") from None

    def doctype(self, root: str, system: str | None, public: str | None, has_declarations: bool) -> None:
        if has_declarations:
            raise ValueError("declarations in the DOCTYPE, like those of entities, are not read")

    def entity(self, entity: str, is_parameter: bool) -> None:
        raise ValueError(f"&{entity}; is declared nowhere in the file")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        tag = name.rpartition(":")[2]
        parent = self.open[-1] if self.open else ""
        if not parent and tag != self.form.root:
            raise ValueError(f"<{name[:50]}> where <{self.form.root}> should begin")
        if len(self.open) == DEEPEST:
            raise ValueError(f"more than {DEEPEST} elements within each other")
        self.open.append(tag)
        if self.text is not None:
            if self.native or tag in NATIVE:
                self.native += 1
            if "lb" in (attributes.get("type"), attributes.get("ctype")):  # a line break
                self.text.append(" ")
        elif (parent, tag) in self.form.segments:
            self.text = []
            self.parser.CharacterDataHandler = self.characters
            if tag != "seg":
                self.language = self.declared[tag]
                self.fault = _fault(attributes.get("state", "")) or self.fault
        elif tag == "tuv":
            self.language = attributes.get("xml:lang") or attributes.get("lang", "")
        elif tag in self.form.units:
            self.texts, self.length = [], 0
            self.fault = _fault(attributes.get("state", ""))
        elif tag == "xliff":
            self.declare(attributes)
        elif tag == "file":
            self.declare(attributes)
            self.group = attributes.get("original") or attributes.get("id", "")
            for language in self.declared.values():
                self.match(language)

    def declare(self, attributes: dict[str, str]) -> None:
        """The languages of an XLIFF file, in the words of version 1 or 2; the wanted ones where it has none."""
        for side, names in {"source": ("source-language", "srcLang"), "target": ("target-language", "trgLang")}.items():
            self.declared[side] = attributes.get(names[0]) or attributes.get(names[1]) or self.declared[side]

    def characters(self, text: str) -> None:
        if not self.native:
            self.length += len(text)
            if self.length > LONGEST:
                raise ValueError(f"a unit of more than {LONGEST:,} characters")
            self.text.append(text)

    def end(self, name: str) -> None:
        tag = self.open.pop()
        if self.native:
            self.native -= 1
        elif self.text is None:
            if tag in self.form.units:
                self.unit()
        elif (self.open[-1], tag) in self.form.segments:
            self.texts.append((self.language, BLANKS.sub(" ", "".join(self.text)).strip(" ")))
            self.text = self.parser.CharacterDataHandler = None

    def unit(self) -> None:
        """A row of what the unit has in the two languages, each as close to its tag as there is."""
        pair = []
        for side in (0, 1):
            fitting = [(self.match(language)[side], text) for language, text in self.texts]
            closeness, text = max(fitting, key=lambda one: one[0], default=(0, ""))
            pair.append(text if closeness else "")
        if any(pair):
            self.rows.append((*pair, self.group, self.fault if all(pair) else "untranslated"))

    def match(self, language: str) -> tuple[int, int]:
        """How closely a tag is that of the source, and of the target; 0 is not at all."""
        if language not in self.languages:
            if len(self.languages) == 1000:
                raise ValueError("more than 1000 languages")
            self.languages[language] = tuple(
                1 + (language == wanted) if language_matches(wanted, language) else 0 for wanted in self.wanted
            )
        return self.languages[language]


def _fault(state: str) -> str:
    return "untranslated" if state in NOT_YET else "needs_review" if state.startswith("needs-") else ""
