"""SentencePiece subwords (Kudo and Richardson, 2018); the one place where special ids exist.

The model file neither normalises nor marks the ends of sentences: ``cleaning.normalise`` comes before it, and
``batching`` adds bos and eos. What a user types never becomes a special id: a literal ``</s>`` is five characters.
"""

import hashlib
import io
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import sentencepiece

from pipeline.data.config import TokenizerConfig

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")


class Tokenizer:
    """Text to ids and back, without bos and eos. Raises ``ValueError`` for a model with other special ids."""

    def __init__(self, model: bytes, name: str = "tokenizer"):
        self.model = model
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            raise ValueError(f"{name} is not a SentencePiece model: prepare the data again") from None
        processor = self.processor
        ids = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        if ids != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
            raise ValueError(f"{name} has pad, unk, bos, eos at {ids} instead of (0, 1, 2, 3): prepare the data again")

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        return cls(Path(path).read_bytes(), name=str(path))

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self.model)

    @property
    def vocab_size(self) -> int:
        return self.processor.vocab_size()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model file."""
        return hashlib.sha256(self.model).hexdigest()

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Ids of the pieces of sentences that ``normalise`` has seen."""
        return self.processor.encode(sentences)

    def decode(self, ids: list[list[int]]) -> list[str]:
        return self.processor.decode(ids)


class Tokenizers(NamedTuple):
    """Both sides' tokenizers; with a joint vocabulary the same one twice."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target

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


def train_tokenizers(source: Iterable[str], target: Iterable[str], config: TokenizerConfig) -> Tokenizers:
    """Learn the vocabulary, or one each, from the training side's normalised sentences (read more than once). The same
    text gives the same model. A size the text cannot give is lowered with a warning that states the real one."""
    if config.joint:
        both = train_tokenizer(lambda: itertools.chain(source, target), config)
        return Tokenizers(both, both)
    return Tokenizers(train_tokenizer(lambda: iter(source), config), train_tokenizer(lambda: iter(target), config))


def train_tokenizer(read: Callable[[], Iterator[str]], config: TokenizerConfig) -> Tokenizer:
    """Learn one vocabulary from the sentences that ``read()`` yields, every time anew."""
    if reserved := [symbol for symbol in config.symbols if symbol in SPECIAL_PIECES or not symbol.strip()]:
        raise ValueError(f"tokenizer.symbols={reserved} cannot be user-defined pieces: rename or remove them")
    try:
        tokenizer = Tokenizer(_train(read(), config, config.vocab_size))
    except RuntimeError as error:
        tokenizer = Tokenizer(_train(read(), config, _possible_size(str(error), config)))
    if tokenizer.vocab_size < config.vocab_size:
        message = f"tokenizer.vocab_size={config.vocab_size} is more than this corpus gives"
        warnings.warn(f"{message}: the vocabulary has {tokenizer.vocab_size} pieces", stacklevel=2)
    return tokenizer


def _train(sentences: Iterator[str], config: TokenizerConfig, vocab_size: int) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences,
        model_writer=model,
        model_type=config.kind,
        vocab_size=vocab_size,
        hard_vocab_limit=config.kind != "unigram",
        character_coverage=config.character_coverage,
        byte_fallback=config.byte_fallback,
        user_defined_symbols=config.symbols,
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
