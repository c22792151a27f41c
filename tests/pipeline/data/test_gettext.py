import gzip
import io
import struct
from pathlib import Path

import pytest

from pipeline.data.config import CorpusConfig
from pipeline.data.corpora import identity, read_pairs
from pipeline.data.gettext import without_keys


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(*names: str, **settings) -> list[tuple]:
    return list(read_pairs(CorpusConfig(kind="gettext", **settings), list(names)))


def header(*fields: str) -> str:
    return 'msgid ""\nmsgstr ""\n' + "".join(f'"{field}\\n"\n' for field in fields) + "\n"


def write(name: str, content: str | bytes, *fields: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    content = content if isinstance(content, bytes) else (header(*fields) + content).encode()
    Path(name).write_bytes(content)
    return name


def message(text: str, translation: str) -> str:
    return f'msgid "{text}"\nmsgstr "{translation}"\n\n'


def compiled(messages: dict[str, str], order: str = "<", charset: str = "utf-8") -> bytes:
    """Messages as msgfmt writes them; the keys have contexts and plurals in gettext's own form."""
    texts = [(key.encode(charset), text.encode(charset)) for key, text in sorted(messages.items())]
    content, places = b"", ([], [])
    start = 28 + 16 * len(texts)
    for side in (0, 1):
        for text in texts:
            places[side].extend((len(text[side]), start + len(content)))
            content += text[side] + b"\0"
    head = (0x950412DE, 0, len(texts), 28, 28 + 8 * len(texts), 0, 0)
    return struct.pack(f"{order}{7 + 4 * len(texts)}I", *head, *places[0], *places[1]) + content


PO = r"""# a comment
#, fuzzy
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"

#. for translators
#: a.c:1
msgid "Open file"
msgstr "Datei öffnen"

#, fuzzy, c-format
#| msgid "%d row"
#| msgstr "x"
msgid "%d rows"
msgstr "%d Seiten"
msgctxt "menu"
msgid ""
"Save\tall\n"
"of \"it\" in C:\\n"
msgstr "Alles "
"sichern"

msgid "Not done yet"
msgstr ""

#~ msgid "Old name"
#~ msgstr "Alter Name"
#, fuzzy
#~| msgid "Older"
#~ msgid "Other"
#~ msgstr "Anderer"
"""

PO_ROWS = [
    ("Open file", "Datei öffnen", "app", ""),
    ("%d rows", "%d Seiten", "app", "fuzzy"),
    ('Save\tall\nof "it" in C:\\n', "Alles sichern", "app", ""),
    ("Not done yet", "", "app", "untranslated"),
    ("Old name", "Alter Name", "app", "obsolete"),
    ("Other", "Anderer", "app", "obsolete"),
]


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["app.po", "app.de.po", "app/po/de.po", "de/LC_MESSAGES/app.po", "app.po.gz"])
def test_a_catalog_has_messages_faults_and_a_domain_but_its_header_is_no_message(name, ends):
    content = PO.replace("\n", ends).encode()
    write(name, gzip.compress(content) if name.endswith("gz") else content)
    assert rows(name) == PO_ROWS


def test_only_newlines_end_a_line_of_a_catalog():
    text = "a\u2028b\x85c\x0cd"
    assert rows(write("a.po", message(text, text)))[0][:2] == (text, text)


PLURAL = 'msgid "one file"\nmsgid_plural "%d files"\n'


@pytest.mark.parametrize(
    ("rule", "forms", "found"),
    [
        ("nplurals=2; plural=(n != 1);", ["eine", "%d"], [("one file", "eine"), ("%d files", "%d")]),
        (
            "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2);",
            ["jeden plik", "%d pliki", "%d plików"],
            [("one file", "jeden plik"), ("%d files", "%d plików")],
        ),
        ("nplurals=3; plural=n==1 ? 1 : n==2 ? 2 : 0", ["5", "1", "2"], [("one file", "1"), ("%d files", "5")]),
        ("nplurals=1; plural=0;", ["%d ファイル"], [("%d files", "%d ファイル")]),
        ("nplurals=INTEGER; plural=EXPRESSION;", ["a", "b"], [("one file", "a"), ("%d files", "b")]),
    ],
)  # fmt: skip
def test_the_singular_goes_with_the_form_for_one_and_the_plural_with_that_for_many(rule, forms, found):
    content = PLURAL + "".join(f'msgstr[{number}] "{form}"\n' for number, form in enumerate(forms))
    name = write("a.po", content, f"Plural-Forms: {rule}")
    assert [row[:2] for row in rows(name)] == found
    messages = {"": f"Plural-Forms: {rule}\n", "one file\0%d files": "\0".join(forms)}
    assert [row[:2] for row in rows(write("a.mo", compiled(messages)))] == found


