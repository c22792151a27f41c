"""Corpora that are broken, prepared as a whole: the right data or one line, twice the same, and nothing by halves."""

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.config import Configuration, CorporaConfig, OutputConfig, TokenizerConfig
from pipeline.data.config import CorpusConfig, PreparationConfig
from pipeline.data.corpora import identity, read_pairs
from pipeline.data.preparation import Prepared, prepare
from tests.pipeline.data.breaking import SEEDS, broken, examples, files, little_time_and_memory
from tests.pipeline.data.conftest import changed, content, write_lines
from tests.pipeline.data.sword_modules import write_module


def prepared(configuration: Configuration) -> tuple | str:
    """What comes of preparing twice, which must be the same: data that adds up, or one line and no data."""
    answers = []
    for _ in range(2):
        try:
            answers.append(content(prepare(configuration)))
        except (ValueError, OSError) as error:
            assert type(error) is ValueError or getattr(error, "errno", None), repr(error)
            assert str(error).isprintable() and len(str(error)) < 1000
            assert not Path(configuration.output.data).exists()
            answers.append(str(error))
    assert answers[0] == answers[1]
    if not isinstance(answers[0], str):
        adds_up(Prepared.load(configuration.output.data))
    return answers[0]


def adds_up(prepared: Prepared) -> None:
    report = prepared.report
    assert report["pairs"] == {name: len(getattr(prepared, name)) for name in ("train", "valid", "test")}
    assert report["pairs"]["train"] + sum(report["dropped"].values()) == report["read"]["train"]
    assert len(prepared.train)
    for side, tokenizer in zip(("source", "target"), prepared.tokenizers, strict=True):
        assert list(prepared.train[f"{side}_ids"]) == tokenizer.encode(list(prepared.train[side]))


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Configuration:
    """Without a tokenizer to learn, and with shards of two pairs."""
    folder = tmp_path_factory.mktemp("plain")
    lines = [
        write_lines(folder / f"plain.{side}", [f"a {side}", f"b {side}", f"eins zwei drei {side}"]) for side in "xy"
    ]
    learned = Configuration(
        corpora=CorporaConfig(train=lines, valid_size=0, test_size=0),
        tokenizer=TokenizerConfig(vocab_size=300, byte_fallback=True),
        preparation=PreparationConfig(workers=1, shard_pairs=2),
        output=OutputConfig(data=str(folder / "plain")),
    )
    prepare(learned)
    return changed(learned, tokenizer={"model": [str(folder / "plain" / "tokenizer.model")]})


@examples(15)
@given(data=st.data(), seed=st.sampled_from(sorted(SEEDS)), split=st.sampled_from(("train", "train", "valid")))
def test_a_broken_corpus_is_prepared_or_refused_in_one_line(plain, data, seed, split):
    kind, name, whole = SEEDS[seed]
    with tempfile.TemporaryDirectory() as folder:
        names = {}
        for each, text in (("train", whole), (split, data.draw(broken(whole)))):
            path = Path(folder) / f"{each}-{name}"
            names[each] = files(path, kind, text)
        encoding = "utf-16" if name.endswith("utf16") else "utf-8"
        corpora = CorporaConfig(kind=kind, encoding=encoding, valid_size=0, test_size=0, **names)
        cleaning = {"drop_identical": False, "drop_overlap": False, "near_overlap": 0}
        if data.draw(st.booleans()):
            plain = changed(plain, tokenizer={"model": [], "vocab_size": data.draw(st.sampled_from((30, 300)))})
        with little_time_and_memory():
            prepared(changed(plain, cleaning=cleaning, corpora=vars(corpora), output={"data": f"{folder}/data"}))


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_corpus_that_breaks_off_is_refused_however_often_it_is_asked_for(plain, tmp_path, split):
    """What was read before it broke off is there the second time, in shards."""
    whole = gzip.compress(b"".join(b"%0400d\n" % number for number in range(2000)), mtime=0)
    names = {"train": files(tmp_path / "whole.gz", "text", whole)}
    names[split] = files(tmp_path / "off.gz", "text", whole[:-20])
    configuration = changed(
        plain, corpora=names, preparation={"shard_pairs": 500}, output={"data": str(tmp_path / "d")}
    )
    assert "off.gz is truncated or corrupt" in prepared(configuration)
    assert list((tmp_path / ".d.work" / "text" / "raw" / f"{split}-0").glob("*.arrow"))


@examples(15)
@given(data=st.data(), packing=st.sampled_from(("", "ZIP", "BZIP2", "XZ")))
def test_a_broken_module_gives_verses_or_one_line(data, packing):
    verses = {(chapter, verse): f"verse {verse} of <w>{chapter}</w>" for chapter in (1, 2) for verse in (1, 2, 3)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = sorted(write_module(folder, "english", verses, packing).iterdir()) + list(folder.glob("mods.d/*"))
        path = data.draw(st.sampled_from(paths))
        path.write_bytes(data.draw(broken(path.read_bytes())))
        with little_time_and_memory():
            rows_or_one_line(CorpusConfig(kind="sword", sword_folder=name))


def rows_or_one_line(corpus: CorpusConfig) -> None:
    try:
        identity(corpus)
        for row in read_pairs(corpus, corpus.train):
            "".join(text or "" for text in row).encode()
    except (ValueError, OSError) as error:
        assert type(error) is ValueError or getattr(error, "errno", None), repr(error)
        assert str(error).isprintable() and len(str(error)) < 1000


FOLDER = {
    "train.jsonl": b'{"source": "one", "target": "eins"}\n{"source": "two", "target": "zwei"}\n',
    "train.csv": b"source,target\none,eins\ntwo,zwei\n",
    "train.parquet": SEEDS["parquet"][2],
    "README.md": b"---\nconfigs:\n- config_name: a\n  data_files:\n  - split: train\n    path: train.jsonl\n---\n",
}


@examples(15)
@given(st.sampled_from(sorted(FOLDER)).flatmap(lambda name: st.tuples(st.just(name), broken(FOLDER[name]))))
@example(("train.jsonl", b"null\n" + FOLDER["train.jsonl"]))
@example(("train.jsonl", b"null"))
@example(("train.json", b'[null, {"source": "one", "target": "eins"}]'))
def test_a_broken_folder_of_a_data_set_gives_rows_or_one_line(file):
    name, content = file
    with tempfile.TemporaryDirectory() as folder:
        if name == "README.md":
            (Path(folder) / "train.jsonl").write_bytes(FOLDER["train.jsonl"])
        (Path(folder) / name).write_bytes(content)
        with little_time_and_memory():
            rows_or_one_line(CorpusConfig(kind="hub", name=folder, train=["train"]))
