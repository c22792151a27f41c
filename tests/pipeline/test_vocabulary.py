"""Where words end, in pieces and in text; and which pieces stand for no text."""

import pytest

from pipeline.config import TokenizerConfig
from pipeline.data.tokenizer import EOS_ID, tag, train_tokenizer
from pipeline.inference.vocabulary import ANY, Vocabulary, occurs, within_word

TEXT = ["der Gaul, die Gäule; ein Gauler? (5) 猫がいる नमस्ते", "Gaul Gaulerei 55 猫 の मस्त"] * 3


@pytest.fixture(scope="module")
def tokenizer():
    config = TokenizerConfig(vocab_size=90, byte_fallback=False, character_coverage=1.0, multiple_of=64)
    return train_tokenizer(lambda: iter(TEXT), config, ["de", "fr"])


def test_tags_and_filling_stand_for_no_text_and_nothing_else_does(tokenizer):
    pieces = tokenizer.processor.id_to_piece(list(range(tokenizer.vocab_size)))
    forbidden = {pieces[id] for id in Vocabulary.of(tokenizer).forbidden_ids}
    assert {"<pad>", "<unk>", "<s>", tag("de"), tag("fr"), "<filler0>"} <= forbidden
    assert all(piece.startswith("<") for piece in forbidden) and pieces[EOS_ID] not in forbidden
    assert len(forbidden) < tokenizer.vocab_size - 30
    assert ANY.forbidden_ids == (0, 1, 2)


@pytest.mark.parametrize(
    "pieces, joined",
    [
        (["▁G", "a"], True),
        (["l", "e"], True),
        (["l", ","], False),
        (["l", "▁G"], False),
        (["l", ","], False),
        (["(", "5"], False),
        (["5", "5"], True),
        (["स", "्"], True),
        (["्", "त"], True),
        (["猫", "が"], False),
        (["l", ","], False),
    ],
)
def test_pieces_are_joined_where_letters_of_one_word_meet(tokenizer, pieces, joined):
    ids = tokenizer.processor.piece_to_id(pieces)
    assert tokenizer.processor.unk_id() not in ids
    assert Vocabulary.of(tokenizer).words.joins(*ids) == joined


def test_bytes_may_be_part_of_a_letter():
    config = TokenizerConfig(vocab_size=330, byte_fallback=True, character_coverage=1.0)
    tokenizer = train_tokenizer(lambda: iter(TEXT), config)
    words, byte = Vocabulary.of(tokenizer).words, tokenizer.processor.piece_to_id("<0xC3>")
    assert byte in words.ending_within and byte in words.going_on


@pytest.mark.parametrize(
    "phrase, text, there",
    [
        ("Gaul", "Ein Gaul.", True),
        ("Gaul", "Gauler und Ackergaul", False),
        ("Gaul", "Gauler und Gaul", True),
        ("Gaul", "der Gaul-Reiter", True),
        ("aul", "Gaul", False),
        ("US$", "US$5", True),
        ("5", "55", False),
        ("猫", "黒猫がいる", True),
        ("नम", "नमस्ते", False),
        ("a a", "a a", True),
    ],
)
def test_a_phrase_occurs_as_whole_words(phrase, text, there):
    assert occurs(phrase, text) == there


def test_marks_belong_to_words_and_blanks_do_not():
    assert [within_word(each) for each in "aé\u0301ß5"] == [True] * 5
    assert not any(within_word(each) for each in " ▁.'-_猫かカกລ")
