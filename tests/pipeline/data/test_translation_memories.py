import gzip
import tracemalloc

import pytest

from pipeline.data.config import CorpusConfig
from pipeline.data.corpora import read_pairs


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows(kind: str, content: str | bytes, **languages) -> list[tuple]:
    with open("file", "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return list(read_pairs(CorpusConfig(kind=kind, **languages), ["file"]))


def tmx(*units: str, head: str = '<?xml version="1.0"?>') -> str:
    return f'{head}<tmx version="1.4"><header srclang="en"/><body>{"".join(units)}</body></tmx>'


def unit(**texts: str) -> str:
    segments = (f'<tuv xml:lang="{tag.replace("_", "-")}"><seg>{text}</seg></tuv>' for tag, text in texts.items())
    return f"<tu>{''.join(segments)}</tu>"


def pairs(*units: str, **languages) -> list[tuple]:
    return [(source, target) for source, target, _, _ in rows("tmx", tmx(*units), **languages)]


@pytest.mark.parametrize(
    ("segment", "text"),
    [
        ('Press <bpt i="1">&lt;b&gt;</bpt>Start<ept i="1">&lt;/b&gt;</ept> now.', "Press Start now."),
        ('Page <ph x="1">{n}</ph>is <hi type="x">not <hi>very</hi> long</hi> today.', "Page is not very long today."),
        ("a <it pos='begin'>&lt;i&gt;<sub>title</sub></it> b<ut>{\\rtf}</ut>c", "a bc"),
        ("one<ph type='lb'>\\n</ph>two", "one two"),
        ("The tag &lt;b&gt; is <mrk>bold</mrk>.", "The tag <b> is bold."),
        ("\n first part\r\n\t second\u2028part\u00a0 ", "first part second\u2028part\u00a0"),
        ("&amp;lt; caf&#233; &#x20AC;", "&lt; café €"),
        ("<![CDATA[a < b & c]]> holds<!-- a comment -->.", "a < b & c holds."),
    ],
)
def test_a_segment_is_its_text_without_code_of_other_formats_on_one_line(segment, text):
    assert pairs(unit(en=segment, de="x")) == [(text, "x")]


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ({"EN": "a", "de_AT": "b"}, ("a", "b")),
        ({"de": "b", "fr": "c", "en": "a"}, ("a", "b")),
        ({"en_GB": "british", "en": "any", "de": "b"}, ("any", "b")),
        ({"en_GB": "british", "en_US": "american", "de": "b"}, ("british", "b")),
        ({"eng": "x", "den": "y", "en": "a", "de": "b"}, ("a", "b")),
    ],
)
def test_languages_match_where_one_tag_begins_with_the_other(tags, found):
    assert pairs(unit(**tags)) == [found]


def test_a_wanted_region_is_found_in_files_with_it_or_without():
    assert pairs(unit(en="a", pt_PT="p", pt_BR="b"), target_language="pt-BR") == [("a", "b")]
    assert pairs(unit(en="a", pt="p"), target_language="pt_BR") == [("a", "p")]


def test_a_unit_without_one_of_the_sides_is_a_fault_and_one_without_both_is_none():
    units = unit(en="a", de="b"), unit(en="c"), unit(fr="d"), unit(en="", de="leer")
    assert rows("tmx", tmx(*units)) == [
        ("a", "b", "", ""),
        ("c", "", "", "untranslated"),
        ("", "leer", "", "untranslated"),
    ]


def test_old_and_other_ways_to_write_tmx_are_read():
    old = tmx(unit(en="a", de="b"), head='<!DOCTYPE tmx SYSTEM "tmx14.dtd">').replace("xml:lang", "lang")
    spaced = tmx(unit(en="a", de="b")).replace("<", "<t:").replace("<t:/", "</t:").replace("<t:?", "<?")
    spaced = spaced.replace("<t:tmx", '<t:tmx xmlns:t="http://www.lisa.org/tmx14"')
    utf16 = tmx(unit(en="a", de="b"), head='<?xml version="1.0" encoding="utf-16"?>').encode("utf-16")
    latin = tmx(unit(en="a", de="b"), head='<?xml version="1.0" encoding="iso-8859-15"?>').encode("iso-8859-15")
    for content in (old, spaced, utf16, latin, "\ufeff" + tmx(unit(en="a", de="b")), gzip.compress(old.encode())):
        assert rows("tmx", content) == [("a", "b", "", "")]


def test_languages_that_a_file_does_not_have_are_named_with_those_it_has():
    with pytest.raises(ValueError, match="file has nothing in en and de, only in en, fr: set corpora.source_language"):
        pairs(unit(en="a", fr="b"))


