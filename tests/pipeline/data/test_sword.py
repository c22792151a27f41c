import struct

import pytest
from pysword.sapphire import Sapphire

from pipeline.data.config import CorporaConfig
from pipeline.data.sword import module_files, plain_text, plain_verses, verse_pairs
from pipeline.data.sword_modules import find_modules
from tests.pipeline.data.sword_modules import write_module


@pytest.mark.parametrize(
    ("osis", "text"),
    [
        ('<w lemma="strong:H1">In</w> <w lemma="strong:H2">the</w> <w>beginning</w>, God', "In the beginning, God"),
        ('God</w><note placement="foot"><reference>1:1 </reference>Hebrew</note><w>made</w>', "God made"),
        ('the gods.<note n="1">Or, God</note> ”', "the gods.”"),
        ('<title canonical="true">A Psalm.</title> <l level="1"/>Lord,<l eID="1"/> <l/>hear', "A Psalm. Lord, hear"),
        ('<title type="main">Heading</title><speaker>Beloved</speaker> Let him', "Let him"),
        ('line one,<l eID="1"/><l sID="2"/>line two<lb type="x-p"/>three', "line one, line two three"),
        ('<q marker="" who="Jesus">“For</q> you—<note>n</note>yes', "“For you—yes"),
        ('Amen. <chapter eID="Rev.22"/><div eID="g" osisID="Rev" type="book"/> <title>Glossary</title> words', "Amen."),
        ('<div osisID="Gen" sID="g" type="book"/>First', "First"),
        ('<transChange type="added">Ya</transChange><w>sabes</w>', "Ya sabes"),
        ("<w>engendró</w><transChange>un hijo</transChange>", "engendró un hijo"),
        ('<w>Júrame</w><transChange type="added">lo</transChange><w>en</w>', "Júramelo en"),
        ("salt &amp; <hi>light</hi> ,", "salt & light,"),
        ("", ""),
    ],
)  # fmt: skip
def test_only_the_verse_s_own_words_are_left(osis, text):
    assert plain_text(osis) == text


def english(chapter: int, verse: int) -> str:
    return f"Verse {verse} of {chapter}" + " and more" * (verse * chapter % 7)


def spanish(chapter: int, verse: int) -> str:
    return f"Verso {verse} de {chapter}" + " y aun más" * (verse * chapter % 7) + " así" * (verse % 3)


@pytest.fixture
def bibles(tmp_path):
    places = [(chapter, verse) for chapter in range(1, 7) for verse in range(1, 21)]
    source = {place: english(*place) for place in places}
    target = {place: spanish(*place) for place in places}
    target |= {(3, verse): spanish(3, verse + 3) for verse in range(1, 21)}  # counted otherwise
    target[2, 5] += " y una nota muy larga que nadie tradujo en la otra lengua, y otra más, y otra todavía"
    del source[1, 4], target[1, 7]
    write_module(tmp_path, "english", source)
    write_module(tmp_path, "spanish", target)
    return CorporaConfig(kind="sword", sword_folder=str(tmp_path), source_module="english", target_module="spanish")


def test_verses_are_aligned_by_book_chapter_and_number(bibles):
    rows = {(row.source, row.target): row for row in verse_pairs(bibles, [])}
    assert rows[english(5, 9), spanish(5, 9)].group == "Gen 5"
    assert len(rows) == 120
    good = [row for row in rows.values() if not row.fault]
    assert len(good) == 120 - 20 - 1 - 2


def test_what_does_not_go_together_is_marked_with_the_reason(bibles):
    faults = {}
    for row in verse_pairs(bibles, []):
        faults.setdefault(row.fault, []).append(row)
    assert set(faults) == {"", "verse_on_one_side", "chapter_numbered_differently", "verses_differ"}
    one_side = {(row.source, row.target) for row in faults["verse_on_one_side"]}
    assert one_side == {(english(1, 7), ""), ("", spanish(1, 4))}
    assert {row.group for row in faults["chapter_numbered_differently"]} == {"Gen 3"}
    assert [row.source for row in faults["verses_differ"]] == [english(2, 5)]


def test_the_modules_own_files_are_the_corpus(bibles):
    assert [path.name for path in module_files(bibles)] == ["ot", "ot.vss"] * 2


def test_a_module_must_be_named_where_there_are_several(bibles):
    with pytest.raises(ValueError, match="corpora.source_module=: set it to one of english, spanish"):
        module_files(CorporaConfig(kind="sword", sword_folder=bibles.sword_folder))


def test_a_folder_without_modules_is_refused(tmp_path):
    with pytest.raises(ValueError, match="corpora.sword_folder=.* has no mods.d"):
        module_files(CorporaConfig(kind="sword", sword_folder=str(tmp_path)))


@pytest.fixture(scope="module")
def verses():
    return {(chapter, verse): english(chapter, verse) + " é" for chapter in range(1, 4) for verse in range(1, 5)}


