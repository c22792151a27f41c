"""What nobody sees in a translation is told once, with the file and the line."""

import dataclasses
import warnings

import pytest

from models.search import Hypothesis
from pipeline.inference.advice import Advice
from pipeline.inference.translation import Sentence
from pipeline.inference.translator import Translator
from tests.pipeline.conftest import Echo


def advised(translator, *pieces, finished=True):
    """One that finds these pieces, and that somebody listens to."""
    found = Translator(Echo([Hypothesis([*pieces], -1.0, finished)]), translator.tokenizers, translator.configuration)
    found.advice = Advice(found.languages)
    return found


def at_line(number, text, **asked):
    return Sentence(text, **asked, place=f"in.txt, line {number}")


def test_a_line_that_lost_most_of_its_sentences_is_told_of_once(translator):
    long = "the cat sat on a mat. " * 12
    roomy = dataclasses.replace(translator.search, max_source_tokens=200)
    short, whole = advised(translator, 5), advised(translator, *[5] * 80)
    with pytest.warns(UserWarning, match=r"in.txt, line 7 is several, and the \d+ tokens .* became 1: .*--document"):
        short.translate([at_line(6, "the cat"), at_line(7, long)], roomy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        short.translate([at_line(8, long)], roomy)
        whole.translate([at_line(8, long)], roomy)
        whole.translate([at_line(8, "cat " * 100)], roomy)
        Translator(short.engine, translator.tokenizers, translator.configuration).translate([long], roomy)


def test_a_line_of_three_sentences_is_looked_at_at_any_length(translator):
    short, whole = advised(translator, 5, 5), advised(translator, *[5] * 40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        short.translate([at_line(8, "the cat sat. a mat was seen.")])
        whole.translate([at_line(8, "the cat sat. a mat. that garden.")])
    with pytest.warns(UserWarning, match="in.txt, line 9 is several"):
        short.translate([at_line(9, "the cat sat. a mat. that garden.")])


def test_a_translation_that_the_limit_has_cut_is_told_of_once(translator):
    (ids,) = translator.tokenizers.target.encode(["the cat"])
    cut = advised(translator, *ids, finished=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        cut.translate([at_line(6, "a mat", prefix="the cat"), "", at_line(8, "seen"), at_line(9, "garden")])
        cut.translate([at_line(10, "seen")])
    assert len(told) == 1
    assert str(told[0].message).startswith("the length limit has cut the translation of in.txt, line 8, and perhaps")
