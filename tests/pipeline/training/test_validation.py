"""What a validation scores: every direction by itself."""

import warnings
from types import SimpleNamespace

import pytest
from datasets import Dataset

from pipeline.config import Configuration, CorporaConfig, TrainerConfig
from pipeline.data.config import CorpusConfig
from pipeline.inference.evaluation import score
from pipeline.training.callbacks import describe
from pipeline.training.fit import fit
from pipeline.training.validation import Validator, directions

GERMAN, CHINESE = ["das ist ein kleiner Test", "der Hund schläft heute nicht"], ["这是一个小测试", "狗今天不睡觉"]
CORPORA = [CorpusConfig(target_language="de"), CorpusConfig(target_language="zh"), CorpusConfig(target_language="de")]


def validator(count: int, corpora: list[CorpusConfig], corpus: list[int], targets: list[str]) -> Validator:
    """Of pairs of these corpora."""
    trainer = TrainerConfig(validation_sentences=count)
    configuration = Configuration(corpora=CorporaConfig(parts=corpora, tags=True), trainer=trainer)
    ids = [[5]] * len(corpus)
    valid = Dataset.from_dict({"source": targets, "target": targets, "source_ids": ids, "corpus": corpus})
    tokenizers = SimpleNamespace(language_of=lambda ids: "")
    return Validator(SimpleNamespace(valid=valid, tokenizers=tokenizers), SimpleNamespace(configuration=configuration))


def test_each_direction_is_scored_by_the_words_of_its_language_and_the_mean_counts():
    some = validator(200, CORPORA, [1, 0, 1, 2], [CHINESE[0], GERMAN[0], CHINESE[1], GERMAN[1]])
    assert some.references == CHINESE + GERMAN
    translations = ["这是一个测试", "狗今天不睡", GERMAN[0], "der Hund schläft"]
    expected = {
        "en-zh": score(translations[:2], CHINESE, "zh", ("bleu", "chrf")),
        "en-de": score(translations[2:], GERMAN, "de", ("bleu", "chrf")),
    }
    scores = some.scores_of(translations)
    for metric in ("bleu", "chrf"):
        each = [expected[direction][metric].value for direction in ("en-zh", "en-de")]
        assert [scores[f"{metric}_{direction}"] for direction in expected] == each
        assert scores[metric] == pytest.approx(sum(each) / 2)
    assert set(some.columns) == scores.keys() - {"bleu", "chrf"}
    assert expected["en-zh"]["bleu"].value > 20 > score(translations[:2], CHINESE, "de", ("bleu",))["bleu"].value
    words = describe({"valid_loss": 1.0, "valid_perplexity": 2.0} | scores)
    assert words.endswith(f"(BLEU en-zh {scores['bleu_en-zh']:.2f}, en-de {scores['bleu_en-de']:.2f})")


def test_a_single_direction_has_no_scores_of_its_own():
    some = validator(200, CORPORA[:1], [0, 0], GERMAN)
    assert some.columns == []
    assert some.scores_of(GERMAN).keys() == {"bleu", "chrf"}


def test_it_is_told_once_at_the_start_where_bleu_has_too_few_words():
    short = ["ein Hund!", "der Hund schläft", "heute nicht."] * 5  # marks are words to BLEU
    told = "hardly a validation reference of en-de has the 4 words in a row"
    for longer in (0, 1):
        with pytest.warns(UserWarning, match=told) as warned:
            validator(200, CORPORA[:1], [0] * (15 + longer), short + GERMAN[:1] * longer)
        assert len(warned) == 1
    # The words of a language without blanks are those that its BLEU counts.
    with pytest.warns(UserWarning, match=told):
        validator(200, CORPORA, [0, 1, 2], CHINESE[:1] * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        validator(200, CORPORA[:1], [0] * 17, short + GERMAN)


def test_directions_share_the_sentences_and_a_small_one_is_not_forgotten():
    corpus = [0] * 50 + [1] + [2] * 50
    small, large = directions(CORPORA, corpus, 10)[::-1]
    assert (small.name, small.rows) == ("en-zh", [50])
    assert (large.name, large.rows) == ("en-de", [0, 20, 40, 61, 81])
    assert [found.rows for found in directions(CORPORA, corpus, 1)] == [[0], [50]]
    assert directions(CORPORA, corpus, 0) == []


def test_the_log_has_the_scores_of_each_direction(tiny, rows, tmp_path):
    given = tiny().corpora
    files = dict(train=given.train, valid=given.valid, test=given.test)
    parts = [CorpusConfig(target_language=language, **files) for language in ("de", "fr")]
    configuration = tiny(
        corpora=dict(train=[], valid=[], test=[], parts=parts, tags=True),
        cleaning=dict(drop_duplicates=False, drop_overlap=False, near_overlap=0.0),
        output=dict(data=str(tmp_path / "data")),
        **dict(max_steps=2, validate_every=2, checkpoint_every=2, validation_sentences=8),
    )
    fit(configuration)
    (row,) = [row for row in rows(configuration) if "bleu" in row]
    assert row["chrf"] == pytest.approx((row["chrf_en-de"] + row["chrf_en-fr"]) / 2, rel=1e-6)