def read(folder):
    (module,) = find_modules(folder).values()
    return {(chapter, verse): text for (book, chapter, verse), text in module.verses() if text and book == "Gen"}


@pytest.mark.parametrize("packing", ["", "ZIP", "BZIP2", "XZ"])
def test_verses_may_be_packed(tmp_path, verses, packing):
    write_module(tmp_path, "english", verses, packing)
    assert read(tmp_path) == verses


def test_a_module_that_does_not_name_its_encoding_is_in_utf_8_or_else_in_windows_latin_1(tmp_path, verses):
    for encoding in ("utf-8", "cp1252"):
        write_module(tmp_path, "english", verses, encoding=encoding)
        conf = tmp_path / "mods.d" / "english.conf"
        conf.write_text(conf.read_text().partition("Encoding")[0])
        assert read(tmp_path) == verses


@pytest.mark.parametrize(
    ("markup", "marked"),
    [
        ("GBF", "<TS>Title<Ts>In the beginning<RF>note<Rf>"),
        ("ThML", '<i>In</i> the beginning<scripRef passage="Gen 1">Gen 1</scripRef>'),
    ],
)
def test_text_of_older_markup_is_plain_too(tmp_path, markup, marked):
    write_module(tmp_path, "english", {(1, 1): marked})
    conf = tmp_path / "mods.d" / "english.conf"
    conf.write_text(conf.read_text().replace("OSIS", markup))
    (module,) = find_modules(tmp_path).values()
    assert list(filter(None, plain_verses(module).values())) == ["In the beginning"]


def test_an_encrypted_module_is_read_with_its_key(tmp_path):
    data = write_module(tmp_path, "english", {(1, 1): "In the beginning"})
    cipher = Sapphire("key")
    (data / "ot").write_bytes(bytes(map(cipher.encrypt, (data / "ot").read_bytes())))
    conf = tmp_path / "mods.d" / "english.conf"
    conf.write_text(conf.read_text() + "CipherKey=key\n")
    assert read(tmp_path) == {(1, 1): "In the beginning"}


def flipped(content: bytes) -> bytes:
    return content[:20] + bytes([content[20] ^ 255]) + content[21:]


DAMAGE = {
    "a text that ends too early": ("", "ot", lambda content: content[:-1], "ot ends before its text"),
    "a block that ends too early": ("ZIP", "ot.czz", lambda content: content[:-9], "ot.czz ends before its text"),
    "a block that is not packed so": ("ZIP", "ot.czz", flipped, "a block that is not packed as zip"),
    "a block too few": ("ZIP", "ot.czs", lambda content: content[:-12], "ot.czz has no block 2"),
    "a verse outside of its block": (
        "ZIP",
        "ot.czv",
        lambda content: content[:-10] + struct.pack("<IIH", 0, 1 << 30, 9),
        "ends before its text",
    ),
    "a verse too long": (
        "ZIP",
        "../../mods.d/english.conf",
        lambda content: content.replace(b"zText", b"zText4"),
        "a verse of [0-9]{6,} bytes",
    ),
    "bytes of no letter": (
        "",
        "ot",
        lambda content: b"\xff" + content[1:],
        "a verse that is not in its Encoding=utf-8",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_no_missing_verse(tmp_path, verses, damage):
    packing, name, change, complaint = DAMAGE[damage]
    path = write_module(tmp_path, "english", verses, packing) / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=f"SWORD module english cannot be read: .*{complaint}.*: install it anew"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("ModDrv=RawText", "ModDrv=RawLD", "ModDrv=rawld is none of rawtext, rawtext4, ztext, ztext4"),
        ("OSIS", "OSIS\nVersification=Klingon", "Versification=klingon is not known"),
        ("UTF-8", "UTF-7½", "Encoding=utf-7½ is none of UTF-8, Latin-1"),
        ("./modules/english/", "./mods.d/", "mods.d has neither ot nor nt"),
        ("RawText", "zText\nBlockType=\3HAPTER", "english has neither ot. zz nor nt. zz"),
        ("./modules/english/", "/", "its DataPath=/ is not in"),
        ("./modules/english/", "./modules/../../..", "its DataPath=./modules/../../.. is not in"),
        ("./modules/english/", "a\0b", "its DataPath=a b is not in"),
        ("english/", "e" * 300, "its DataPath=./modules/e{190} is not in"),
    ],
)
def test_a_description_that_cannot_be_followed_is_one_line(tmp_path, verses, old, new, complaint):
    write_module(tmp_path, "english", verses)
    conf = tmp_path / "mods.d" / "english.conf"
    conf.write_text(conf.read_text().replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=complaint):
        read(tmp_path)


def test_packing_that_is_not_known_is_one_line(tmp_path, verses):
    write_module(tmp_path, "english", verses, "ZIP")
    conf = tmp_path / "mods.d" / "english.conf"
    conf.write_text(conf.read_text().replace("ZIP", "LZSS"))
    with pytest.raises(ValueError, match="CompressType=lzss is none of zip, bzip2, xz"):
        read(tmp_path)