def test_a_missing_form_is_untranslated():
    content = PLURAL + 'msgstr[0] "Datei"\nmsgstr[1] ""\n'
    assert rows(write("a.po", content)) == [("one file", "Datei", "a", ""), ("%d files", "", "a", "untranslated")]


@pytest.mark.parametrize("charset", ["latin-1", "utf-8", "euc-jp"])
def test_a_catalog_is_in_the_charset_of_its_header(charset):
    text = "日本" if charset == "euc-jp" else "é"
    field = f"Content-Type: text/plain; charset={charset}"
    write("a.po", (header(field) + message("x", text)).encode(charset))
    write("a.mo", compiled({"": f"{field}\n", "x": text}, charset=charset))
    assert rows("a.po") == rows("a.mo") == [("x", text, "a", "")]


@pytest.mark.parametrize("order", ["<", ">"])
def test_compiled_catalogs_are_read_in_either_order_of_bytes_with_contexts_and_packed(order):
    content = compiled({"": "Language: de\n", "menu\x04Open": "Öffnen", "Open": "Offen"}, order)
    found = [("Open", "Offen", "a", ""), ("Open", "Öffnen", "a", "")]
    assert rows(write("a.mo", content)) == rows(write("a.mo.gz", gzip.compress(content))) == found


@pytest.fixture
def translated(folder):
    """A folder as packages have it: two languages with two domains each, and one without a known language."""
    for language, words in {"de": ("eins", "zwei"), "ja": ("一", "二")}.items():
        for domain, text, word in zip(("a", "b"), ("one", "two"), words, strict=True):
            content = compiled({"": f"Language: {language}_XX\n", f"c\x04{text}": word})
            write(f"share/{language}/LC_MESSAGES/{domain}.mo", content)
    write("share/de.po", message("three", "drei"))
    write("share/other.po", message("four", "?"))
    write("share/template.pot", message("five", ""))
    return "share"


def test_a_folder_is_searched_for_catalogs_in_the_other_language(translated):
    assert sorted(rows(translated)) == [
        ("one", "eins", "a", ""),
        ("three", "drei", "share", ""),
        ("two", "zwei", "b", ""),
    ]
    to_messages = rows(translated, source_language="ja", target_language="en")
    assert to_messages == [("一", "one", "a", ""), ("二", "two", "b", "")]
    with pytest.raises(ValueError, match="share has no catalog in fr among its 6: name another"):
        rows(translated, target_language="fr")


def test_two_translations_of_a_message_are_joined(translated):
    languages = {"source_language": "ja", "target_language": "de"}
    assert rows(translated, translated, **languages) == [("一", "eins", "a", ""), ("二", "zwei", "b", "")]
    names = ("share/ja/LC_MESSAGES/*.mo", "share/de/LC_MESSAGES/*.mo")
    assert rows(*names, **languages) == [("一", "eins", "a", ""), ("二", "zwei", "b", "")]
    with pytest.raises(ValueError, match="share has no partner: files come in couples"):
        rows(translated, **languages)


def test_what_only_one_of_two_catalogs_translates_is_a_fault():
    write("ja.po", message("one", "一") + message("two", "") + "#, fuzzy\n" + message("three", "三"))
    write("de.po", message("one", "eins") + message("two", "zwei") + message("three", "drei") + message("four", "vier"))
    assert [(*row[:2], row[3]) for row in rows("ja.po", "de.po", source_language="ja")] == [
        ("一", "eins", ""),
        ("", "zwei", "untranslated"),
        ("三", "drei", "fuzzy"),
        ("", "vier", "untranslated"),
    ]


def test_messages_may_be_in_another_language_than_english():
    name = write("a.po", message("eins", "un"))
    german = {"source_language": "de", "target_language": "fr", "message_language": "de"}
    assert rows(name, **german) == [("eins", "un", "a", "")]
    french = {"source_language": "fr", "target_language": "de", "message_language": "de"}
    assert rows(name, **french) == rows(name, **french, reverse=True) == [("un", "eins", "a", "")]


def test_a_package_is_used_instead_of_files(translated, monkeypatch):
    fetched = []
    monkeypatch.setattr("pipeline.data.gettext.fetch", lambda package, *rest: fetched.append(package) or translated)
    corpus = {"package": "l10n-ja l10n-de", "source_language": "ja"}
    assert rows(**corpus) == [("一", "eins", "a", ""), ("二", "zwei", "b", "")]
    assert fetched == ["l10n-ja", "l10n-de"]
    _, files = identity(CorpusConfig(kind="gettext", **corpus))
    assert [str(file) for file in files] == [
        f"share/{language}/LC_MESSAGES/{domain}.mo" for domain in "ab" for language in ("ja", "de")
    ]


