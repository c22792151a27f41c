import gzip
import io
import json
import logging
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

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


@pytest.mark.parametrize("split", ["train", "train[:100%]"])
def test_a_row_that_is_null_has_no_texts_wherever_it_stands(split):
    row = b'{"source": "one", "target": "eins"}\n'
    many = 4 * 327_680 // len(row)  # of several of the blocks that the file is read in
    for content, expected in {
        b"null\n" + row: "nr",
        b"\xef\xbb\xbf \r\n null" + row + b"null": "nrn",
        row + b"null\n" * 100_000 + row * many: "r" + "n" * 100_000 + "r" * many,
    }.items():
        Path("set/train.jsonl").write_bytes(content)
        read = list(read_pairs(CorpusConfig(kind="hub", name="set"), [split]))
        assert read == [("one", "eins") if row == "r" else (None, None) for row in expected]


def test_a_list_of_rows_may_hold_null_and_be_compressed():
    Path("set/train.json.gz").write_bytes(gzip.compress(b'[null, {"source": "one", "target": "eins"}, null]'))
    assert rows() == [(None, None), ("one", "eins"), (None, None)]


@pytest.mark.parametrize("split", ["train", "train[:9]"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no data, not a single row"),
        (b'{"source": "one", "target": "eins"}\n{"source"', "JSON parse error: "),
        (b'{"source": "\xef", "target": "eins"}\n', "In chunk 0: Invalid: Invalid UTF8 sequence at string index 0"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_however_it_is_read(split, content, reason):
    Path("set/train.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=f"^corpora.name=set: {reason}"):
        list(read_pairs(CorpusConfig(kind="hub", name="set"), [split]))


class NoSuchSet(BaseHTTPRequestHandler):
    """Answers as the Hub does where a data set does not exist, or is private."""

    def do_GET(self):
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


def test_a_data_set_that_does_not_exist_is_one_line(monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), NoSuchSet) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("datasets.config.HF_ENDPOINT", address)
        with pytest.raises(
            ValueError, match="^corpora.name=no/such: Dataset 'no/such' doesn't exist on the Hub"
        ) as error:
            list(read_pairs(CorpusConfig(kind="hub", name="no/such"), ["train"]))
        assert "\n" not in str(error.value)
        server.shutdown()


def test_without_a_network_one_line_says_so(monkeypatch):
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub = logging.getLogger("huggingface_hub")
    monkeypatch.setattr(hub, "handlers", [logging.StreamHandler(shown := io.StringIO())])
    with pytest.raises(ValueError, match="^corpora.name=no/such: cannot be reached .offline.*: name a local folder"):
        list(read_pairs(CorpusConfig(kind="hub", name="no/such"), ["train"]))
    assert shown.getvalue() == ""
    assert hub.isEnabledFor(logging.WARNING)  # of what comes later
