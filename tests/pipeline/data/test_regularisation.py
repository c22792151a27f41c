import pickle
import random
import subprocess
import sys
from collections import Counter

import pytest
import sentencepiece

from pipeline.data.config import TokenizerConfig
from pipeline.data.regularisation import sampler
from pipeline.data.tokenizer import Tokenizer, train_tokenizer, train_tokenizers

TEXT = ["the cat sat on the mat", "a dog ran in the park", "we like green tea and bread", "these other bathers"] * 5
ODD = ["爿爿 the cat", "x爿y 😀", "a<sep>the<sep><sep> cat <sep>", "<2de> </s> <pad>", "q", "", "ßa\u0301 …½"]
pytestmark = pytest.mark.filterwarnings("ignore:tokenizer.vocab_size", "ignore:.*normalises text")


def learn(kind: str, **settings) -> Tokenizer:
    config = TokenizerConfig(
        **{"kind": kind, "vocab_size": 64 if kind == "bpe" else 48, "symbols": ["<sep>"]} | settings
    )
    return train_tokenizer(lambda: iter(TEXT), config)


def draws(seed: int):
    return random.Random(seed).random


@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize(("kind", "none"), [("bpe", 0.0), ("unigram", 1000.0)])
def test_without_regularisation_the_best_segmentation_is_left(kind, none, byte_fallback):
    tokenizer = learn(kind, byte_fallback=byte_fallback, vocab_size=320 if byte_fallback else 50)
    sample = sampler(tokenizer, none)
    assert [sample(text, draws(1)) for text in TEXT + ODD] == tokenizer.encode(TEXT + ODD)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("text", ["these", "these 爿", "bathers the"])
def test_segmentations_come_as_often_as_sentencepieces_own(kind, text):
    tokenizer, number = learn(kind, vocab_size=60), 6000
    sample, draw = sampler(tokenizer, 0.2), draws(1)
    ours = Counter(tuple(sample(text, draw)) for _ in range(number))
    options = {"enable_sampling": True, "alpha": 0.2, "nbest_size": -1}
    theirs = Counter(tuple(tokenizer.processor.encode(text, **options)) for _ in range(number))
    assert len(ours) > 2
    for ids in ours.keys() | theirs.keys():  # five times the deviation of a difference of two such shares
        assert ours[ids] / number == pytest.approx(theirs[ids] / number, abs=5 * (2 * 0.25 / number) ** 0.5)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_every_segmentation_is_of_the_same_text_and_no_symbol_is_split(kind):
    tokenizer = learn(kind)
    sample, draw = sampler(tokenizer, 0.1), draws(1)
    texts = [*TEXT, "a<sep>the<sep><sep> cat <sep>"]
    sampled = [sample(text, draw) for text in texts]
    assert sampled != tokenizer.encode(texts)
    assert tokenizer.decode(sampled) == texts
    assert sampled[-1].count(tokenizer.processor.piece_to_id("<sep>")) == 4


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_random_numbers_alone_decide_in_any_process(kind, monkeypatch):
    sample = sampler(learn(kind), 0.2)
    expected = [sample(text, draw) for draw in [draws(7)] for text in TEXT]
    assert [sample(text, draw) for draw in [draws(7)] for text in TEXT] == expected  # with all that is known by then
    assert [sample(text, draw) for draw in [draws(8)] for text in TEXT] != expected
    there = subprocess.run([sys.executable, "-c", THERE], input=pickle.dumps((sample, TEXT)), capture_output=True)
    assert pickle.loads(there.stdout) == expected
    monkeypatch.setattr("pipeline.data.regularisation.KEPT", 10)
    assert [sample(text, draw) for draw in [draws(7)] for text in TEXT] == expected
    assert len(sample.known) < 8


THERE = """
import pickle, random, sys
sample, texts = pickle.load(sys.stdin.buffer)
draw = random.Random(7).random
sys.stdout.buffer.write(pickle.dumps([sample(text, draw) for text in texts]))
"""


def test_a_model_of_another_kind_is_refused(tmp_path):
    options = {"sentence_iterator": iter(TEXT), "model_type": "word", "vocab_size": 20, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(model_prefix=str(tmp_path / "word"), **options)
    config = TokenizerConfig(model=[str(tmp_path / "word.model")])
    with pytest.raises(
        ValueError, match=r"tokenizer.regularisation=0.1 needs .* unigram or bpe, not word: set it to 0"
    ):
        sampler(train_tokenizers([], [], config).source, 0.1)