BOMB = '<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
EXTERNAL = '<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (tmx(unit(en="a", de="b"), "\n", unit(en="c", de="d")[4:]), "line 2: mismatched tag"),
        (tmx(unit(en="a", de="b"))[:-20], "line 1: unclosed token"),
        (tmx(unit(en="a", de="b"))[:-13], "line 1: no element found"),
        ("", "line 1: no element found"),
        ("<html/>", "line 1: <html> where <tmx> should begin"),
        (tmx(unit(en="&#xD800;", de="b")), "line 1: reference to invalid character number"),
        (tmx(unit(en="&nbsp;", de="b"), head='<!DOCTYPE tmx SYSTEM "x.dtd">'), "line 1: &nbsp; is declared nowhere"),
        (tmx(unit(en="&b;", de="b"), head=BOMB), "line 1: declarations in the DOCTYPE"),
        (tmx(unit(en="&a;", de="b"), head=EXTERNAL), "line 1: declarations in the DOCTYPE"),
        (tmx(unit(en="<hi>" * 300 + "</hi>" * 300, de="b")), "line 1: more than 256 elements within each other"),
        (tmx(unit(en="a" * (2 << 20), de="b")), "line 1: a unit of more than 1,048,576 characters"),
        (tmx(unit(en=f"<ph x='{'a' * (2 << 20)}'/>", de="b")), "line 1: a tag or a comment of more than 1,048,576 b"),
        (tmx(head='<?xml version="1.0" encoding="klingon"?>'), "line 1: unknown encoding"),
        (tmx(unit(en="a\x00", de="b")), "line 1: not well-formed"),
        (tmx(unit(en="a", de="b")).encode()[:-30] + b"\xff", "line 1: not well-formed"),
    ],
)
def test_what_is_no_memory_is_refused_with_its_line_and_what_to_do(content, complaint):
    with pytest.raises(ValueError, match=f"^file, {complaint}.*: correct it there, or export the file again") as error:
        rows("tmx", content)
    assert "\n" not in str(error.value)


def peak_of_memory(content: str) -> int:
    tracemalloc.start()
    assert rows("tmx", content)[-1] == ("last", "letztes", "", "")
    peak = tracemalloc.get_traced_memory()[1] - len(content)
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("junk", ["<x>text</x>", unit(fr="a", it="b"), "<!-- comment -->\n", "text", "<tu/>"])
def test_memory_does_not_grow_with_the_file(junk):
    few, many = (tmx(junk * (size // len(junk)), unit(en="last", de="letztes")) for size in (50_000, 150_000))
    assert peak_of_memory(many) < peak_of_memory(few) + 50_000


XLIFF_1 = """<?xml version="1.0"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file original="menu.html" source-language="en-US" target-language="de" datatype="html"><body>
<group><trans-unit id="1"><source>Open <g id="1">the <x id="2"/>file</g></source>
  <seg-source><mrk mtype="seg" mid="0">Open the file</mrk></seg-source>
  <target state="translated"><g id="1">Die <x id="2"/>Datei</g> <mrk mtype="seg">öffnen</mrk></target>
  <alt-trans><source>Open</source><target>Auf</target></alt-trans></trans-unit></group>
<trans-unit id="2"><source>one<x ctype="lb" id="1"/>two</source>
  <target>eins<x ctype="lb" id="1"/>zwei</target></trans-unit>
<trans-unit id="3"><source>Close</source><target state="new">Close</target></trans-unit>
<trans-unit id="4"><source>Save</source></trans-unit>
<trans-unit id="5"><source>Edit</source><target state="needs-review-translation">Editiere</target></trans-unit>
<trans-unit id="6"><source>Bold <bpt id="1">&lt;b></bpt>text</source>
  <target>Fetter <bpt id="1">&lt;b></bpt>Text</target></trans-unit>
</body></file>
<file original="other.html" source-language="en-US" target-language="de"><body>
<trans-unit id="1"><source>x</source><target>y</target></trans-unit></body></file>
</xliff>"""


def test_xliff_1_has_its_state_as_fault_and_its_document_as_group():
    assert rows("xliff", XLIFF_1) == [
        ("Open the file", "Die Datei öffnen", "menu.html", ""),
        ("one two", "eins zwei", "menu.html", ""),
        ("Close", "Close", "menu.html", "untranslated"),
        ("Save", "", "menu.html", "untranslated"),
        ("Edit", "Editiere", "menu.html", "needs_review"),
        ("Bold text", "Fetter Text", "menu.html", ""),
        ("x", "y", "other.html", ""),
    ]


def test_xliff_is_read_in_the_direction_that_is_wanted():
    assert rows("xliff", XLIFF_1, source_language="de", target_language="en")[-1] == ("y", "x", "other.html", "")
    with pytest.raises(ValueError, match="file has nothing in en and fr, only in de, en-US"):
        rows("xliff", XLIFF_1, target_language="fr")


XLIFF_2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" xmlns:mtc="m" version="2.0" srcLang="en" trgLang="de">
<file id="f1"><unit id="1">
<mtc:matches><mtc:match><source>Wrong</source><target>Falsch</target></mtc:match></mtc:matches>
<segment state="final"><source>Hello <pc id="1">big <ph id="2"/>world</pc>!</source>
  <target>Hallo, <pc id="1">große <ph id="2"/>Welt</pc>!</target></segment>
<ignorable><source> </source></ignorable>
<segment state="initial"><source>Bye</source><target>Bye</target></segment>
<segment><source>Good <sc id="3"/>day<ec startRef="3"/></source>
  <target><mrk id="m1" type="term">Guten</mrk> Tag</target></segment>
</unit></file></xliff>"""


def test_xliff_2_is_read_by_segments():
    assert rows("xliff", XLIFF_2) == [
        ("Hello big world!", "Hallo, große Welt!", "f1", ""),
        ("Bye", "Bye", "f1", "untranslated"),
        ("Good day", "Guten Tag", "f1", ""),
    ]


def test_a_file_without_translations_yet_is_no_mistake():
    unit = "<trans-unit><source>a</source></trans-unit>"
    content = f'<xliff><file original="o" source-language="en" target-language="de"><body>{unit}</body></file></xliff>'
    assert rows("xliff", content) == [("a", "", "o", "untranslated")]
    assert rows("xliff", content.replace('target-language="de"', "")) == [("a", "", "o", "untranslated")]
