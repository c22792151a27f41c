import fcntl
from collections import Counter
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from threading import Timer

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import CorporaConfig, PreparationConfig
from pipeline.data.arrow import map_arrow
from pipeline.data.config import CorpusConfig
from pipeline.data.corpora import read_pairs
from pipeline.data.execution import Workers
from pipeline.data.preparation import prepare
from pipeline.data.report_page import report_page
from pipeline.data.shards import read_json
from pipeline.data.streaming import Place, Stream, WindowMaker
from tests.pipeline.data.conftest import write_lines

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def streamed(configuration, tmp_path):
    """``streamed(corpora={...})``: the configuration with a stream, here made in this process, in shards of ten."""

    def change(**sections):
        changed = replace(
            configuration,
            corpora=replace(configuration.corpora, stream_window=25),
            preparation=PreparationConfig(workers=1, shard_pairs=10),
            output=replace(configuration.output, run=str(tmp_path / "run")),
        )
        for name, settings in sections.items():
            changed = replace(changed, **{name: replace(getattr(changed, name), **settings)})
        prepare(changed)
        return changed

    return change


@pytest.fixture
def windows(tmp_path):
    """``windows(configuration)``: the folders of one window after the other."""

    def make(configuration, number=0, begin=None, least=1, folder="windows"):
        (tmp_path / folder).mkdir(exist_ok=True)
        begin = begin or [Place()] * len(configuration.corpora.each)
        with Workers(configuration.preparation) as workers:
            maker = WindowMaker(configuration, tmp_path / folder, least, workers)
            for each in count(number):
                maker.make(each, begin)
                yield (window := tmp_path / folder / f"{each:06}")
                begin = [Place(*place) for place in read_json(window / "window.json")["end"]]

    return make


def sources(window: Path) -> list[str]:
    return [text for path in sorted(window.glob("*.arrow")) for text in map_arrow(path)["source"].to_pylist()]


def lines(configuration, split: str) -> list[str]:
    return Path(getattr(configuration.corpora, split)[0]).read_text().splitlines()


def test_every_pass_reads_each_pair_once_in_the_order_of_the_corpus(streamed, windows):
    configuration = streamed()
    read = [sources(window) for window in islice(windows(configuration), 6)]
    assert [len(window) for window in read] == [25] * 6
    assert [text for window in read for text in window] == (lines(configuration, "train") * 3)[:150]


def test_what_a_window_holds_depends_on_where_it_begins_alone(streamed, windows):
    configuration = streamed()
    *_, (first, second) = zip(
        islice(windows(configuration), 4), islice(windows(configuration, folder="b"), 4), strict=True
    )
    third = next(windows(configuration, 3, [Place(1, 15)], folder="c"))
    in_other_shards = replace(configuration, preparation=PreparationConfig(workers=1, shard_pairs=4))
    fourth = next(windows(in_other_shards, 3, [Place(1, 15)], folder="d"))
    (one, *others) = (
        [map_arrow(path).to_pylist() for path in sorted(w.glob("*.arrow"))] for w in (first, second, third, fourth)
    )
    rows = [row for shard in one for row in shard]
    assert all([row for shard in other for row in shard] == rows for other in others)
    assert [row["source"] for row in rows] == lines(configuration, "train")[15:40]


def test_preparing_reads_no_more_than_a_window(streamed):
    configuration = streamed()
    report = prepare(configuration).report
    assert report["read"]["train"] == report["pairs"]["train"] == 25
    assert report["pairs"]["test"] == 7


def test_the_report_says_how_much_of_a_stream_it_is_of(streamed, configuration):
    configuration_of_stream = streamed()
    said = "A stream: what is said here of training data is of the first 25 pairs alone"
    assert said in (Path(configuration_of_stream.output.data) / "report.html").read_text(encoding="utf-8")
    assert prepare(configuration_of_stream).report["stream_window"] == 25
    whole = prepare(configuration).report
    assert whole["stream_window"] == 0 and "A stream" not in report_page(whole)


def test_what_is_held_out_never_comes_by_again(streamed, windows):
    """Not even where its overlap with named data may stay."""
    configuration = streamed(
        corpora=dict(valid=[], test=[], valid_size=4, test_size=3, stream_window=30), cleaning=dict(drop_overlap=False)
    )
    prepared = prepare(configuration)
    held_out = {*prepared.valid["source"], *prepared.test["source"]}
    assert len(held_out) == 7
    read = [text for window in islice(windows(configuration), 4) for text in sources(window)]
    assert Counter(read) == Counter(text for text in lines(configuration, "train") * 2 if text not in held_out)


