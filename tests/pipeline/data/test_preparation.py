import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.cli import write_configuration
from pipeline.config import Configuration, OutputConfig, TokenizerConfig
from pipeline.data.cleaning import normalise
from pipeline.data.config import CleaningConfig, CorporaConfig, CorpusConfig, PreparationConfig
from pipeline.data.execution import Piece, Workers
from pipeline.data.preparation import Prepared, prepare, print_report
from tests.pipeline.data.conftest import write_lines

ROOT = Path(__file__).parents[3]


def changed(configuration, **sections):
    """``changed(configuration, cleaning={"unicode_form": "NFKC"})``"""
    new = {name: replace(getattr(configuration, name), **values) for name, values in sections.items()}
    return replace(configuration, **new)


def times(folder: str) -> list[int]:
    return sorted(path.stat().st_mtime_ns for path in Path(folder).rglob("*"))


def test_text_is_encoded_as_it_will_be_when_translating(configuration):
    prepared = prepare(configuration)
    for rows in prepared[:3]:
        for side, tokenizer in zip(("source", "target"), prepared.tokenizers, strict=True):
            assert list(rows[f"{side}_ids"]) == tokenizer.encode([normalise(text) for text in rows[side]])
    assert len(prepared.train) == 60
    assert set(prepared.train.column_names) == {"source", "target", "source_ids", "target_ids", "corpus"}


def test_references_are_untouched_and_training_text_is_normalised(configuration):
    write_lines(Path(configuration.corpora.train[0]), [f"xx \u00a0 e\u0301 {number}" for number in range(60)])
    prepared = prepare(configuration)
    assert prepared.test["source"][0].startswith("xx t\u00a0 ")
    assert prepared.train["source"][7] == "xx é 7"


def test_the_tokenizers_learn_from_the_training_side_alone(configuration):
    write_lines(Path(configuration.corpora.test[0]), ["%%%%"] * 7)
    prepared = prepare(configuration)
    assert prepared.report["tokens"]["test"]["source"]["unknown_share"] > 0
    assert prepared.report["tokens"]["train"]["source"]["unknown_share"] == 0


def test_the_report_adds_up(configuration):
    write_lines(Path(configuration.corpora.train[0]), ["", "same"] + [f"xx {number % 50}" for number in range(58)])
    write_lines(Path(configuration.corpora.train[1]), ["yy", "same"] + [f"yy {number % 50}" for number in range(58)])
    report = prepare(configuration).report
    assert report["read"] == {"train": 60, "valid": 7, "test": 7}
    assert report["pairs"] == {"train": 50, "valid": 7, "test": 7}
    assert report["dropped"] == {"duplicate": 8, "empty": 1, "identical_sides": 1}
    assert report["examples"]["identical_sides"] == [["same", "same"]]
    assert [Path(source["path"]).name for source in report["sources"][:2]] == ["train.xx", "train.yy"]
    assert report == json.loads((Path(configuration.output.data) / "report.json").read_text(encoding="utf-8"))


def test_the_report_is_printed_on_stderr(configuration, capsys):
    print_report(prepare(configuration).report)
    out, err = capsys.readouterr()
    assert out == ""
    assert "60 training pairs read, dropped: nothing" in err
    assert "56 pieces" in err


def test_nothing_is_done_again_while_nothing_that_matters_changed(configuration):
    fingerprint = prepare(configuration).fingerprint
    before = times(configuration.output.data)
    other = changed(configuration, batching={"tokens_per_batch": 7}, preparation={"shard_pairs": 7})
    for name in ("train", "valid", "test"):  # the same content elsewhere
        for path in getattr(configuration.corpora, name):
            os.rename(path, f"{path}.moved")
        paths = [f"{path}.moved" for path in getattr(configuration.corpora, name)]
        other = changed(other, corpora={name: paths})
    assert prepare(other).fingerprint == fingerprint
    assert times(configuration.output.data) == before


@pytest.mark.parametrize(
    "section",
    [{"cleaning": {"unicode_form": "NFKC"}}, {"tokenizer": {"vocab_size": 48}}, {"corpora": {"encoding": "latin-1"}}],
)
def test_a_setting_that_matters_makes_new_data(configuration, section):
    assert prepare(changed(configuration, **section)).fingerprint != prepare(configuration).fingerprint


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_replaced_by_one_of_equal_size_and_time_is_noticed(configuration, tmp_path, suffix):
    target = write_lines(tmp_path / "colours.yy", ["rot", "blau", "grün"])
    colours = tmp_path / f"colours.xx{suffix}"
    corpora = CorporaConfig(train=[str(colours), target], valid_size=0, test_size=0)
    configuration = changed(replace(configuration, corpora=corpora), tokenizer={"vocab_size": 23})
    for colour in ("pink", "blue"):
        write_lines(colours, ["red", colour, "green"])
        os.utime(colours, (0, 0))
        assert prepare(configuration).train["source"][1] == colour


