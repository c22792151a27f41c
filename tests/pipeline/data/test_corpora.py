import json
import os
import tempfile
from itertools import chain
from pathlib import Path

import pytest

from pipeline.data.arrow import map_arrow
from pipeline.data.config import CorporaConfig, CorpusConfig
from pipeline.data.corpora import identity, load


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shards(folder, shard_pairs=1000, **settings):
    """The pairs of each shard."""
    loaded = load(CorpusConfig(**settings), "train", Path(folder), shard_pairs)
    tables = [map_arrow(shard.path).to_pydict() for shard in loaded]
    return [list(zip(table["source"], table["target"], strict=True)) for table in tables]


def pairs(**settings):
    with tempfile.TemporaryDirectory() as folder:
        return list(chain(*shards(folder, **settings)))


def write(name: str, content: str) -> str:
    with open(name, "w", encoding="utf-8", newline="") as file:
        file.write(content)
    return name


def test_line_i_goes_with_line_i(folder):
    names = [write("a.en", "one\ntwo\u2028halves\nthree\n"), write("a.de", "eins\nzwei\ndrei")]
    assert pairs(train=names) == [("one", "eins"), ("two\u2028halves", "zwei"), ("three", "drei")]


def test_couples_of_files_follow_each_other_and_raw_text_stays(folder):
    names = [write("a.en", "\n"), write("a.de", " a \n"), write("b.en", "b\x00\n"), write("b.de", "\t\n")]
    assert pairs(train=names) == [("", " a "), ("b\x00", "\t")]


@pytest.mark.parametrize("kind", ["text", "verses"])
def test_each_side_may_have_an_encoding(folder, kind):
    Path("a.en").write_text("für\n", encoding="utf-16")
    write("vref.txt", "GEN 1:1\n")
    names = ["a.en", write("a.de", "für\n")]
    for reverse in (False, True):
        assert pairs(kind=kind, train=names, encoding="utf-16 utf-8", reverse=reverse) == [("für", "für")]
    with pytest.raises(ValueError, match="corpora: encoding='utf-16 utf-8' must be one, or two, of source and target"):
        CorpusConfig(kind="tsv", encoding="utf-16 utf-8")


def test_shards_hold_so_many_rows_in_order(folder):
    names = [write("a.en", "".join(f"{i}\n" for i in range(10))), write("a.de", "".join(f"-{i}\n" for i in range(10)))]
    found = shards("arrow", 4, train=names)
    assert [len(rows) for rows in found] == [4, 4, 2]
    assert list(chain(*found)) == [(f"{i}", f"-{i}") for i in range(10)]


def test_columns_are_the_rows_own_when_more_than_are_handled_together(folder, monkeypatch):
    monkeypatch.setattr("pipeline.data.corpora.BATCH", 3)
    names = [write("a.en", "".join(f"{i}\n" for i in range(10))), write("a.de", "".join(f"-{i}\n" for i in range(10)))]
    assert pairs(train=names) == [(f"{i}", f"-{i}") for i in range(10)]


def test_reading_goes_on_after_the_shards_that_are_there(folder):
    names = [write("a.en", "1\n2\n3\n4\n5\n"), write("a.de", "a\nb\nc\nd\ne\n")]
    interrupted = load(CorpusConfig(train=names), "train", Path("arrow"), 2)
    written = next(interrupted).path.stat().st_mtime_ns
    expected = [[("1", "a"), ("2", "b")], [("3", "c"), ("4", "d")], [("5", "e")]]
    assert shards("arrow", 2, train=names) == expected
    assert Path("arrow/00000.arrow").stat().st_mtime_ns == written
    os.remove("a.en")  # nothing is read again
    assert shards("arrow", 2, train=names) == expected


def test_three_pairs_are_shown_and_all_counted(folder, capsys):
    lines = ["one\x1b[31m", "two", "x" * 500, "four"]
    pairs(train=[write("a.en", "\n".join(lines)), write("a.de", "eins\nzwei\ndrei\nvier")])
    out, err = capsys.readouterr()
    assert out == ""
    first, *shown = err.splitlines()
    assert "train" in first and "a.en, a.de" in first
    assert shown == ["    one[31m  |||  eins", "    two  |||  zwei", f"    {'x' * 79}…  |||  drei", "    4 pairs"]


