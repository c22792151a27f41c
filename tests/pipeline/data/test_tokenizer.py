import io
import warnings
from dataclasses import replace

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
    with pytest.warns(UserWarning, match=r"tokenizer.vocab_size=8000 .* the vocabulary has \d+ pieces") as warned:
        tokenizers = learn(kind=kind, joint=joint, vocab_size=8000, multiple_of=1)
    for tokenizer, warning in zip(tokenizers, warned, strict=False):
        assert f"has {tokenizer.vocab_size} pieces" in str(warning.message)
        assert 20 < tokenizer.vocab_size < 300
        assert max(max(ids) for ids in tokenizer.encode(ENGLISH + GERMAN)) < tokenizer.vocab_size
        assert f"more than the {tokenizer.vocab_size} that" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for side, tokenizer in zip((ENGLISH, GERMAN), tokenizers, strict=True):
            learn(*((ENGLISH, GERMAN) if joint else (side, side)), kind=kind, vocab_size=tokenizer.vocab_size)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("more", [{}, {"byte_fallback": True}, {"symbols": ["<sep>", "<mask>"]}])
def test_a_vocabulary_smaller_than_the_alphabet_is_refused_with_the_least_size(kind, more):
    with pytest.raises(ValueError, match=r"tokenizer.vocab_size=20 .* set it to at least (\d+)") as error:
        learn(vocab_size=20, kind=kind, **more)
    least = int(str(error.value).split("at least ")[1].split(",")[0])
    assert learn(vocab_size=least, multiple_of=1, kind=kind, **more).source.vocab_size == least
    with pytest.raises(ValueError, match=f"set it to at least {least},"):
        learn(vocab_size=least - 1, kind=kind, **more)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_vocabulary_is_filled_up_with_pieces_that_never_occur_and_say_nothing(kind):
    plain, filled = learn(kind=kind, multiple_of=1).source, learn(kind=kind, multiple_of=32).source
    assert (plain.vocab_size, filled.vocab_size) == (48, 64)
    text = [*ENGLISH, *GERMAN, "<filler0>", *(filled.processor.id_to_piece(id) for id in range(48, 64))]
    assert filled.encode(text) == plain.encode(text)
    words = filled.encode(["the cat"])[0]
    assert filled.decode([[words[0], 48, *words[1:], 63]]) == ["the cat"]