def test_splits_may_be_empty(configuration):
    corpora = replace(configuration.corpora, valid=[], test=[], valid_size=0, test_size=0)
    prepared = prepare(replace(configuration, corpora=corpora))
    assert [len(rows) for rows in prepared[:3]] == [60, 0, 0]
    assert prepared.valid.column_names == prepared.train.column_names
    assert prepared.report["tokens"]["valid"]["source"]["total"] == 0


def test_when_nothing_is_left_the_counts_are_told(configuration, tmp_path):
    sides = (["same", "same too", "x"], ["same", "same too", "sehr " * 40])
    files = [write_lines(tmp_path / f"bad.{side}", lines) for side, lines in zip("xy", sides, strict=True)]
    bad = replace(configuration, corpora=CorporaConfig(train=files, valid_size=0, test_size=0))
    with pytest.raises(ValueError, match=r"0 of 3 pairs left to train on \(.*2 identical_sides, 1 length_ratio"):
        prepare(bad)
    assert not Path(configuration.output.data).exists()


def test_a_failure_leaves_the_old_data(configuration, tmp_path):
    fingerprint = prepare(configuration).fingerprint
    with pytest.raises(ValueError, match="set it to at least"):
        prepare(changed(configuration, tokenizer={"vocab_size": 9}))
    assert Prepared.load(configuration.output.data).fingerprint == fingerprint
    prepare(configuration)
    assert [path.name for path in tmp_path.glob(".data*")] == [".data.lock"]


def test_a_folder_that_holds_something_else_is_refused(configuration, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"output.data=.*data holds something else"):
        prepare(configuration)
    with pytest.raises(ValueError, match="data is not a prepared corpus, .*: run scripts/prepare.py"):
        Prepared.load(tmp_path / "data")
    assert os.listdir(tmp_path / "data") == ["thesis.tex"]


def test_a_file_is_never_taken_for_the_folder(configuration, tmp_path):
    (tmp_path / "data").write_text("a corpus", encoding="utf-8")
    with pytest.raises(ValueError, match=r"output.data=.*data holds something else"):
        prepare(configuration)
    assert (tmp_path / "data").read_text("utf-8") == "a corpus"


def test_data_of_another_version_is_made_anew(configuration, monkeypatch):
    prepare(configuration)
    monkeypatch.setattr("pipeline.data.preparation.FORMAT", 99)
    with pytest.raises(ValueError, match="or one of another version"):
        Prepared.load(configuration.output.data)
    assert prepare(configuration).report["format"] == 99


def test_an_empty_folder_is_filled(configuration, tmp_path):
    (tmp_path / "data").mkdir()
    assert len(prepare(configuration).train) == 60


def test_processes_that_start_together_get_one_corpus(configuration):
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert len(set(pool.map(_fingerprint, [configuration] * 3))) == 1
    assert len(Prepared.load(configuration.output.data).train) == 60


def _fingerprint(configuration):
    return prepare(configuration).fingerprint


def test_separate_vocabularies_encode_their_own_side(configuration):
    apart = {"model": {"tied_embeddings": "target"}, "tokenizer": {"joint": False, "vocab_size": 40}}
    prepared = prepare(changed(configuration, **apart))
    assert not prepared.tokenizers.joint
    assert list(prepared.valid["target_ids"]) == prepared.tokenizers.target.encode(list(prepared.valid["target"]))
    assert prepare(configuration).tokenizers.joint
    assert sorted(path.name for path in Path(configuration.output.data).glob("*.model")) == ["tokenizer.model"]


@pytest.fixture
def two_corpora(tmp_path) -> Configuration:
    """Two hundred pairs that are alike to no other, and thirty in another language, of which twenty stand in both."""
    words = [f"{number * 7919 % 9973:04}{number * 104729 % 99991:05}" for number in range(900)]
    texts = [" ".join(words[number * 3 : number * 3 + 3]) for number in range(300)]
    parts = []
    for language, rows in (("yy", range(200)), ("zz", range(180, 210))):
        lines = {side: [f"{side} {texts[row]}" for row in rows] for side in ("xx", "yy")}
        files = [write_lines(tmp_path / f"{language}.{side}", lines[side]) for side in lines]
        parts.append(CorpusConfig(train=files, target_language=language))
    return Configuration(
        corpora=CorporaConfig(parts=parts, valid_size=10, test_size=10),
        tokenizer=TokenizerConfig(vocab_size=60),
        preparation=PreparationConfig(workers=1),
        output=OutputConfig(data=str(tmp_path / "data")),
    )