@pytest.mark.parametrize(
    ("source", "target", "counts"), [(5, 4, "5 lines but a.de has 4"), (1, 3, "1 lines but a.de has 3")]
)
def test_files_of_unequal_length_are_refused_with_both_counts(folder, source, target, counts):
    names = [write("a.en", "x\n" * source), write("a.de", "y\n" * target)]
    with pytest.raises(ValueError, match=f"a.en has {counts}"):
        pairs(train=names)


def test_a_file_without_partner_is_refused(folder):
    with pytest.raises(ValueError, match="a.en has no partner"):
        pairs(train=["a.en"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.tsv", "tsv"), ("b.tmx", "tmx"), ("*.xlf.gz", "xliff"), ("de.po", "gettext"), ("c.jsonl", "jsonl")],
)
def test_a_file_that_looks_like_one_of_another_kind_is_told(folder, name, kind):
    with pytest.raises(ValueError, match=f"is no couple of files of kind text: set corpora.kind={kind}$"):
        pairs(train=[name])


def test_a_file_that_is_both_sides_is_refused(folder):
    with pytest.raises(ValueError, match="corpora: a.en is both source and target: name the file of each side"):
        pairs(train=[write("a.en", "x\n"), "./a.en"])


def test_empty_files_are_no_data(folder):
    with pytest.raises(ValueError, match=r"corpora.train=.*no data"):
        pairs(train=[write("a.en", ""), write("a.de", "")])


def test_no_training_data_is_refused(folder):
    with pytest.raises(ValueError, match="corpora.train is empty"):
        identity(CorpusConfig())


TSV = 'src\ttgt\n"Hello\tHallo\n\n5" long\t5" lang\textra\n"Yes"\t"Ja"\n'


def test_quotes_in_tab_separated_files_are_text(folder):
    write("a.tsv", TSV)
    expected = [('"Hello', "Hallo"), ('5" long', '5" lang'), ('"Yes"', '"Ja"')]
    assert pairs(kind="tsv", train=["a.tsv"], source_column="src", target_column="tgt") == expected
    numbered = pairs(kind="tsv", train=["a.tsv"], source_column="2", target_column="1")
    assert numbered == [("tgt", "src")] + [(target, source) for source, target in expected]


def test_a_missing_column_or_cell_of_a_tab_separated_file_is_named(folder):
    write("a.tsv", "src\ttgt\na\tb\nc\n")
    with pytest.raises(ValueError, match="a.tsv has no column source, only src, tgt"):
        pairs(kind="tsv", train=["a.tsv"])
    with pytest.raises(ValueError, match="a.tsv, row 3: 1 columns, but 2 are needed"):
        pairs(kind="tsv", train=["a.tsv"], source_column="src", target_column="tgt")


def test_json_lines_may_be_nested_blank_or_hold_line_ends(folder):
    rows = [
        {"translation": {"en": "water", "de": "Wasser"}},
        {"translation": {"en": "two\nlines", "de": "zwei\r\nZeilen"}},
    ]
    write("a.jsonl", "\n\n".join(map(json.dumps, rows)))
    columns = {"source_column": "translation.en", "target_column": "translation.de"}
    assert pairs(kind="jsonl", train=["a.jsonl"], **columns) == [("water", "Wasser"), ("two lines", "zwei Zeilen")]


def test_null_in_json_lines_is_a_row_without_text_as_it_is_in_tables(folder):
    rows = [{"translation": {"en": "water", "de": None}}, {"translation": None}]
    write("a.jsonl", "\n".join(map(json.dumps, rows)))
    columns = {"source_column": "translation.en", "target_column": "translation.de"}
    assert pairs(kind="jsonl", train=["a.jsonl"], **columns) == [("water", ""), ("", "")]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (
            '{"source": "a", "t": {"en": "b", "fr": "c"}}',
            r"has no target among its keys \(source, t.en, t.fr\): set corpora.target_column, or correct the row",
        ),
        (
            '{"source": 5, "target": "b"}',
            "source holds a value of type int, not text: set corpora.source_column, or correct the row",
        ),
        ('{"source": "a", "target": "b"}{"source": "c"}', "is not one JSON object"),
        ('{"source": "a", "target": "b', "is not one JSON object"),
        ('["a", "b"]', "is not one JSON object"),
        ('{"source": "\\ud83d", "target": "b"}', "half of a surrogate pair at source"),
    ],
)
def test_a_bad_json_line_is_named(folder, row, complaint):
    write("a.jsonl", '{"source": "a", "target": "b"}\n' + row)
    with pytest.raises(ValueError, match=rf"a.jsonl, row 2.*{complaint}"):
        pairs(kind="jsonl", train=["a.jsonl"])


