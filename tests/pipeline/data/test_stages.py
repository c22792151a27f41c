"""Several corpora become one, however the work is divided, and what was done once is not done again."""

import multiprocessing
import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import Configuration, OutputConfig, TokenizerConfig
from pipeline.data.config import CleaningConfig, CorporaConfig
from pipeline.data.execution import Piece
from pipeline.data.preparation import prepare
from tests.pipeline.data.conftest import changed, content, write_lines


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


@pytest.mark.parametrize("after", [3, 8, 14])
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


def prepare_in_a_group(configuration: Configuration) -> None:
    os.setsid()
    prepare(configuration)


def test_a_killed_process_leaves_no_corpus_and_no_workers_and_the_next_goes_on(two_corpora, tmp_path, monkeypatch):
    two_corpora = changed(two_corpora, preparation={"shard_pairs": 12, "workers": 2})
    process = multiprocessing.get_context("fork").Process(target=prepare_in_a_group, args=(two_corpora,))
    process.start()
    while len(list(tmp_path.glob(".data.work/text/clean/*.json"))) < 3:
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    assert not (tmp_path / "data").exists()
    with pytest.raises(ProcessLookupError):
        for _ in range(200):
            os.killpg(process.pid, 0)
            time.sleep(0.1)

    done = []
    do = Piece.do
    monkeypatch.setattr(Piece, "do", lambda piece: done.append(piece.output.parent.name) or do(piece))
    prepared = prepare(changed(two_corpora, preparation={"workers": 1}))
    assert done.count("clean") <= 20 - 3
    elsewhere = changed(two_corpora, output={"data": str(tmp_path / "elsewhere")}, preparation={"workers": 1})
    assert content(prepared) == content(prepare(elsewhere))


def test_work_of_other_settings_is_not_used(two_corpora, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.data.preparation.learn", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(two_corpora)
    report = prepare(of_second(two_corpora, cleaning={"max_characters": 10})).report
    assert report["dropped"] == {"too_long": 30}


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


def files(configuration: Configuration) -> dict[str, bytes]:
    """What a preparation has left."""
    prepare(configuration)
    return {path.name: path.read_bytes() for path in Path(configuration.output.data).iterdir()}


def with_tags(configuration: Configuration, **values) -> Configuration:
    """The same text for other tokenizers, in another folder."""
    other = changed(configuration, tokenizer={"vocab_size": 70, "kind": "unigram"}, corpora={"tags": True})
    return changed(other, **values)


def test_another_vocabulary_needs_no_corpus(two_corpora, monkeypatch):
    two_corpora = changed(two_corpora, preparation={"shard_pairs": 50})
    expected = files(with_tags(two_corpora, output={"data": f"{two_corpora.output.data}.fresh"}))
    prepare(two_corpora)
    for name in ("load", "clean_shard", "find_near_overlap"):
        monkeypatch.setattr(f"pipeline.data.stages.{name}", None)
    assert files(with_tags(two_corpora)) == expected


def test_what_a_tokenizer_has_refused_is_not_read_and_cleaned_again(two_corpora, monkeypatch):
    with pytest.raises(ValueError, match="set it to at least"):
        prepare(changed(two_corpora, tokenizer={"vocab_size": 9}))
    monkeypatch.setattr("pipeline.data.corpora.read_pairs", None)
    monkeypatch.setattr("pipeline.data.stages.clean_shard", None)
    assert len(prepare(two_corpora).valid) == 10


def test_text_that_is_used_again_in_other_shards_is_not_mixed_up_after_an_interruption(two_corpora, monkeypatch):
    expected = files(with_tags(two_corpora, output={"data": f"{two_corpora.output.data}.fresh"}))
    prepare(changed(two_corpora, preparation={"shard_pairs": 7}))
    rename = Path.rename
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda old, new: 1 / 0 if old.name == "new" else rename(old, new))
        with pytest.raises(ZeroDivisionError):
            prepare(with_tags(two_corpora))
    assert not Path(two_corpora.output.data).exists()
    assert files(with_tags(two_corpora)) == expected


def test_a_prepared_folder_without_all_of_its_text_is_made_anew(two_corpora):
    expected = files(two_corpora)
    next(Path(two_corpora.output.data).glob("train-*")).unlink()
    prepare(with_tags(two_corpora))
    (Path(two_corpora.output.data) / "text.json").write_text("{")
    assert files(two_corpora) == expected


def test_text_of_other_settings_is_not_used_again(two_corpora):
    prepare(two_corpora)
    report = prepare(of_second(two_corpora, cleaning={"max_characters": 10})).report
    assert report["dropped"] == {"too_long": 30}
