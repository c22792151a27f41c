"""A text too long is translated in parts, and has their translations together."""

import dataclasses

import pytest

from pipeline.inference.translation import Part, Translation, distinct, joined, ranked


def test_a_source_too_long_is_translated_in_parts_with_a_warning(translator):
    parts = ["the cat sat on a mat.", "two old trees on that mat.", "a garden in café on it.", "the mat sat on a cat."]
    search = dataclasses.replace(translator.search, max_source_tokens=10)
    together = " ".join(parts)
    num_tokens = len(translator.tokenizers.source.encode([together])[0])
    with pytest.warns(
        UserWarning,
        match=rf"sentence 2 has {num_tokens} source tokens, more than search.max_source_tokens=10: .* in 4 parts",
    ):
        first, found, last = translator.translate(["seen", together, "garden"], search)
    assert found == " ".join(translator.translate(parts, search))
    assert [first, last] == translator.translate(["seen", "garden"], search)


def test_a_translation_knows_its_pieces(translator):
    parts = ["the cat sat on a mat.", "two old trees on that mat."]
    search = dataclasses.replace(translator.search, max_source_tokens=10)
    with pytest.warns(UserWarning, match="in 2 parts"):
        [[whole], [blank]] = translator.hypotheses([" ".join(parts), ""], search)
    [[first], [second]] = translator.hypotheses(parts, search)
    assert translator.tokenizers.target.decode([list(first.ids)]) == [first.text]
    assert whole.ids == first.ids + second.ids and blank.ids == ()


def test_parts_say_what_was_translated_by_itself(translator):
    parts = ["the cat sat on a mat.", "two old trees on that mat."]
    [[whole]] = translator.hypotheses([" seen  in"])
    assert whole.parts == (Part(" seen  in", whole.text),)
    with pytest.warns(UserWarning, match="in 2 parts"):
        [[whole]] = translator.hypotheses(
            ["\t \t".join(parts) + " "], dataclasses.replace(translator.search, max_source_tokens=10)
        )
    first, second = translator.translate(parts)
    assert whole.parts == (
        Part(parts[0], first),
        Part("\t \t", " ", kept=True),
        Part(parts[1], second),
        Part(" ", "", kept=True),
    )


def test_what_has_no_letter_stays_where_an_over_long_line_is_divided(translator):
    search = dataclasses.replace(translator.search, max_source_tokens=10)
    with pytest.warns(UserWarning, match="in 2 parts"):
        [found] = translator.translate(["the cat sat on a mat. two old trees on that mat. ???"], search)
    first, second = translator.translate(["the cat sat on a mat.", "two old trees on that mat."])
    assert found == f"{first} {second} ???"
    with pytest.warns(UserWarning, match="it is translated in"):
        assert translator.translate([". ? ." * 20], search) != [""]


def test_lists_of_different_length_are_joined_to_the_longest():
    short, long = ([Translation(f"{name}{i}", -float(i), True) for i in range(n)] for name, n in (("a", 1), ("b", 3)))
    found = [joined([("x", one), (" ", "-"), ("y", other)]) for one, other in ranked([short, long])]
    assert [each.text for each in found] == ["a0-b0", "a0-b1", "a0-b2"]
    assert [each.score for each in found] == [0.0, -0.5, -1.0]
    assert [each.text for each in distinct(found * 2)] == ["a0-b0", "a0-b1", "a0-b2"]


def test_a_translation_of_parts_that_say_nothing_is_empty():
    silent, loud = Translation("", -1.0, True), Translation("a", -1.0, True)
    found = joined([("x", silent), (" ", " "), ("y", silent)])
    assert found.text == "".join(part.target for part in found.parts) == ""
    assert "".join(part.source for part in found.parts) == "x y"
    assert joined([("x", silent), (" ", " "), ("y", loud)]).text == " a"
    assert joined([("x", silent), (" ", " "), ("7", "7")]).text == " 7"


def test_n_best_lists_of_parts_are_joined(translator):
    parts = ["the cat sat on a mat.", "two old trees on that mat."]
    search = dataclasses.replace(translator.search, max_source_tokens=10)
    with pytest.warns(UserWarning, match="in 2 parts"):
        [found] = translator.hypotheses([" ".join(parts)], search, 3)
    first, second = translator.hypotheses(parts, search, 3)
    assert [t.text for t in found] == [f"{a.text} {b.text}" for a, b in zip(first, second, strict=True)]
    assert [t.score for t in found] == pytest.approx(
        [(a.score + b.score) / 2 for a, b in zip(first, second, strict=True)]
    )
