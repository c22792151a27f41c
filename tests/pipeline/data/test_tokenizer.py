import pytest
import sentencepiece

from pipeline.data.cleaning import normalise
from pipeline.data.config import TokenizerConfig
from pipeline.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer, Tokenizers, train_tokenizers

ENGLISH = ["the cat sat on the mat", "a dog ran in the park", "we like green tea and bread"] * 5
GERMAN = ["die Katze saß auf der Matte", "ein Hund lief im Park", "wir mögen grünen Tee und Brot"] * 5
pytestmark = pytest.mark.filterwarnings("ignore:tokenizer.vocab_size")
CONTROL_WORDS = ["the cat </s> sat", "<s> <unk> <pad>", " </s>", "<0x41>", "<2de>"]


def learn(source=ENGLISH, target=GERMAN, **settings) -> Tokenizers:
    return train_tokenizers(source, target, TokenizerConfig(**{"vocab_size": 48} | settings))


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("joint", [True, False])
def test_special_ids_are_fixed_and_never_come_from_text(kind, joint):
    for tokenizer in learn(kind=kind, joint=joint):
        processor = tokenizer.processor
        ids = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        assert ids == (PAD_ID, UNK_ID, BOS_ID, EOS_ID) == (0, 1, 2, 3)
        for ids in tokenizer.encode(ENGLISH + GERMAN + CONTROL_WORDS):
            assert not {PAD_ID, BOS_ID, EOS_ID} & set(ids)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_typed_control_words_survive_a_round_trip(kind):
    alphabet = ["< > / 0 1 2 4 n k d p u x"] * 2  # a control word in the training text gives its letters no piece
    tokenizer = learn(ENGLISH + CONTROL_WORDS + alphabet, kind=kind, vocab_size=58).source
    words = [normalise(text) for text in CONTROL_WORDS]
    assert tokenizer.decode(tokenizer.encode(words)) == words


def test_training_text_survives_a_round_trip_byte_for_byte():
    odd = ["wait… ½ cup", "step ① of 10 m²", "oﬃce ２０", "ŉ dag Brand™", "A B C"] * 3
    tokenizer = learn(odd, odd, vocab_size=80, byte_fallback=False).source
    assert tokenizer.decode(tokenizer.encode(odd)) == odd


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("joint", [True, False])
def test_the_same_text_gives_the_same_model(kind, joint):
    once, again = learn(kind=kind, joint=joint), learn(kind=kind, joint=joint)
    assert [tokenizer.fingerprint for tokenizer in once] == [tokenizer.fingerprint for tokenizer in again]
    assert once.joint == joint


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("joint", [True, False])
def test_a_vocabulary_larger_than_the_corpus_gives_is_lowered_to_what_it_gives(kind, joint):
    with pytest.warns(UserWarning, match=r"tokenizer.vocab_size=8000 .* the vocabulary has \d+ pieces") as warnings:
        tokenizers = learn(kind=kind, joint=joint, vocab_size=8000)
    for tokenizer, warning in zip(tokenizers, warnings, strict=False):
        assert f"has {tokenizer.vocab_size} pieces" in str(warning.message)
        assert 20 < tokenizer.vocab_size < 300
        assert max(max(ids) for ids in tokenizer.encode(ENGLISH + GERMAN)) < tokenizer.vocab_size


def test_a_vocabulary_smaller_than_the_alphabet_is_refused_with_the_least_size():
    with pytest.raises(ValueError, match=r"tokenizer.vocab_size=20 .* set it to at least (\d+)") as error:
        learn(vocab_size=20)
    least = int(str(error.value).split("at least ")[1].split(",")[0])
    assert learn(vocab_size=least).source.vocab_size == least


def test_bytes_spell_unknown_characters_and_are_joined_again():
    tokenizer = learn(byte_fallback=True, vocab_size=320).source
    text = ["the cat 😀", "爿", "<0xF0>"]
    assert all(UNK_ID not in ids for ids in tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_symbol_is_one_piece_wherever_it_stands():
    tokenizer = learn(symbols=["<2de>"]).source
    (symbol,) = {id for id in range(tokenizer.vocab_size) if tokenizer.processor.id_to_piece(id) == "<2de>"}
    assert [ids.count(symbol) for ids in tokenizer.encode(["<2de> the cat", "<2de>the cat", "the<2de><2de>"])] == [
        1,
        1,
        2,
    ]


@pytest.mark.parametrize("symbol", ["<pad>", "</s>", "", " "])
def test_reserved_symbols_are_refused(symbol):
    with pytest.raises(ValueError, match="tokenizer.symbols=.*cannot be user-defined"):
        learn(symbols=[symbol])


def test_a_character_coverage_that_cannot_be_trained_with_is_refused_at_once():
    assert learn(character_coverage=0.98)
    for coverage in (0.979, 1.01):
        with pytest.raises(ValueError, match=rf"character_coverage={coverage} must lie in \[0.98, 1\]"):
            TokenizerConfig(character_coverage=coverage)


def test_words_of_very_long_lines_are_learned():
    long_line = " ".join(f"word{i % 50}" for i in range(1500))  # beyond SentencePiece's usual 4192 bytes
    tokenizer = learn([long_line] * 3, ["short"] * 3).source
    assert UNK_ID not in tokenizer.encode(["word7"])[0]


def test_training_is_silent(capfd):
    learn()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("joint", [True, False])
def test_saved_tokenizers_load_as_the_same(tmp_path, joint):
    tokenizers = learn(joint=joint)
    tokenizers.save(tmp_path)
    loaded = Tokenizers.load(tmp_path)
    assert loaded.joint == joint
    assert [t.fingerprint for t in loaded] == [t.fingerprint for t in tokenizers]
    assert loaded.source.encode(ENGLISH) == tokenizers.source.encode(ENGLISH)


def test_other_models_are_refused(tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH), model_prefix=str(tmp_path / "other"), vocab_size=25, minloglevel=2
    )
    with pytest.raises(ValueError, match=r"other.model has pad, unk, bos, eos at \(-1, 0, 1, 2\)"):
        Tokenizer.load(tmp_path / "other.model")
    (tmp_path / "no.model").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="no.model is not a SentencePiece model"):
        Tokenizer.load(tmp_path / "no.model")