def content(prepared: Prepared) -> tuple:
    """All that is prepared, without the times and places of it."""
    return [rows.to_dict() for rows in prepared[:3]], prepared.tokenizers.source.model, prepared.report


def test_several_corpora_are_one_with_a_number_each_and_counted_apart(two_corpora):
    prepared = prepare(two_corpora)
    assert [(part["name"], part["read"]) for part in prepared.report["corpora"]] == [
        ("yy.xx yy.yy", 200),
        ("zz.xx zz.yy", 30),
    ]
    assert [part["dropped"] for part in prepared.report["corpora"]] == [{}, {"duplicate": 20}]
    assert [part["pairs"] for part in prepared.report["corpora"]] == [
        Counter(prepared.train["corpus"])[number] for number in range(2)
    ]
    assert Counter(corpus for rows in prepared[:3] for corpus in rows["corpus"]) == {0: 200, 1: 10}


def test_a_tag_before_a_source_asks_for_its_corpus_s_language(two_corpora):
    prepared = prepare(changed(two_corpora, corpora={"tags": True}))
    tags = [prepared.tokenizers.source.tags[language] for language in ("yy", "zz")]
    for rows in prepared[:3]:
        assert [ids[0] for ids in rows["source_ids"]] == [tags[corpus] for corpus in rows["corpus"]]
        assert not any(tag in ids for ids in rows["target_ids"] for tag in tags)


def of_second(configuration: Configuration, **values) -> Configuration:
    first, second = configuration.corpora.parts
    return changed(configuration, corpora={"parts": [first, replace(second, **values)]})


def test_a_corpus_may_be_cleaned_in_its_own_way(two_corpora):
    report = prepare(of_second(two_corpora, cleaning={"max_characters": 10})).report
    assert [part["dropped"] for part in report["corpora"]] == [{}, {"too_long": 30}]


@pytest.mark.parametrize(
    ("cleaning", "complaint"),
    [
        (
            {"max_chars": 3},
            r"corpora.parts\[1\].cleaning: max_chars is no setting of cleaning: choose among unicode_form,",
        ),
        ({"drop_overlap": False}, r"drop_overlap is the same for all corpora: set cleaning.drop_overlap=False"),
        ({"max_words": "few"}, "max_words=few must be a value of type int"),
        ({"markup": "eat"}, "markup=eat must be keep or strip or drop"),
        ({"max_length_ratio": 0}, "cleaning.max_length_ratio=0 must be at least 1"),
    ],
)
def test_a_wrong_setting_of_one_corpus_is_one_line(two_corpora, cleaning, complaint):
    with pytest.raises(ValueError, match=complaint):
        prepare(of_second(two_corpora, cleaning=cleaning))


def test_how_the_work_is_divided_changes_nothing(two_corpora):
    two_corpora = changed(two_corpora, cleaning={"near_duplicates": 0.5})
    expected = content(prepare(two_corpora))
    for preparation in ({"shard_pairs": 7}, {"shard_pairs": 50, "workers": 2}):
        divided = changed(two_corpora, preparation=preparation, output={"data": f"{two_corpora.output.data}.divided"})
        found = prepare(divided)
        assert len(list(Path(divided.output.data).glob("train-*.arrow"))) > 4
        assert content(found) == expected
        for path in Path(divided.output.data).iterdir():
            path.unlink()


def test_the_machines_of_a_cluster_do_the_same(two_corpora):
    distributed = pytest.importorskip("distributed")
    expected = content(prepare(two_corpora))
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        divided = changed(
            two_corpora,
            preparation={"scheduler": cluster.scheduler_address, "shard_pairs": 20},
            output={"data": f"{two_corpora.output.data}.divided"},
        )
        assert content(prepare(divided)) == expected
        used = client.run(lambda: "pipeline.data.shards" in sys.modules)
    assert list(used.values()) == [True, True]