def test_nothing_is_held_out_later_where_the_beginning_had_too_little(streamed, windows, tmp_path):
    texts = [f"number {n % 4}" for n in range(20)] + [f"another {n}" for n in range(20)]
    files = [write_lines(tmp_path / f"mine.{side}", [f"{side} {text}" for text in texts]) for side in "ab"]
    settings = dict(train=files, test=[], test_size=3, stream_window=20)
    first, second = islice(windows(streamed(corpora=settings, tokenizer=dict(vocab_size=30))), 2)
    assert sources(first) == [f"a number {n}" for n in range(4)]
    assert sources(second) == [f"a another {n}" for n in range(20)]


def test_windows_are_cleaned_as_a_prepared_corpus_is(streamed, windows, tmp_path):
    """Duplicates within a window go, and pairs that are, or nearly are, in valid."""
    held_out = "the old man and his dog walk along the river every morning"
    texts = ["one red cat", "two blue dogs", "one red cat", "", held_out.upper(), held_out.replace("old", "young")]
    texts += ["six green birds", "one red cat", "nine black horses", "ten"]
    files = [write_lines(tmp_path / f"mine.{side}", [f"{side} {t}" if t else "" for t in texts]) for side in "ab"]
    valid = [write_lines(tmp_path / f"held.{side}", [f"{side} {held_out}"]) for side in "ab"]
    settings = dict(train=files, valid=valid, test=valid, stream_window=6)
    configuration = streamed(corpora=settings, cleaning=dict(near_overlap=0.6), tokenizer=dict(vocab_size=40))
    first, second = islice(windows(configuration), 2)
    assert sources(first) == ["a one red cat", "a two blue dogs"]
    assert sources(second) == [
        "a six green birds",
        "a one red cat",
        "a nine black horses",
        "a ten",
        "a one red cat",
        "a two blue dogs",
    ]


def test_each_corpus_gives_the_share_of_its_weight_and_begins_again_by_itself(streamed, windows, tmp_path):
    small = [write_lines(tmp_path / f"small.{side}", [f"{side} small {n} ra" for n in range(4)]) for side in "ab"]
    given = streamed().corpora
    parts = [
        CorpusConfig(train=given.train, valid=given.valid, test=given.test, weight=1.5),
        CorpusConfig(train=small, weight=0.5),
    ]
    configuration = replace(streamed(), corpora=CorporaConfig(parts=parts, stream_window=40))
    prepare(configuration)
    first, second = islice(windows(configuration), 2)
    counts = [Counter(text for text in sources(window) if "small" in text) for window in (first, second)]
    assert sorted(counts[0].values()) == sorted(counts[1].values()) == [2, 2, 3, 3]
    assert {*(counts[0] + counts[1]).values()} == {5}
    assert [len(sources(window)) for window in (first, second)] == [40, 40]
    assert read_json(second / "window.json")["end"] == [[1, 0], [5, 0]]
    assert sorted({row["corpus"] for path in first.glob("*.arrow") for row in map_arrow(path).to_pylist()}) == [0, 1]


def test_a_window_reads_on_until_there_is_enough_to_train_on(streamed, windows, tmp_path):
    texts = ["one red cat"] * 20 + ["two blue dogs", "three"]
    files = [write_lines(tmp_path / f"mine.{side}", [f"{side} {text}" for text in texts]) for side in "ab"]
    configuration = streamed(corpora=dict(train=files, stream_window=10), tokenizer=dict(vocab_size=30))
    assert sources(next(windows(configuration, least=4, folder="b"))).count("a two blue dogs") == 1
    with pytest.raises(
        ValueError, match=r"of \d+ pairs left for a window, less than 99 batches per update: raise corpora"
    ):
        next(windows(configuration, least=99))


def test_settings_that_a_stream_cannot_have_are_refused(configuration):
    with pytest.raises(
        ValueError, match="corpora.temperature=5 needs sizes, which a stream does not know: set weights"
    ):
        CorporaConfig(stream_window=10, temperature=5)
    with pytest.raises(
        ValueError, match=r"corpora.stream_window=1 must be 0 \(off\) or at least a pair of each corpus"
    ):
        CorporaConfig(stream_window=1, parts=[CorpusConfig()] * 2)
    with pytest.raises(ValueError, match="trainer.max_epochs of a stream does not tell: set trainer.max_steps too"):
        replace(
            configuration,
            corpora=replace(configuration.corpora, stream_window=10),
            trainer=replace(configuration.trainer, max_steps=0, max_epochs=3),
        )