def test_bytes_spell_unknown_characters_and_are_joined_again():
    tokenizer = learn(byte_fallback=True, vocab_size=320).source
    text = ["the cat 😀", "爿", "<0xF0>", "👩\u200d👩\u200d👧"]
    assert all(UNK_ID not in ids for ids in tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_that_spell_no_text_are_left_out():
    tokenizer = learn(byte_fallback=True, vocab_size=320).source
    cat = tokenizer.encode(["cat"])[0]

    def spelt(*values: int) -> list[int]:
        return [tokenizer.processor.piece_to_id(f"<0x{value:02X}>") for value in values]

    smile = "😀".encode()
    for wrong in (smile[:3], smile[1:], b"\n", b"\r\n\0", b"\xff\xc0\x80", "\u2028\x85".encode()):
        assert tokenizer.decode([cat + spelt(*wrong), spelt(*wrong) + cat]) == ["cat", "cat"], wrong
        assert tokenizer.decode([spelt(*wrong, *smile)]) == ["😀"]
    assert tokenizer.decode([spelt(*smile[:2]) + cat + spelt(*smile[2:])]) == ["cat"]


def test_digits_scripts_and_length_bound_pieces_as_asked():
    source = ["in 2024 and 2024 or 2024", "abcабв abcабв abcабв", "incomprehensibilities " * 3] * 9

    def pieces(**settings) -> set[str]:
        tokenizer = learn(source, source, vocab_size=90, **settings).source
        return {piece for text in source for piece in tokenizer.processor.encode(text, out_type=str)}

    assert {"▁2024", "▁abc", "абв", "ehensibilities"} <= pieces()
    assert {"2", "0", "4"} <= pieces(split_digits=True)
    assert not {piece for piece in pieces(split_digits=True) if len(piece.strip("▁")) > 1 and "2" in piece}
    assert "▁abcабв" in pieces(split_by_unicode_script=False)
    assert max(map(len, pieces(max_piece_length=4))) == 4


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("joint", [True, False])
def test_a_tag_is_one_id_before_a_source_and_never_comes_from_text(kind, joint):
    config = TokenizerConfig(vocab_size=56, kind=kind, joint=joint)
    typed = ["<2de> the cat", "<2de>the cat", "<2fr>"]
    tokenizers = train_tokenizers(ENGLISH + typed, GERMAN, config, languages=["de", "pt-BR"])
    assert tokenizers.languages == ["de", "pt-BR"]
    assert learn().languages == []
    ids = tokenizers.source.tags
    assert len({*ids.values()} - {PAD_ID, UNK_ID, BOS_ID, EOS_ID}) == 2
    for row, plain in zip(tokenizers.encode_source(typed, "de"), tokenizers.source.encode(typed), strict=True):
        assert row == [ids["de"], *plain]
        assert not {*ids.values()} & {*plain}
    assert tokenizers.encode_source(typed) == tokenizers.source.encode(typed)
    assert tokenizers.source.decode(tokenizers.encode_source(["the cat"], "pt-BR")) == ["the cat"]
    assert joint or not tokenizers.target.tags
    with pytest.raises(ValueError, match="tokenizer.symbols=.*<2de>.*cannot be user-defined"):
        train_tokenizers(ENGLISH, GERMAN, TokenizerConfig(vocab_size=56, symbols=["<2de>"]), languages=["de"])


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


def test_a_symbol_that_is_named_twice_is_refused_at_once():
    with pytest.raises(ValueError, match=r"tokenizer.symbols names \['<sep>'\] more than once: once is enough"):
        TokenizerConfig(symbols=["<sep>", "<x>", "<sep>"])


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


def brought(path, **settings) -> bytes:
    """A model learned elsewhere."""
    model = io.BytesIO()
    options = {"vocab_size": 48, "model_type": "bpe", "hard_vocab_limit": False} | settings
    options = {"normalization_rule_name": "identity", "minloglevel": 2} | options
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(ENGLISH), model_writer=model, **options)
    path.write_bytes(model.getvalue())
    return model.getvalue()


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "word"])
@pytest.mark.parametrize(
    "ids",
    [
        {},  # unk, bos, eos; no pad
        {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
        {"pad_id": 7, "unk_id": 5, "bos_id": 9, "eos_id": 6, "pad_piece": "[PAD]", "eos_piece": "[SEP]"},
        {"user_defined_symbols": ["<pad>", "<2de>"]},
    ],
)
def test_a_model_brought_along_keeps_its_segmentation_and_gets_our_special_ids(tmp_path, kind, ids):
    before = sentencepiece.SentencePieceProcessor(
        model_proto=brought(tmp_path / "their.model", model_type=kind, vocab_size=40, **ids)
    )
    config = TokenizerConfig(model=[str(tmp_path / "their.model")])
    tokenizers = train_tokenizers(unread(), unread(), config, languages=["de", "fr"])
    tokenizer = tokenizers.source
    assert tokenizers.joint
    assert tokenizers.languages == ["de", "fr"]
    assert tokenizer.vocab_size % 8 == 0
    text = [*ENGLISH, "a dog sat", "unheard <of> ½"]
    assert tokenizer.processor.encode(text, out_type=str) == before.encode(text, out_type=str)
    assert [tokenizer.processor.get_score(id) for id in tokenizer.encode(text[:1])[0]] == [
        before.get_score(id) for id in before.encode(text[0])
    ]
    assert tokenizer.decode(tokenizer.encode(ENGLISH)) == ENGLISH
    assert not {*tokenizer.tags.values()} & {*tokenizer.encode(["<2de>"])[0]}
    tokenizers.save(tmp_path)
    assert Tokenizers.load(tmp_path).languages == ["de", "fr"]


def unread():
    raise AssertionError("a tokenizer that is there is not learned")
    yield


def test_a_model_of_ours_is_brought_along_as_it_is(tmp_path):
    ours = learn().source
    ours.save(tmp_path / "ours.model")
    config = TokenizerConfig(model=[str(tmp_path / "ours.model")])
    assert train_tokenizers([], [], config).source.fingerprint == ours.fingerprint


def test_two_models_are_the_sources_and_the_targets(tmp_path):
    brought(tmp_path / "source.model", vocab_size=30)
    brought(tmp_path / "target.model", vocab_size=50)
    files = [str(tmp_path / f"{side}.model") for side in ("source", "target")]
    tokenizers = train_tokenizers([], [], TokenizerConfig(model=files, multiple_of=1), languages=["de"])
    assert [tokenizer.vocab_size for tokenizer in tokenizers] == [32, 51]  # a pad each, and a tag
    assert [list(tokenizer.tags) for tokenizer in tokenizers] == [["de"], []]
    assert train_tokenizers([], [], TokenizerConfig(model=files[:1] * 2)).joint


def test_what_a_model_brought_along_cannot_do_is_said(tmp_path):
    brought(tmp_path / "nfkc.model", normalization_rule_name="nmt_nfkc")
    with pytest.warns(UserWarning, match=r"nfkc.model normalises text by rules of its own: no translation will have …"):
        train_tokenizers([], [], TokenizerConfig(model=[str(tmp_path / "nfkc.model")]))
    brought(tmp_path / "word.model", model_type="word", vocab_size=20)
    config = TokenizerConfig(model=[str(tmp_path / "word.model")], regularisation=0.1)
    with pytest.raises(ValueError, match=r"regularisation=0.1 needs a model of kind unigram or bpe, and .*word.model"):
        train_tokenizers([], [], config)
    with pytest.raises(ValueError, match=r"word.model has no pieces for tokenizer.symbols=\['<sep>'\]"):
        train_tokenizers([], [], replace(config, symbols=["<sep>"]))
    (tmp_path / "no.model").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="no.model is not a SentencePiece model"):
        train_tokenizers([], [], TokenizerConfig(model=[str(tmp_path / "no.model")]))


def test_other_models_are_refused(tmp_path):
    brought(tmp_path / "other.model")
    with pytest.raises(ValueError, match=r"other.model has pad, unk, bos, eos at \(-1, 0, 1, 2\)"):
        Tokenizer.load(tmp_path / "other.model")
    (tmp_path / "no.model").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="no.model is not a SentencePiece model"):
        Tokenizer.load(tmp_path / "no.model")
