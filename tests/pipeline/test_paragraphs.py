"""Running text keeps its lines and layout; its sentences are translated by themselves."""

import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import Configuration, CorporaConfig
from pipeline.inference.paragraphs import MARKERS, ParagraphTranslator, stretches
from pipeline.inference.translation import Part, Sentence, Translation
from pipeline.inference.translator import Translator

LINES = st.lists(
    st.sampled_from(
        ["A cat. ", "Who?", " ", "\t", "- ", "1. ", "(a) ", "> ", "# ", "...", "7", "*", "Dr. B came", "漢。"]
    )
    | st.sampled_from(["\u2028", "\n", "\r\n", "\xa0"]),
    max_size=8,
).map("".join)


class UpperCase(Translator):
    """Translates by writing large, in several ways."""

    def __init__(self, target_language="de", source_language="en"):
        corpora = CorporaConfig(source_language=source_language, target_language=target_language)
        super().__init__(None, SimpleNamespace(languages=[]), Configuration(corpora=corpora))
        self.asked = []

    def hypotheses(self, sentences, search=None, num_hypotheses=1):
        self.asked += [(each.text, each.place) for each in sentences]
        return [
            [Translation(each.text.upper() + "!" * n, -float(n), n < 1) for n in range(num_hypotheses)]
            for each in sentences
        ]


@pytest.mark.parametrize(
    "line, target, asked",
    [
        ("A cat. It sat.", "A CAT. IT SAT.", ["A cat.", "It sat."]),
        ("  - A cat.  It sat. \t", "  - A CAT.  IT SAT. \t", ["A cat.", "It sat."]),
        ("A cat.\tIt sat.   \xa0", "A CAT.\tIT SAT.   \xa0", ["A cat.", "It sat."]),
        ("A cat.\n\n  1. It sat.\n\n\tNo\n", "A CAT.\n\n  1. IT SAT.\n\n\tNO\n", ["A cat.", "It sat.", "No"]),
        ("name\tage\r\nAnn\t7", "NAME\tAGE\r\nANN\t7", ["name", "age", "Ann"]),
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
        assert inner.asked == [(sentence, "sentence 1") for sentence in asked]


@given(lines=st.lists(LINES, max_size=5))
def test_layout_stays_to_the_last_blank(lines):
    found = ParagraphTranslator(UpperCase()).hypotheses(lines)
    assert [each.text.upper() for [each] in found] == [line.upper() for line in lines]
    for line, [each] in zip(lines, found, strict=True):
        assert "".join(part.source for part in each.parts) == line
        assert "".join(part.target for part in each.parts) == each.text


@pytest.mark.parametrize(
    "source, target, text, joined",
    [
        ("en", "zh", "A cat. It sat.  No.", "A CAT.IT SAT.  NO."),
        ("en", "th", "A cat. It sat.", "A CAT.IT SAT."),
        ("en", "ko", "A cat. It sat.", "A CAT. IT SAT."),
        ("zh", "en", "他来了。她走了！ 好。\n", "他来了。 她走了！ 好。\n"),
        ("zh", "ja", "他来了。她走了！", "他来了。她走了！"),
    ],
)
def test_sentences_are_joined_as_the_target_is_written(source, target, text, joined):
    assert ParagraphTranslator(UpperCase(target, source)).translate([text]) == [joined]


def test_a_list_of_translations_joins_the_best_then_the_second_best():
    [found] = ParagraphTranslator(UpperCase()).hypotheses(["- A cat. It sat."], None, 2)
    assert [each.text for each in found] == ["- A CAT. IT SAT.", "- A CAT.! IT SAT.!"]
    assert [each.score for each in found] == [0.0, -1.0] and [each.finished for each in found] == [True, False]
    kept = Translation("...", 0.0, True, (), (Part("...", "...", kept=True),))
    assert ParagraphTranslator(UpperCase()).hypotheses(["..."], None, 2) == [[kept]]


def test_a_document_streams_and_its_sentences_have_the_place_of_their_line():
    inner = UpperCase()
    stream = ParagraphTranslator(inner).stream(
        iter(["A cat. It sat.", "", Sentence("No.", place="line c")] * 3), chunk=3
    )
    next(stream)
    assert inner.asked == [("A cat.", "sentence 1"), ("It sat.", "sentence 1"), ("No.", "line c")]
    assert len(list(stream)) == 8 and inner.asked[-2:] == [("It sat.", "sentence 7"), ("No.", "line c")]


def test_what_is_asked_of_a_sentence_cannot_be_asked_of_a_paragraph():
    with pytest.raises(ValueError, match="line 2 has a prefix or terms, which a paragraph cannot have: translate with"):
        ParagraphTranslator(UpperCase()).translate(["a", Sentence("b", terms=("c",), place="line 2")])


@pytest.mark.parametrize("text", [" " * 100_000, "- " * 50_000, "-" + " " * 100_000, "1" * 100_000, "#" * 100_000])
def test_hostile_lines_take_no_longer_than_others(text):
    start = time.process_time()
    MARKERS.match(text)
    assert time.process_time() - start < 1
    assert "".join(each.text for each in stretches(text, "en")) == text
