import struct
from pathlib import Path

import pytest
from pysword.books import BibleStructure

from pipeline.data.config import CorporaConfig
from pipeline.data.sword import module_files, plain_text, verse_pairs


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


def write_module(folder: Path, name: str, verses: dict[tuple[int, int], str]) -> None:
    """Verses of Genesis as an uncompressed SWORD module."""
    (folder / "mods.d").mkdir(parents=True, exist_ok=True)
    (folder / "modules" / name).mkdir(parents=True)
    (folder / "mods.d" / f"{name}.conf").write_text(
        f"[{name}]\nDataPath=./modules/{name}/\nModDrv=RawText\nSourceType=OSIS\nEncoding=UTF-8\n"
    )
    places = BibleStructure("kjv", ["ot"])
    index = {}
    content = b""
    for (chapter, verse), text in verses.items():
        (place,) = places.ref_to_indicies("Gen", chapter, verse)["ot"]
        index[place] = (len(content), len(text.encode()))
        content += text.encode()
    (folder / "modules" / name / "ot").write_bytes(content)
    records = (struct.pack("<IH", *index.get(place, (0, 0))) for place in range(max(index) + 1))
    (folder / "modules" / name / "ot.vss").write_bytes(b"".join(records))


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
