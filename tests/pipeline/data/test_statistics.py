import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from pipeline.data.statistics import EXTREMES, LENGTHS, RATIOS, SAMPLE, Histogram, Statistics, TokenCounts

SOURCES = [f"Satz {number} " + "ist lang " * (number % 17) + "." for number in range(3000)]
TARGETS = [f"sentence {number} " + "is long " * (number % 11) + "。" for number in range(3000)]


def through_json(statistics):
    return type(statistics).from_dict(json.loads(json.dumps(statistics.as_dict())))


def test_lengths_are_counted_in_characters_and_words():
    side = Statistics.of(["a bc", "", "zwölf 𝒳𝒴 mehr"], ["x", "x", "x"]).source
    assert side.characters.total == 4 + 0 + 13
    assert side.characters.largest == 13
    assert side.words.as_dict()["counts"] == [1, 1, 1]  # one, two and three: an empty text counts as one word


def test_statistics_do_not_depend_on_how_the_corpus_is_cut():
    whole = Statistics.of(SOURCES, TARGETS)
    parts = Statistics.of([], [])
    for begin, end in ((2000, 3000), (0, 1), (1, 2000)):
        parts += through_json(Statistics.of(SOURCES[begin:end], TARGETS[begin:end]))
    assert parts.as_dict() == whole.as_dict()
    assert whole.pairs == 3000


def test_statistics_do_not_grow_with_the_corpus():
    statistics = Statistics.of(SOURCES, TARGETS)
    size = len(json.dumps(statistics.as_dict()))
    for _ in range(3):
        statistics += Statistics.of([f"{text} {text}" for text in SOURCES], TARGETS)
    assert len(statistics.sample) == SAMPLE
    assert len(json.dumps(statistics.as_dict())) < 1.5 * size


def test_the_sample_is_not_the_beginning():
    numbers = [int(source.split()[1]) for _, source, _ in Statistics.of(SOURCES, TARGETS).sample]
    assert 1400 < np.mean(numbers) < 1600


def test_characters_are_all_counted_blanks_apart():
    statistics = Statistics.of(["aa b", "日本 a\u00a0\t"] * 600, ["𝒳", "ש\u202e"] * 600)
    assert statistics.source.alphabet == Counter({"a": 1800, "b": 600, "日": 600, "本": 600})
    assert statistics.target.alphabet == Counter({"𝒳": 600, "ש": 600, "\u202e": 600})


def test_extremes_are_the_longest_and_the_most_unlike_pairs():
    sources, targets = ["word"] * 50, ["Wort"] * 50
    sources[7], targets[11], targets[13] = "a long one " * 9, "ein langer " * 8, "ein langer " * 7
    extremes = Statistics.of(sources, targets).extremes
    assert extremes["source_longer"][0][1:] == (sources[7], "Wort")
    assert [quote[2] for quote in extremes["target_longer"]] == [targets[11], targets[13], "Wort"]
    assert [quote[1:] for quote in extremes["longest"][:2]] == [(sources[7], "Wort"), ("word", targets[11])]
    assert all(len(quotes) == EXTREMES for quotes in extremes.values())


def test_a_ratio_is_of_the_target_to_the_source():
    ratio = Statistics.of(["a" * 10] * 3, ["b" * 20, "b" * 20, "b" * 10]).ratio
    assert ratio.quantile(0.5) <= 2 < RATIOS[np.searchsorted(RATIOS, ratio.quantile(0.5)) + 1]
    assert ratio.mean == pytest.approx(5 / 3, abs=0.001)


@pytest.mark.parametrize("edges", [LENGTHS, RATIOS])
def test_every_number_falls_into_the_bin_that_begins_at_or_below_it(edges):
    assert np.all(np.diff(edges) > 0)
    for number in (0, 0.04, 1, 2, 3.3, 15, 16, 17, 1000, 10**7):
        (bin,) = np.flatnonzero(Histogram.of(np.array([number]), edges).counts)
        assert edges[bin] <= number and (bin + 1 == len(edges) or number < edges[bin + 1])


def test_quantiles_of_short_lengths_are_exact():
    histogram = Histogram.of(np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), LENGTHS)
    assert [histogram.quantile(share) for share in (0.1, 0.5, 0.9, 1.0)] == [1, 5, 9, 10]
    assert Histogram.of(np.zeros(0), LENGTHS).quantile(0.5) == 0


def test_surrogates_and_empty_sides_are_counted_like_any_text():
    statistics = Statistics.of(["\ud800", ""], ["", "x"])
    assert statistics.pairs == 2
    assert statistics.target.characters.total == 1


def test_pieces_are_counted_across_chunks_and_slices():
    ids = pa.chunked_array([[[4, 5], [4]], [[], [9, 1, 4]]], type=pa.list_(pa.int32()))
    counts = TokenCounts.of(ids, 10)
    assert counts.pieces.tolist() == [0, 1, 0, 0, 3, 1, 0, 0, 0, 1]
    assert counts.lengths.total == 6 and counts.lengths.largest == 3
    parts = through_json(TokenCounts.of(ids.slice(0, 1), 10))
    parts += TokenCounts.of(ids.slice(1), 10)
    assert parts.as_dict() == counts.as_dict()