@pytest.mark.parametrize(
    ("source", "target", "plain"),
    [
        ("~File", "~Datei", ("File", "Datei")),
        ("Save _As...", "Speichern _unter …", ("Save As...", "Speichern unter …")),
        ("E&xit", "Be&enden", ("Exit", "Beenden")),
        ("_Edit...", "編集(_E)...", ("Edit...", "編集...")),
        ("~Close", "閉じる （~C）", ("Close", "閉じる")),
        ("E~xtension", "Erweiterung", ("Extension", "Erweiterung")),
        ("Center:", "Ze_ntrum:", ("Center:", "Zentrum:")),
        ("_Statistics", "~Statistiken", ("Statistics", "Statistiken")),
        ("Open file_name", "file_name öffnen", None),
        ("%FILE_NAME", "%DATEI_NAME", None),
        ("R&D", "F&E", None),
        ("Date&Time", "Datum und Zeit", None),
        ("AT&amp;T", "AT&amp;T", None),
        ("a && b", "a && b", None),
        ("snake_case_name", "_x", None),
        ("~", "_", None),
    ],
)
def test_marks_of_keys_are_taken_out_of_both_sides_and_nothing_else(source, target, plain):
    assert without_keys(source, target) == (plain or (source, target))
    assert without_keys(target, source) == (plain or (source, target))[::-1]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("msgid open\n", "a.po, line 1: not part of a message: correct it"),
        ('"text"\n', "a.po, line 1: not part"),
        ('msgstr "a"\n', "a.po, line 1: not part"),
        ('msgid "a"\nmsgid "b"\nmsgstr "c"\n', "a.po, line 2: not part"),
        ('msgid "a"\nmsgstr "say "b""\n', "a.po, line 2: not part"),
        ('msgid "a"\n', "a.po, line 1: the last message has no msgstr: fetch or write the file again"),
        ('msgid "a"\nmsgstr "\\"\n', "a.po, line 2: not part"),
        ("<html>\n", "a.po, line 1: not part"),
        ('msgid "a"\nmsgstr "' + 'x"\n"' * 400_000 + '"', "a.po, line 349522: a message of more than 1,048,576 char"),
        (header("Content-Type: charset=klingon"), r"a.po: its header cannot be understood \(unknown encoding: klingon"),
        (header("Plural-Forms: nplurals=2; plural=os.system;"), "a.po: its header cannot be understood"),
        (header("Plural-Forms: nplurals=2; plural=n/0;"), "a.po: its header cannot be understood"),
        (header("Content-Type: charset=UTF-8").encode() + b'msgid "\xff"\nmsgstr ""', "a.po, line 5: byte 0xff"),
    ],
)  # fmt: skip
def test_what_is_no_catalog_is_refused_with_its_line(content, complaint):
    write("a.po", content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=complaint) as error:
        rows("a.po")
    assert "\n" not in str(error.value)


GOOD = compiled({"": "Language: de\n", "one": "eins"})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        GOOD[:10],
        GOOD[:-8],
        GOOD[:8] + b"\xff\xff\xff\xff" + GOOD[12:],
        GOOD[:12] + b"\xff\xff\xff\xff" + GOOD[16:],
        GOOD[:28] + b"\xff\xff\xff\x7f" + GOOD[32:],
        compiled({"one": "é"}, charset="latin-1"),
    ],
)
def test_a_broken_compiled_catalog_is_refused(content):
    with pytest.raises(
        ValueError, match="a.mo is no compiled catalog, or broken .*: fetch or compile it again"
    ) as error:
        rows(write("a.mo", content))
    assert "\n" not in str(error.value)


def test_texts_of_a_compiled_catalog_do_not_lie_over_each_other():
    count = 1000
    head = struct.pack("<7I", 0x950412DE, 0, count, 28, 28, 0, 0)
    content = io.BytesIO(head + struct.pack("<2I", 50_000, 0) * count + bytes(50_000)).getvalue()
    with pytest.raises(ValueError, match="texts that lie over each other"):
        rows(write("a.mo", content))


def test_other_files_are_no_catalogs():
    with pytest.raises(ValueError, match="a.txt is no catalog of gettext: name .po or .mo files"):
        rows(write("a.txt", ""))
