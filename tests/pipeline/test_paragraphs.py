"""Running text keeps its lines and layout; its sentences are translated by themselves."""

import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import Configuration, CorporaConfig
from pipeline.inference.paragraphs import MARKERS, Paragraph, ParagraphTranslator
from pipeline.inference.translator import Sentence, Translation, Translator

LINES = st.lists(
    st.sampled_from(
        ["A cat. ", "Who?", " ", "\t", "- ", "1. ", "(a) ", "> ", "# ", "...", "7", "*", "Dr. B came", "漢。", "\u2028"]
    ),
    max_size=8,
).map("".join)


class UpperCase(Translator):
    """Translates by writing large, in several ways."""

    def __init__(self, target_language="de"):
        corpora = CorporaConfig(source_language="en", target_language=target_language)
        super().__init__(None, SimpleNamespace(languages=[]), Configuration(corpora=corpora))
        self.asked = []

    def hypotheses(self, sentences, search=None, num_hypotheses=1, numbers=None):
        self.asked += zip(sentences, numbers, strict=True)
        return [
            [Translation(text.upper() + "!" * n, -float(n), n < 1) for n in range(num_hypotheses)] for text in sentences
        ]


@pytest.mark.parametrize(
    "line, target, asked",
    [
        ("A cat. It sat.", "A CAT. IT SAT.", ["A cat.", "It sat."]),
        ("  - A cat.  It sat. \t", "  - A CAT. IT SAT. \t", ["A cat.", "It sat."]),
        ("> > 1. A cat", "> > 1. A CAT", ["A cat"]),
        ("## a) Dr. Smith knows", "## a) DR. SMITH KNOWS", ["Dr. Smith knows"]),
        ("One. ... Two.", "ONE. ... TWO.", None),
        ("a) (b) 12) c. d", "a) (b) 12) C. D", None),
        ("", "", []),
        ("  \t", "  \t", []),
        ("-----", "-----", []),
        ("* * *", "* * *", []),
        ("- 2020.", "- 2020.", []),
        ("-5 cats", "-5 CATS", ["-5 cats"]),
    ],
)
def test_a_line_keeps_its_layout(line, target, asked):
    inner = UpperCase()
    assert ParagraphTranslator(inner).translate([line]) == [target]
    if asked is not None:
        assert inner.asked == [(sentence, 1) for sentence in asked]


@given(lines=st.lists(LINES, max_size=5))
def test_lines_stay_lines_and_nothing_is_lost(lines):
    found = ParagraphTranslator(UpperCase()).translate(lines)
    assert ["".join(each.upper().split()) for each in found] == ["".join(line.upper().split()) for line in lines]
    for line, each in zip(lines, found, strict=True):
        assert each[: len(each) - len(each.lstrip())] == line[: len(line) - len(line.lstrip())]
        assert not each.strip() or each[len(each.rstrip()) :] == line[len(line.rstrip()) :]


@pytest.mark.parametrize(
    "language, joined", [("zh", "A CAT.IT SAT."), ("th", "A CAT.IT SAT."), ("ko", "A CAT. IT SAT.")]
)
def test_sentences_are_joined_as_the_target_is_written(language, joined):
    assert ParagraphTranslator(UpperCase(language)).translate(["A cat. It sat."]) == [joined]


def test_a_list_of_translations_joins_the_best_then_the_second_best():
    [found] = ParagraphTranslator(UpperCase()).hypotheses(["- A cat. It sat."], None, 2)
    assert [each.text for each in found] == ["- A CAT. IT SAT.", "- A CAT.! IT SAT.!"]
    assert [each.score for each in found] == [0.0, -1.0] and [each.finished for each in found] == [True, False]
    assert ParagraphTranslator(UpperCase()).hypotheses(["..."], None, 2) == [[Translation("...", 0.0, True)]]


def test_a_document_streams_and_sentences_are_numbered_by_their_line():
    inner = UpperCase()
    stream = ParagraphTranslator(inner).stream(iter(["A cat. It sat.", "", "No."] * 3), chunk=3)
    next(stream)
    assert inner.asked == [("A cat.", 1), ("It sat.", 1), ("No.", 3)]
    assert len(list(stream)) == 8 and inner.asked[-1] == ("No.", 9)


def test_what_is_asked_of_a_sentence_cannot_be_asked_of_a_paragraph():
    with pytest.raises(ValueError, match="line 2 has a prefix or terms, which belong to a sentence: translate without"):
        ParagraphTranslator(UpperCase()).translate(["a", Sentence("b", terms=("c",))])


@pytest.mark.parametrize("text", [" " * 100_000, "- " * 50_000, "-" + " " * 100_000, "1" * 100_000, "#" * 100_000])
def test_hostile_lines_take_no_longer_than_others(text):
    start = time.process_time()
    MARKERS.match(text)
    assert time.process_time() - start < 1
    paragraph = Paragraph.of(text, "en")
    assert paragraph.before + "".join(paragraph.sentences) + paragraph.after == text
