"""SentencePiece subwords (Kudo and Richardson, 2018), learned or brought along; the one place where special ids exist.

A learned model neither normalises nor marks the ends of sentences: ``cleaning.normalise`` comes before it, and
``batching`` adds bos and eos. What a user types never becomes a special id: a literal ``</s>`` is five characters, and
so is the ``<2de>`` by which a model of several directions is told what to translate into. Tags and the pieces that
fill a vocabulary up are control pieces of the model, which no text is cut into and which stand for no text.
"""

import hashlib
import io
import itertools
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import sentencepiece

from pipeline.data.config import TokenizerConfig
from pipeline.data.pieces import SPECIAL_PIECES, completed, kind, special_ids

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3

LOST = "…½²ﬁ"
"""Characters that usual normalisations of SentencePiece models take away."""


class Tokenizer:
    """Text to ids and back, without bos and eos. Raises ``ValueError`` for a model with other special ids."""

    def __init__(self, model: bytes, name: str = "tokenizer"):
        self.model = model
        self.processor = _processor(model, name)
        ids = special_ids(self.processor)
        if ids != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
            raise ValueError(
                f"{name} has pad, unk, bos, eos at {ids} instead of (0, 1, 2, 3): prepare the data with "
                f"tokenizer.model=[{name}], which moves them"
            )

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        return cls(Path(path).read_bytes(), name=str(path))

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self.model)

    def __reduce__(self):
        return Tokenizer, (self.model,)

    @property
    def vocab_size(self) -> int:
        return self.processor.vocab_size()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model file."""
        return hashlib.sha256(self.model).hexdigest()

    @cached_property
    def tags(self) -> dict[str, int]:
        """The ids of the tags, by language."""
        pieces = {id: self.processor.id_to_piece(id) for id in range(self.vocab_size) if self.processor.is_control(id)}
        found = {id: re.fullmatch("<2(.+)>", piece) for id, piece in pieces.items()}
        return {match[1]: id for id, match in found.items() if match}

    @cached_property
    def bytes(self) -> dict[int, int]:
        """The bytes that pieces spell, by id."""
        ids = (self.processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(256))
        return {id: byte for byte, id in enumerate(ids) if self.processor.is_byte(id)}

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Ids of the pieces of sentences that ``normalise`` has seen."""
        return self.processor.encode(sentences)

    def decode(self, ids: list[list[int]]) -> list[str]:
        """The texts; bytes that spell no character, or one that is not text (a line end), are left out."""
        return self.processor.decode([self._spelt(row) for row in ids] if self.bytes else ids)

    def _spelt(self, ids: Sequence[int]) -> list[int]:
        if self.bytes.keys().isdisjoint(ids):
            return list(ids)
        id_of = {byte: id for id, byte in self.bytes.items()}
        spelt: list[int] = []
        for are_bytes, run in itertools.groupby(ids, self.bytes.__contains__):
            if are_bytes:
                text = bytes(self.bytes[id] for id in run).decode(errors="ignore")
                run = [id_of[byte] for letter in text if not _breaks_lines(letter) for byte in letter.encode()]
            spelt += run
        return spelt