HUB = {"kind": "hub", "train": ["train"], "source_column": "translation.en", "target_column": "translation.de"}


def write_hub(content: str) -> None:
    rows = [{"translation": {"en": content, "de": "blau"}}, {"translation": {"en": "no\none", "de": None}}]
    write("set/train.jsonl", "\n".join(map(json.dumps, rows)))


def test_a_folder_is_read_like_a_data_set_of_the_hub_and_never_from_a_stale_cache(folder):
    (folder / "set").mkdir()
    for colour in ("blue", "pink"):  # of the same length, and soon the same time
        write_hub(colour)
        os.utime("set/train.jsonl", (0, 0))
        assert pairs(name="set", **HUB) == [(colour, "blau"), ("no one", "")]


def test_a_script_is_never_run(folder):
    (folder / "set").mkdir()
    write("set/set.py", "raise SystemExit")
    with pytest.raises(ValueError, match="corpora.name=set: needs a loading script, which is never run"):
        pairs(name="set", **HUB)


def test_an_unknown_split_or_column_is_named_with_what_there_is(folder):
    (folder / "set").mkdir()
    write_hub("blue")
    with pytest.raises(ValueError, match=r"Bad split: nope. Available splits: \['train'\]"):
        pairs(name="set", **HUB | {"train": ["nope"]})
    with pytest.raises(
        ValueError, match="no text column en, only translation.de, translation.en|translation.en, translation.de"
    ):
        pairs(name="set", **HUB | {"source_column": "en"})


def test_a_data_set_needs_a_name(folder):
    with pytest.raises(ValueError, match="corpora.name is empty: name the data set"):
        pairs(**HUB)


def test_a_data_set_out_of_reach_is_one_line(folder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="corpora.name=no/such: cannot be reached") as error:
        pairs(name="no/such", **HUB)
    assert "\n" not in str(error.value)


def test_settings_that_a_kind_does_not_read_are_no_part_of_its_identity(folder):
    names = [write("a.en", "one\n"), write("a.de", "eins\n")]
    plain, _ = identity(CorporaConfig(train=names))
    assert plain == identity(CorporaConfig(train=names, source_language="fr", source_column="x", name="y"))[0]
    assert plain != identity(CorporaConfig(train=names, encoding="latin-1"))[0]
    assert plain != identity(CorporaConfig(train=names, valid=names))[0]


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_data_is_named_by_the_parts_or_by_the_whole_and_not_by_both(split):
    with pytest.raises(ValueError, match=f"corpora.{split} and corpora.parts both name data: move the former"):
        CorporaConfig(parts=[CorpusConfig(train=["a", "b"])], **{split: ["c", "d"]})


def test_a_source_that_does_not_tell_its_target_s_language_needs_tags():
    parts = [CorpusConfig(source_language=source, target_language=target) for source, target in ("ed", "ef", "de")]
    told = "corpora.parts translate e into d and f, and nothing tells the model which: set corpora.tags=true"
    with pytest.raises(ValueError, match=told):
        CorporaConfig(parts=parts)
    for allowed in (parts[:1] * 2, parts[::2]):
        assert CorporaConfig(parts=allowed).parts == allowed
    assert CorporaConfig(parts=parts, tags=True).parts == parts
