"""Text in parts: nothing is lost, the best places come first, and parts are as long and as even as may be."""

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.inference.segmentation import blank, sentences, split

TEXT = st.text(st.sampled_from("ab漢é .,;!?。、…\"')]-–1\u0301\u200d😀\u00a0\t"), max_size=80) | st.text(max_size=60)


def characters(texts):
    return [len(text) for text in texts]


def words_and_marks(texts):
    """Like SentencePiece, counts the blank before a text's first word with it, wherever the text is cut."""
    return [sum(1 + len(word) // 3 for word in text.split()) for text in texts]


@pytest.mark.parametrize("language", ["en", "de", "zh", "ar", "tlh", ""])
@given(text=TEXT)
def test_sentences_one_after_the_other_are_the_text(language, text):
    assert "".join(sentences(text, language)) == text


@pytest.mark.parametrize(
    "language, text, parts",
    [
        ("en", "Dr. Smith met Mr. Jones. They talked.", ["Dr. Smith met Mr. Jones. ", "They talked."]),
        ("de", "Er kam am 3. Oktober z.B. zu Fuß. Gut.", ["Er kam am 3. Oktober z.B. zu Fuß. ", "Gut."]),
        ("zh", "他来了。她走了！", ["他来了。", "她走了！"]),
        ("ar", "هل أنت بخير؟ نعم.", ["هل أنت بخير؟ ", "نعم."]),
    ],
)
def test_where_a_sentence_ends_is_known_by_language(language, text, parts):
    assert sentences(text, language) == parts


@pytest.mark.parametrize("count", [characters, words_and_marks])
@given(text=TEXT, limit=st.integers(1, 30))
@example(text="a" * 4000, limit=7)
@example(text="a\u0301\u0301\u0301\u0301\u0301", limit=2)
def test_every_part_fits_and_together_they_are_the_text(count, text, limit):
    parts = split(text, count, limit, "en")
    assert "".join(parts) == text
    assert all(size <= limit or len(part) < 2 for part, size in zip(parts, count(parts), strict=True))
    if count([text])[0] <= limit:
        assert parts == [text]


@pytest.mark.parametrize(
    "text, limit, parts",
    [
        ("Who came? Nobody did. Then all left.", 22, ["Who came? ", "Nobody did. ", "Then all left."]),
        ("Who came? Nobody did. Then all left.", 36, ["Who came? Nobody did. Then all left."]),
        ('He said "Stop." Then he went on and on.', 25, ['He said "Stop." ', "Then he went on and on."]),
        ("It rained. When we came home, the dog (old, too), slept.", 34,
         ["It rained. ", "When we came home, ", "the dog (old, too), slept."]),
        ("no end of a sentence in sight here", 20, ["no end of a ", "sentence in ", "sight here"]),
        ("no end of a sentence in sight here", 24, ["no end of a sentence ", "in sight here"]),
        ("x" * 10, 3, ["xxx", "xxx", "xxx", "x"]),
        ("他来了。她走了。天黑了。", 8, ["他来了。", "她走了。", "天黑了。"]),
        ("他来了，她走了，天黑了", 9, ["他来了，", "她走了，天黑了"]),
        ("。。。。", 1, ["。"] * 4),
        ("ae\u0301e\u0301a", 3, ["ae\u0301", "e\u0301a"]),
        ("👩\u200d🚀👩\u200d🚀", 4, ["👩\u200d🚀", "👩\u200d🚀"]),
    ],
)  # fmt: skip
def test_text_is_divided_where_it_hurts_least(text, limit, parts):
    assert split(text, characters, limit, "en") == parts


@given(text=TEXT, limit=st.integers(1, 30))
@example(text="a {b c. d} e " * 3, limit=5)
def test_what_is_undivided_is_not_cut_and_only_it_may_be_longer(text, limit):
    text, undivided = text.replace("é", "{").replace("漢", "}"), re.compile("{[^{}]*}")
    parts = split(text, characters, limit, "en", undivided)
    assert "".join(parts) == text
    assert all(len(part) <= limit or undivided.fullmatch(part) for part in parts)
    assert [span for part in parts for span in undivided.findall(part)] == undivided.findall(text)


def test_there_are_as_few_parts_as_there_can_be_and_they_are_even():
    text = "word " * 6000
    parts = split(text, characters, 500, "en")
    assert len(parts) == math.ceil(30_000 / 500)
    sizes = characters(split("a word, " * 101, characters, 500, "en"))
    assert sizes == [408, 400]


def test_words_stay_whole_around_one_that_is_too_long():
    parts = split("a " + "y" * 50 + " b", characters, 9, "en")
    assert (parts[0], parts[-1], len(parts)) == ("a ", "b", 8)
    assert all(re.fullmatch("y+ ?", part) for part in parts[1:-1])


@pytest.mark.parametrize("text", ["." * 100_000, ",)" * 50_000, '("a.) ' * 15_000, "x" * 100_000, "1. - " * 20_000])
def test_hostile_text_takes_no_longer_than_other_text(text):
    counted = []

    def count(texts):
        counted.extend(map(len, texts))
        return characters(texts)

    assert "".join(split(text, count, 200, "en")) == text
    assert sum(counted) < 20 * len(text)


@pytest.mark.parametrize(
    "language, between", [("de", " "), ("zh", ""), ("zh-Hans", ""), ("ja_JP", ""), ("tha", ""), ("", " ")]
)
def test_sentences_are_joined_as_the_language_is_written(language, between):
    assert blank(language) == between