def test_a_scheduler_that_is_not_there_is_one_line(two_corpora, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("pipeline.data.execution.PATIENCE", 0.5)
    nowhere = changed(two_corpora, preparation={"scheduler": "tcp://127.0.0.1:9", "shard_pairs": 50})
    with pytest.raises(ValueError, match="^preparation.scheduler=tcp://127.0.0.1:9 cannot be reached: [^\n]*$"):
        prepare(nowhere)


@pytest.mark.parametrize("after", [0, 3, 8, 14])
def test_what_was_done_before_an_interruption_is_not_done_again(two_corpora, monkeypatch, after):
    two_corpora = changed(two_corpora, preparation={"shard_pairs": 50})
    done = []

    def do(piece):
        if len(done) == after:
            raise KeyboardInterrupt
        piece.function(*piece.arguments, piece.output)
        done.append(piece.output.parent.name)

    expected = content(prepare(replace(two_corpora, output=OutputConfig(data=f"{two_corpora.output.data}.whole"))))
    with monkeypatch.context() as patch:
        patch.setattr(Piece, "do", do)
        with pytest.raises(KeyboardInterrupt):
            prepare(two_corpora)
        after = -1
        assert content(prepare(two_corpora)) == expected
    assert Counter(done) == {"clean": 5, "near_overlap": 5, "encoded": 9}


def test_a_killed_process_leaves_no_corpus_and_no_workers_and_the_next_goes_on(two_corpora, tmp_path, monkeypatch):
    two_corpora = changed(two_corpora, preparation={"shard_pairs": 5, "workers": 2})
    write_configuration(two_corpora, tmp_path / "config.yaml")
    command = [sys.executable, "scripts/prepare.py", "--config", str(tmp_path / "config.yaml")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    while len(list(tmp_path.glob(".data.work/clean/*.json"))) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=20)  # the workers have these pipes too
    assert not (tmp_path / "data").exists()

    done = []
    do = Piece.do
    monkeypatch.setattr(Piece, "do", lambda piece: done.append(piece.output.parent.name) or do(piece))
    prepared = prepare(changed(two_corpora, preparation={"workers": 1}))
    assert done.count("clean") <= 46 - 3
    elsewhere = changed(two_corpora, output={"data": str(tmp_path / "elsewhere")}, preparation={"workers": 1})
    assert content(prepared) == content(prepare(elsewhere))


def test_work_of_other_settings_is_not_used(two_corpora, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.data.stages.Stages.learn", lambda stages: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(two_corpora)
    report = prepare(of_second(two_corpora, cleaning={"max_characters": 10})).report
    assert report["dropped"] == {"too_long": 30}


def test_a_worker_that_is_killed_is_one_line(tmp_path):
    pieces = [Piece(_die, (), tmp_path / str(number), 1) for number in range(4)]
    with (
        Workers(PreparationConfig(workers=2)) as workers,
        pytest.raises(ValueError, match="one of preparation.workers=2 processes was killed .*: lower it"),
    ):
        workers.do(pieces)


def _die(output):
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_is_nearly_held_out_and_near_duplicates_are_dropped(two_corpora, tmp_path):
    lines = [f"{side} one long sentence that is nearly the same as another" for side in ("xx", "yy")]
    train = [
        write_lines(tmp_path / f"t.{n}", [f"{line} {end}" for end in ("a", "b")] + [f"{n} other"])
        for n, line in enumerate(lines)
    ]
    corpora = CorporaConfig(train=train, valid_size=0, test_size=0)
    near = replace(
        two_corpora,
        corpora=corpora,
        cleaning=CleaningConfig(near_duplicates=0.7),
        tokenizer=TokenizerConfig(vocab_size=40),
    )
    assert prepare(near).report["dropped"] == {"near_duplicate": 1}
    test = [write_lines(tmp_path / f"test.{n}", [f"{line} c"]) for n, line in enumerate(("quite different", lines[1]))]
    assert prepare(changed(near, corpora={"test": test}, cleaning={"near_duplicates": 0})).report["dropped"] == {
        "near_overlap": 2
    }


def test_held_out_text_stays_as_it_was_read(configuration):
    lines = [f" xx\u00a0{number}  {number * 7919} " for number in range(60)]
    write_lines(Path(configuration.corpora.train[0]), lines)
    corpora = replace(configuration.corpora, valid=[], valid_size=10)
    prepared = prepare(replace(configuration, corpora=corpora))
    assert len(prepared.valid) == 10
    assert set(prepared.valid["source"]) <= set(lines)
    assert list(prepared.valid["source_ids"]) == prepared.tokenizers.source.encode(
        list(map(normalise, prepared.valid["source"]))
    )


def test_the_vocabulary_is_learned_from_so_many_pairs_at_even_distances(configuration, monkeypatch):
    seen = []

    def train(source, target, *_):
        seen.extend(source)
        raise ValueError("enough")

    monkeypatch.setattr("pipeline.data.stages.train_tokenizers", train)
    with pytest.raises(ValueError, match="enough"):
        prepare(changed(configuration, tokenizer={"sample_pairs": 20}, preparation={"shard_pairs": 7, "workers": 1}))
    assert [int(text.split()[1]) for text in seen] == list(range(0, 60, 3))
