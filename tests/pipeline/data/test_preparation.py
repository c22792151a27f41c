"""A corpus is prepared whole or not at all, and again only where something that matters has changed."""

import json
import multiprocessing
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.data.cleaning import normalise
from pipeline.data.config import CorporaConfig
from pipeline.data.preparation import Prepared, prepare, print_report
from tests.pipeline.data.conftest import changed, write_lines


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


def test_a_setting_that_matters_makes_new_data(configuration):
    sections = [
        {"cleaning": {"unicode_form": "NFKC"}},
        {"tokenizer": {"vocab_size": 48}},
        {"corpora": {"encoding": "latin-1"}},
    ]
    assert len({prepare(changed(configuration, **section)).fingerprint for section in [{}, *sections]}) == 4


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

    monkeypatch.setattr("pipeline.data.encoding.train_tokenizers", train)
    with pytest.raises(ValueError, match="enough"):
        prepare(changed(configuration, tokenizer={"sample_pairs": 20}, preparation={"shard_pairs": 7, "workers": 1}))
    assert [int(text.split()[1]) for text in seen] == list(range(0, 60, 3))


def test_one_catalog_of_many_messages_gives_as_many_held_out_pairs_as_are_asked_for(configuration, tmp_path):
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n'
    messages = (f'msgid "message {number}"\nmsgstr "Nachricht {number}"\n' for number in range(600))
    (tmp_path / "de.po").write_text(header + "".join(messages), encoding="utf-8")
    corpora = CorporaConfig(kind="gettext", train=[str(tmp_path / "de.po")], valid_size=30, test_size=30)
    with pytest.warns(UserWarning, match="whole groups .* would be 600 pairs for valid instead of 30"):
        prepared = prepare(replace(configuration, corpora=corpora))
    assert [len(rows) for rows in prepared[:3]] == [540, 30, 30]
    held_out = {*prepared.valid["source"], *prepared.test["source"]}
    assert len(held_out) == 60 and held_out.isdisjoint(prepared.train["source"])


DAMAGES = [
    ("train-00000.arrow", lambda content: content[:-1]),
    ("train-00000.arrow", lambda content: content.replace(b"xx 7 ", b"\xff" * 5)),  # no text
    ("train-00000.arrow", lambda content: re.sub(rb"([\x04-\x30]\0\0\0){9}", b"\xff" * 36, content)),  # no ids
    ("valid-00000.arrow", lambda content: re.sub(rb"([\x04-\x30]\0\0\0){9}", b"\x40\0\0\0" * 9, content)),  # of 56
    ("valid-00000.arrow", lambda content: b""),
    ("test-00000.arrow", None),
    ("train-00001.arrow", lambda content: b"of another corpus"),
    ("tokenizer.model", lambda content: content[:-1] + b"?"),
    ("report.json", lambda content: content[:-1]),
]


def test_a_file_that_is_missing_cut_damaged_or_foreign_is_named_with_the_remedy(configuration):
    prepare(configuration)
    folder = Path(configuration.output.data)
    for name, damage in DAMAGES:
        path = folder / name
        whole = path.read_bytes() if path.exists() else None
        path.unlink() if damage is None else path.write_bytes(damage(whole))
        for use in (lambda: Prepared.load(folder), lambda: prepare(configuration)):
            with pytest.raises(
                ValueError, match=rf"{name} is missing, or not as it was written: delete {folder}, and "
            ):
                use()
        path.unlink(missing_ok=True) if whole is None else path.write_bytes(whole)
    assert len(prepare(configuration).train) == 60


def test_a_page_that_is_missing_is_written_again(configuration):
    prepare(configuration)
    page = Path(configuration.output.data) / "report.html"
    written = page.read_bytes()
    page.unlink()
    prepare(configuration)
    assert page.read_bytes() == written


def test_a_folder_in_the_place_of_a_file_is_refused(configuration, tmp_path):
    (tmp_path / "texts").mkdir()
    files = [str(tmp_path / "texts"), configuration.corpora.train[1]]
    with pytest.raises(
        ValueError, match=r"texts is a folder where a file is needed: name the file in it, or all as .*/\*"
    ):
        prepare(changed(configuration, corpora={"train": files}))