# The process that makes them


def test_two_windows_at_most_are_on_the_disk_and_nothing_stays(streamed, capsys):
    configuration = streamed(preparation=dict(workers=1))
    stream, other = Stream(configuration), Stream(configuration)
    run = Path(configuration.output.run)
    run.mkdir()
    left = open(run / ".stream-0.lock", "w")  # noqa: SIM115  (by a training that was killed just now)
    fcntl.flock(left, fcntl.LOCK_EX)
    Timer(0.1, left.close).start()
    stream.start(1, node=0, makes=True)
    assert f"waiting for another process that makes windows in {run}/stream-0" in capsys.readouterr().err
    other.start(1, node=0, makes=False)
    expected = (lines(configuration, "train") * 2)[:100]
    window, read = None, []
    try:
        for number in range(4):
            window = stream.open(number, window.end if window else [Place()])
            assert other.open(number, []) == window
            assert {path.name.removesuffix(".new") for path in stream.folder.iterdir()} <= {
                f"{number:06}",
                f"{number + 1:06}",
            }
            read += [text for path in window.shards for text in map_arrow(path)["source"].to_pylist()]
        Path(configuration.corpora.train[0]).unlink()
        with pytest.raises(FileNotFoundError, match="train.xx"):
            for number in count(4):
                window = stream.open(number, window.end)
        stream.process.kill()
        with pytest.raises(ValueError, match=r"reads corpora.stream_window=25 pairs at a time was killed"):
            stream.open(99, window.end)
    finally:
        other.close()
        stream.close()
    assert read == expected
    assert not stream.folder.exists()


# Reading from a row on


@pytest.fixture
def parquet(tmp_path) -> list[str]:
    """Two files of 23 and 5 rows, in groups of five."""
    files = []
    for name, rows in (("a", range(23)), ("b", range(23, 28))):
        files.append(str(tmp_path / "set" / f"train-{name}.parquet"))
        Path(files[-1]).parent.mkdir(exist_ok=True)
        table = pa.table({"source": [f"s{row}" for row in rows], "target": [f"t{row}" for row in rows]})
        pq.write_table(table, files[-1], row_group_size=5)
    return files


@pytest.mark.parametrize("kind", ["parquet", "hub", "text"])
def test_reading_may_begin_at_any_row(kind, parquet, tmp_path):
    names = {"parquet": parquet, "hub": ["train"], "text": []}[kind]
    for side in "st" if kind == "text" else "":
        names.append(write_lines(tmp_path / f"text.{side}", [f"{side}{row}" for row in range(28)]))
    corpus = CorpusConfig(kind=kind, name=str(tmp_path / "set"))
    for start in (0, 1, 5, 22, 23, 25, 28, 99):
        expected = [(f"s{row}", f"t{row}") for row in range(start, 28)]
        assert list(read_pairs(corpus, names, start)) == expected
        backwards = list(read_pairs(replace(corpus, reverse=True), names, start))
        assert backwards == [(target, source) for source, target in expected]


def test_row_groups_before_the_first_row_are_not_read(parquet):
    path = Path(parquet[0])
    content = bytearray(path.read_bytes())
    begin = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
    content[begin : begin + 20] = b"\xff" * 20
    path.write_bytes(content)
    corpus = CorpusConfig(kind="parquet")
    assert next(read_pairs(corpus, parquet, 5)) == ("s5", "t5")
    with pytest.raises(ValueError, match="is not Parquet, or broken"):
        next(read_pairs(corpus, parquet, 4))


def test_a_set_of_the_hub_is_read_as_it_comes(parquet, tmp_path, monkeypatch):
    """Nothing is fetched beforehand: what is wrong with a later file is found out there."""
    monkeypatch.setattr(datasets.DatasetBuilder, "download_and_prepare", None)
    pq.write_table(pa.table({"source": ["s"] * 3000, "target": ["t"] * 3000}), parquet[0])
    Path(parquet[1]).write_bytes(Path(parquet[1]).read_bytes()[:-300])
    rows = read_pairs(CorpusConfig(kind="hub", name=str(tmp_path / "set")), ["train"])
    assert next(rows) == ("s", "t")
    with pytest.raises(ValueError, match=f"^corpora.name={tmp_path}/set: .*[Pp]arquet"):
        list(rows)
