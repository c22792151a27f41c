from pathlib import Path

import pytest

from pipeline.data.config import CorpusConfig
from pipeline.data.corpora import identity, read_pairs

REFERENCES = ["GEN 1:1", "GEN 1:2", "GEN 1:3", "GEN 2:1", "1JN 1:1", "1JN 1:2"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name: str, *lines: str) -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return name


def rows(source: list[str], target: list[str]) -> list[tuple]:
    names = [write("eng-web.txt", *source), write("deu-luther.txt", *target)]
    return list(read_pairs(CorpusConfig(kind="verses"), names))


def faults(source: list[str], target: list[str]) -> list[str]:
    return [fault for *_, fault in rows(source, target)]


def test_chapters_are_groups_where_a_file_names_the_verses():
    write("vref.txt", *REFERENCES)
    found = rows(list("abcdef"), list("uvwxyz"))
    assert found[:2] == [("a", "u", "GEN 1", ""), ("b", "v", "GEN 1", "")]
    assert [group for _, _, group, _ in found] == ["GEN 1"] * 3 + ["GEN 2"] + ["1JN 1"] * 2


def test_without_such_a_file_there_are_no_groups():
    assert rows(["a", "b"], ["u", "v"]) == [("a", "u", "", ""), ("b", "v", "", "")]


def test_the_file_that_names_the_verses_is_part_of_the_corpus():
    names = [write("x/eng.txt", "a"), write("y/deu.txt", "b"), write("y/vref.txt", "GEN 1:1")]
    _, files = identity(CorpusConfig(kind="verses", train=names[:2]))
    assert [str(file) for file in files] == names


def test_verses_that_are_not_there_are_faults():
    assert faults(["a", "", "c", ""], ["u", "v", " ", ""]) == [
        *("", "verse_on_one_side", "verse_on_one_side", "verse_missing")
    ]


def test_a_range_on_one_side_takes_the_verse_it_begins_with_away():
    assert faults(["a", "b", "c", "d"], ["u", "v w", "<range>", "x"]) == ["", "verse_in_range", "verse_in_range", ""]


def test_the_same_range_on_both_sides_leaves_the_verse_it_begins_with():
    assert faults(["a b", "<range>", "c"], ["u v", "<range>", "w"]) == ["", "verse_in_range", ""]
    assert faults(["a b", "<range>", "c"], ["u v w", "<range>", "<range>"]) == ["verse_in_range"] * 3


def test_a_range_at_the_beginning_belongs_to_no_verse():
    assert faults(["<range>", "a"], ["u", "v"]) == ["verse_in_range", ""]


def test_files_of_other_verses_are_refused_with_their_counts():
    write("vref.txt", *REFERENCES)
    with pytest.raises(ValueError, match="eng-web.txt has 2 lines but deu-luther.txt has 2 and vref.txt has 6"):
        rows(["a", "b"], ["u", "v"])