class Tokenizers(NamedTuple):
    """Both sides' tokenizers; with a joint vocabulary the same one twice."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target

    @property
    def languages(self) -> list[str]:
        """Those that a tag asks for; none in a model of one direction without tags."""
        return list(self.source.tags)

    def encode_source(self, sentences: list[str], language: str = "") -> list[list[int]]:
        """Ids of sources, each with the tag of the language it is translated into before it, where one is named."""
        encoded = self.source.encode(sentences)
        return [[self.source.tags[language], *ids] for ids in encoded] if language else encoded

    def language_of(self, source: Sequence[int]) -> str:
        """The language that the ids of a source ask for; none where they begin without a tag."""
        return next((language for language, id in self.source.tags.items() if [id] == list(source[:1])), "")

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizers":
        """Read ``tokenizer.model``, or ``tokenizer.source.model`` and ``tokenizer.target.model``."""
        folder = Path(folder)
        if (folder / "tokenizer.model").exists():
            both = Tokenizer.load(folder / "tokenizer.model")
            return cls(both, both)
        return cls(*(Tokenizer.load(folder / f"tokenizer.{side}.model") for side in cls._fields))

    def save(self, folder: str | Path) -> None:
        if self.joint:
            return self.source.save(Path(folder) / "tokenizer.model")
        for side, tokenizer in zip(self._fields, self, strict=True):
            tokenizer.save(Path(folder) / f"tokenizer.{side}.model")


def train_tokenizers(
    source: Iterable[str], target: Iterable[str], config: TokenizerConfig, languages: Sequence[str] = ()
) -> Tokenizers:
    """Learn the vocabulary, or one each, from the training side's normalised sentences (read more than once), or take
    the models that ``config.model`` names, and then read none. The same text gives the same model.

    A size the text cannot give is lowered with a warning that states the real one.

    Args:
        languages: those that a source may be translated into, which get a tag each.

    Raises:
        ValueError: the settings and the text, or a model that was brought along, do not go together.
    """
    if config.model:
        return _brought(config, languages)
    if config.joint:
        both = train_tokenizer(lambda: itertools.chain(source, target), config, languages)
        return Tokenizers(both, both)
    return Tokenizers(
        train_tokenizer(lambda: iter(source), config, languages), train_tokenizer(lambda: iter(target), config)
    )


def train_tokenizer(
    read: Callable[[], Iterator[str]], config: TokenizerConfig, languages: Sequence[str] = ()
) -> Tokenizer:
    """Learn one vocabulary from the sentences that ``read()`` yields, every time anew."""
    taken = {*SPECIAL_PIECES, *map(tag, languages)}
    if reserved := [symbol for symbol in config.symbols if symbol in taken or not symbol.strip()]:
        raise ValueError(f"tokenizer.symbols={reserved} cannot be user-defined pieces: rename or remove them")
    try:
        model = _train(read(), config, config.vocab_size, languages)
    except RuntimeError as error:
        model = _train(read(), config, _possible_size(str(error), config), languages)
    tokenizer, learned = Tokenizer(completed(model, [], config.multiple_of)), Tokenizer(model).vocab_size
    if learned < config.vocab_size:
        warnings.warn(
            f"tokenizer.vocab_size={config.vocab_size} is more than the {learned} that this corpus gives: the "
            f"vocabulary has {tokenizer.vocab_size} pieces",
            stacklevel=2,
        )
    return tokenizer


def tag(language: str) -> str:
    """The piece that asks for a translation into the language."""
    return f"<2{language}>"


def _train(sentences: Iterator[str], config: TokenizerConfig, vocab_size: int, languages: Sequence[str]) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences,
        model_writer=model,
        model_type=config.kind,
        vocab_size=vocab_size,
        hard_vocab_limit=config.kind != "unigram",
        character_coverage=config.character_coverage,
        byte_fallback=config.byte_fallback,
        split_digits=config.split_digits,
        split_by_unicode_script=config.split_by_unicode_script,
        max_sentencepiece_length=config.max_piece_length,
        user_defined_symbols=config.symbols,
        control_symbols=[tag(language) for language in languages],
        normalization_rule_name="identity",
        max_sentence_length=1 << 30,  # bytes; longer lines would be skipped without a word
        num_threads=16,  # a constant: the sums of unigram training depend on it
        pad_id=PAD_ID,
        unk_id=UNK_ID,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        minloglevel=2,
    )
    return model.getvalue()


def _possible_size(refusal: str, config: TokenizerConfig) -> int:
    """The largest size that SentencePiece's refusal names. Raises ``ValueError`` for every other refusal."""
    if largest := re.search(r"set it to a value <= (\d+)", refusal):
        return int(largest[1])
    if needed := re.search(r"required_chars\D*\d+ vs (\d+)", refusal):
        raise ValueError(
            f"tokenizer.vocab_size={config.vocab_size} has no room for the corpus's characters: set it to at least "
            f"{needed[1]}, or lower tokenizer.character_coverage"
        ) from None
    raise ValueError(f"SentencePiece cannot learn a tokenizer from this corpus: {refusal}") from None


def _brought(config: TokenizerConfig, languages: Sequence[str]) -> Tokenizers:
    """The models of ``config.model``, special pieces and tags put in their places."""
    models = []
    for path in config.model:
        models.append(Path(path).read_bytes())
        _require_usable(models[-1], path, config)
    changed = [letter for letter in LOST if letter not in _processor(models[-1], path).normalize(LOST)]
    if changed:
        warnings.warn(
            f"{path} normalises text by rules of its own: no translation will have {' '.join(changed)} and the like",
            stacklevel=3,
        )
    source = Tokenizer(completed(models[0], [tag(language) for language in languages], config.multiple_of))
    if models[0] == models[-1]:
        return Tokenizers(source, source)
    return Tokenizers(source, Tokenizer(completed(models[-1], [], config.multiple_of)))


def _require_usable(model: bytes, path: str, config: TokenizerConfig) -> None:
    """:raises ValueError: this is no model, or a setting asks for what it does not have."""
    processor = _processor(model, path)
    if missing := [symbol for symbol in config.symbols if processor.is_unknown(processor.piece_to_id(symbol))]:
        raise ValueError(f"{path} has no pieces for tokenizer.symbols={missing}: remove them, or learn a tokenizer")
    if config.regularisation and kind(model) not in ("unigram", "bpe"):
        raise ValueError(
            f"tokenizer.regularisation={config.regularisation} needs a model of kind unigram or bpe, and {path} is of "
            f"kind {kind(model)}: set it to 0"
        )


def _processor(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError:
        raise ValueError(f"{name} is not a SentencePiece model, or damaged: name another file") from None


def _breaks_lines(letter: str) -> bool:
    return unicodedata.category(letter) in ("Cc", "Zl", "Zp")
