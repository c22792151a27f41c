import json
from pathlib import Path

import pytest
from datasets import Dataset, Features, Translation, TranslationVariableLanguages, Value

from pipeline.data.config import CorpusConfig
from pipeline.data.corpora import read_pairs


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("set").mkdir()


def rows(**settings) -> list[tuple]:
    return list(read_pairs(CorpusConfig(kind="hub", name="set", **settings), ["train"]))


def test_a_set_in_several_languages_is_read_in_the_two_that_are_wanted():
    texts = [{"en": "one", "de": "eins", "fr": "un"}, {"en": "two", "de": "zwei", "fr": "deux"}]
    features = Features({"translation": Translation(["en", "de", "fr"]), "id": Value("int64")})
    Dataset.from_dict({"translation": texts, "id": [7, 8]}, features).to_parquet("set/train.parquet")
    assert rows() == [("one", "eins"), ("two", "zwei")]
    assert rows(source_language="fr", group_column="id") == [("un", "eins", "7"), ("deux", "zwei", "8")]
    with pytest.raises(ValueError, match="corpora.name=set has no text column target, only translation.de, "):
        rows(target_language="ja")


def test_columns_may_be_named_by_languages():
    Path("set/train.jsonl").write_text(json.dumps({"de": "eins", "en": "one", "score": 1}))
    assert rows() == [("one", "eins")]
    assert rows(source_language="de", target_language="en", reverse=True) == [("eins", "one")]


def test_a_set_may_list_the_languages_of_each_row():
    texts = [{"en": "one", "de": ["eins", "ein"]}, {"de": "zwei", "fr": "deux"}]
    features = Features({"translation": TranslationVariableLanguages(languages=["de", "en", "fr"])})
    encoded = [features["translation"].encode_example(text) for text in texts]
    Dataset.from_dict({"translation": encoded}).to_parquet("set/train.parquet")
    assert rows() == [("one", "eins"), (None, "zwei")]
    assert rows(source_column="translation.fr", target_column="translation.en") == [(None, "one"), ("deux", None)]
    assert list(read_pairs(CorpusConfig(kind="parquet"), ["set/train.parquet"])) == rows()
