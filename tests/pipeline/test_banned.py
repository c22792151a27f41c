"""Banned words and phrases: in no translation, however they are spelt, and in no term."""

import dataclasses

import pytest

from pipeline.data.tokenizer import UNK_ID
from pipeline.inference.banned import pattern, spellings
from pipeline.inference.candidates import best_first
from pipeline.inference.engine import TorchEngine
from pipeline.inference.translation import Sentence, Translation
from pipeline.inference.translator import Translator
from tests.pipeline.conftest import CONFIGURATION
from tests.pipeline.untrained import SENTENCES


def test_no_translation_contains_a_banned_word(models, tokenizers):
    translator = Translator(TorchEngine(models[0], workers=2), tokenizers, CONFIGURATION)
    free = translator.hypotheses(SENTENCES, None, 4)
    words = sorted({word for found in free for each in found for word in each.text.split()}, key=len)
    banned = [words[-1], words[len(words) // 2]]
    search = dataclasses.replace(CONFIGURATION.search, banned=banned)
    forbidden = pattern(banned, spaced=True)
    assert any(forbidden.search(each.text) for found in free for each in found)
    found = translator.hypotheses(SENTENCES, search, 4)
    assert not any(forbidden.search(each.text) for row in found for each in row)
    assert translator.translate(SENTENCES, search) == [row[0].text for row in found]


def test_a_phrase_is_banned_in_every_way_to_spell_it(tokenizers):
    found = spellings(["cat"], tokenizers.target, spaced=True)
    pieces = tokenizers.target.processor.id_to_piece
    assert len(found) > 1 and tuple(tokenizers.target.encode(["cat"])[0]) in found
    assert {"".join(map(pieces, ids)) for ids in found} == {"▁cat"}
    bare = spellings(["cat"], tokenizers.target, spaced=False)
    assert {"".join(map(pieces, ids)) for ids in bare} == {"▁cat", "cat"}
    assert spellings(["日本"], tokenizers.target, spaced=True) == []


def test_a_banned_word_is_a_word_where_there_are_blanks():
    assert pattern(["cat"], spaced=True).search("Cat, dog") and pattern(["cat"], spaced=True).search("(cat)")
    assert not pattern(["cat"], spaced=True).search("a category, concat")
    assert pattern(["猫"], spaced=False).search("黒猫がいる") and pattern(["!"], spaced=True).search("Hi!")


def test_a_banned_text_is_returned_only_where_nothing_else_is_left():
    rows = [Translation("the cat", -1.0, True), Translation("the dog", -2.0, True)]
    search, banned = dataclasses.replace(CONFIGURATION.search, banned=["cat"]), pattern(["cat"], spaced=True)
    assert best_first(rows, search, banned, "en") == rows[1:]
    assert best_first(rows[:1], search, banned, "en") == rows[:1]


def test_a_term_that_is_banned_is_refused(translator):
    search = dataclasses.replace(translator.search, banned=["cat"])
    for term in ("cat", "Cat", "old cats", "the cat sat"):
        if UNK_ID in translator.tokenizers.target.encode([term])[0]:
            continue
        with pytest.raises(ValueError, match=rf'the term "{term}" has what search.banned=.* forbids: leave out either'):
            translator.translate([Sentence("seen", terms=(term,))], search)
    translator.translate([Sentence("seen", terms=("mat",))], search)
