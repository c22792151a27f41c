"""Every choice about the data, from corpora to batches, as frozen, checked dataclasses.

The text under a field is its ``--help``. Imports no torch, so that help and errors are instant.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args, get_type_hints

from pipeline.checks import require


@dataclass(frozen=True)
class CorpusConfig:
    """Where sentence pairs come from: one corpus."""

    kind: Literal[
        "text", "tsv", "csv", "jsonl", "parquet", "arrow", "hub", "tmx", "xliff", "gettext", "verses", "sword"
    ] = "text"
    """``text``: two line-aligned files. ``tsv``: tab-separated columns, no quoting. ``csv``: columns with quotes.
    ``jsonl``: one object a line. ``parquet``, ``arrow``: columns of such files. ``hub``: a data set of the Hugging Face
    Hub, or a local folder of the same layout. ``tmx``: translation memories. ``xliff``: XLIFF 1.2 or 2. ``gettext``:
    catalogs (.po, .mo), folders of them, or a Debian package. ``verses``: two eBible files, a verse a line. ``sword``:
    two Bible modules aligned by verse. Files but ``parquet`` and ``arrow`` may be compressed (gz, bz2, xz, zst)."""

    source_language: str = "en"
    """Code of the language translated from."""

    target_language: str = "de"
    """Code of the language translated into; also picks sacreBLEU's tokenizer (zh, ja, ko)."""

    reverse: bool = False
    """Exchange the sides of every pair that is read, where the corpus has them the other way round. Languages are
    those of the pairs after that."""

    train: list[str] = field(default_factory=list)
    """Training data, with ``*`` and ``?`` in names of files if need be. ``text``, ``verses``: a source file and its
    target file, any number of such couples. ``hub``: split names. Others: files, ``gettext`` also folders."""

    valid: list[str] = field(default_factory=list)
    """Validation data, in the form of ``train``; when empty, ``valid_size`` pairs are held out of ``train``."""

    test: list[str] = field(default_factory=list)
    """Test data, in the form of ``train``; when empty, ``test_size`` pairs are held out of ``train``."""

    source_column: str = "source"
    """``tsv``, ``csv``, ``jsonl``, ``parquet``, ``arrow``, ``hub``: the source's column by name (dots reach inside:
    ``translation.en``), or, for a ``tsv`` or ``csv`` without a header, by number from 1. ``parquet``, ``arrow``,
    ``hub``: ``translation.en`` or ``en``, by the language, need not be named."""

    target_column: str = "target"
    """The target's column, in the form of ``source_column``."""

    group_column: str = ""
    """A column that names what belongs together (a document), in the form of ``source_column``: held-out data is taken
    in whole groups."""

    delimiter: str = ","
    """``csv``: the character between cells; many spreadsheets write ``;``."""

    encoding: str = "utf-8"
    """Encoding of ``text``, ``tsv``, ``csv``, ``jsonl`` and ``verses`` files. ``text``, ``verses``: where the sides
    differ, the source's and the target's, with a blank between them (``utf-16 utf-8``)."""

    name: str = ""
    """``hub``: name of the data set (``bentrevett/multi30k``) or a local folder."""

    configuration: str = ""
    """``hub``: configuration of the data set, where it has several (``de-en``)."""

    package: str = ""
    """``gettext``: Debian package with catalogs (``libreoffice-l10n-de``), instead of ``train``; fetched with ``apt-get
    download``, unpacked without root. A couple of packages has a blank between them."""

    message_language: str = "en"
    """``gettext``: language of the messages themselves (msgid). Where neither side is in it, catalogs, folders or
    packages come in couples, as ``text`` files do, and the translations of the same message are paired."""

    source_package: str = "sword-text-web"
    """``sword``: Debian package of the source text; fetched in the same way."""

    target_package: str = "sword-text-sparv"
    """``sword``: Debian package of the target text."""

    sword_folder: str = ""
    """``sword``: a folder with installed modules (it holds ``mods.d`` and ``modules``), used instead of packages."""

    source_module: str = ""
    """``sword``: module of the source text; needed where a folder or package holds several."""

    target_module: str = ""
    """``sword``: module of the target text, likewise."""

    weight: float = 1.0
    """How often each pair is read in an epoch, on average: 2 is twice, 0.5 another half of them every epoch."""

    cleaning: dict[str, Any] = field(default_factory=dict)
    """Settings of ``cleaning`` that are different for this corpus."""

    def __post_init__(self):
        require(self.weight > 0, f"corpora: weight={self.weight} must be more than 0: leave out what is not to be read")
        require(
            len(self.delimiter) == 1 and self.delimiter not in '"\r\n',
            f"corpora: delimiter={self.delimiter!r} must be one character, such as ;",
        )
        require(
            1 <= len(self.encoding.split()) <= 1 + (self.kind in ("text", "verses")),
            f"corpora: encoding={self.encoding!r} must be one, or two, of source and target, with kind text or verses",
        )

    @property
    def encodings(self) -> list[str]:
        """Of the source's and of the target's files."""
        names = self.encoding.split()
        return names if len(names) == 2 else names * 2


@dataclass(frozen=True)
class CorporaConfig(CorpusConfig):
    """Where the sentence pairs come from: one corpus, or several as ``parts``."""

    parts: list[CorpusConfig] = field(default_factory=list)
    """Several corpora, each with settings of its own; those of the single corpus then say nothing but the languages."""

    temperature: float = 1.0
    """Several corpora: each is read so often that its share of an epoch is as its size to the power of 1 /
    ``temperature``, before weights; 1 reads each pair once, more reads small corpora more often (5 is usual for many
    languages). An epoch has as many pairs as all corpora together, times their weights."""

    stream_window: int = 0
    """Train on what the disk has no room for: corpora are read over and over, so many pairs at a time, which are
    cleaned, compared with valid and test, and encoded while those before are trained on; then they are deleted. Of
    several corpora each gives the share of its ``weight``. Preparing reads as many pairs alone: tokenizers are learned,
    and data is held out, from these. 0 prepares all beforehand."""

    tags: bool = False
    """Several directions in one model: begin every source with a tag for the language asked for (``<2de>``); needed
    where one language is translated into several."""

    valid_size: int = 1000
    """Pairs held out for validation where no ``valid`` is named: all copies of a source, or all of a group that is not
    far too large, go together, and what else has one of their sides on either side is dropped as ``overlap``."""

    test_size: int = 1000
    """Pairs held out for testing where no ``test`` is named."""

    split_seed: int = 0
    """Another number holds out other pairs."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("valid_size", "test_size", "split_seed"):
            require(getattr(self, name) >= 0, f"corpora.{name}={getattr(self, name)} must be 0 or more")
        require(self.temperature >= 1, f"corpora.temperature={self.temperature} must be at least 1")
        require(
            self.stream_window == 0 or self.stream_window >= len(self.each),
            f"corpora.stream_window={self.stream_window} must be 0 (off) or at least a pair of each corpus",
        )
        require(
            not self.stream_window or self.temperature == 1,
            f"corpora.temperature={self.temperature} needs sizes, which a stream does not know: set weights instead",
        )
        for name in ("train", "valid", "test"):
            require(
                not (self.parts and getattr(self, name)),
                f"corpora.{name} and corpora.parts both name data: move the former into one of the parts",
            )
        directions = dict.fromkeys((corpus.source_language, corpus.target_language) for corpus in self.each)
        for source, _ in directions:
            targets = [target for other, target in directions if other == source]
            require(
                self.tags or len(targets) == 1,
                f"corpora.parts translate {source} into {' and '.join(targets)}, and nothing tells the model which: "
                "set corpora.tags=true",
            )
        self.cleaning_of_each(CleaningConfig())

    def cleaning_of_each(self, cleaning: CleaningConfig) -> list[CleaningConfig]:
        """The settings of cleaning for each corpus: those of all, with its own in their places."""
        places = [f"corpora.parts[{number}]" for number in range(len(self.parts))] or ["corpora"]
        return [
            cleaning.changed(corpus.cleaning, f"{place}.cleaning")
            for corpus, place in zip(self.each, places, strict=True)
        ]

    @property
    def each(self) -> list[CorpusConfig]:
        """The corpora, one at least."""
        return self.parts or [self]

    @property
    def shares(self) -> list[int]:
        """Pairs of each corpus in a window of the stream."""
        total = sum(corpus.weight for corpus in self.each)
        return [max(1, round(self.stream_window * corpus.weight / total)) for corpus in self.each]

    @property
    def holds_out(self) -> bool:
        """Whether pairs for validation or testing are taken from the training data."""
        return any(
            getattr(self, f"{name}_size") and not any(getattr(corpus, name) for corpus in self.each)
            for name in ("valid", "test")
        )


FOR_ALL_CORPORA = (
    "unicode_form",
    "drop_duplicates",
    "drop_duplicate_sources",
    "drop_duplicate_targets",
    "near_duplicates",
    "drop_overlap",
    "near_overlap",
)
"""Settings of cleaning that one corpus cannot have for itself."""


@dataclass(frozen=True)
class CleaningConfig:
    """How text is repaired, and which pairs are dropped before training; the report counts each rule."""

    unicode_form: Literal["NFC", "NFKC", "none"] = "NFC"
    """Unicode normalisation of both sides; NFKC also folds ligatures, full-width letters and the like. Control
    characters are removed and white space is folded in any case. References for scoring are never touched."""

    mojibake: Literal["keep", "repair", "drop"] = "keep"
    """``mojibake``: text that was decoded wrongly (``SchrÃ¶der``) is repaired by ftfy, or its pair dropped."""

    markup: Literal["keep", "strip", "drop"] = "keep"
    """``markup``: tags and character entities of HTML are taken out (entities become their characters), or the pair
    dropped."""

    min_characters: int = 1
    """``too_short``: drop a pair with a side shorter than this."""

    max_characters: int = 1000
    """``too_long``: drop a pair with a side longer than this."""

    max_words: int = 0
    """``too_many_words``: drop a pair with a side of more words; 0 allows any number."""

    max_length_ratio: float = 4.0
    """``length_ratio``: drop a pair whose longer side has more than this many times the other's characters (ten are
    added to both, so that short sentences pass)."""

    max_word_ratio: float = 0.0
    """``word_ratio``: the same of words, three added to both, where both languages are written with blanks; 0 is
    off."""

    drop_identical: bool = True
    """``identical_sides``: drop a pair whose two sides are the same text."""

    min_letter_share: float = 0.0
    """``few_letters``: drop a pair with a side of which less than this share of the visible characters are letters; 0
    is off, the least above it drops what has no letter."""

    max_foreign_letters: float = 1.0
    """``wrong_script``: drop a pair with a side of whose letters more than this share are not of the scripts its
    language is written in; 1 is off, as it is for languages whose scripts are not known."""

    max_repeated_characters: int = 0
    """``repeated_characters``: drop a pair with a character more often than this in a row; 0 is off."""

    max_repeated_words: int = 0
    """``repeated_words``: drop a pair with a word, or two or three words together, more often than this in a row; 0 is
    off."""

    numbers_match: bool = False
    """``numbers_differ``: drop a pair whose sides hold different numbers, signs between digits apart."""

    links_match: bool = False
    """``links_differ``: drop a pair whose sides hold different URLs or e-mail addresses."""

    min_language_probability: float = 0.0
    """``wrong_language``: drop a pair with a side that is in its language with less than this probability, by
    py3langid; sides of fewer than 20 characters pass; 0 is off. Of 6,000 captions and Bible verses 0.05
    drops 0.3%, and 0.5 drops 3%; of as many that are not translated, either drops 99.9%."""

    drop_duplicates: bool = True
    """``duplicate``: keep one of each exactly equal pair in the training data."""

    drop_duplicate_sources: bool = False
    """``duplicate_source``: keep the first pair of each source, folded as for ``drop_overlap``."""

    drop_duplicate_targets: bool = False
    """``duplicate_target``: likewise for targets."""

    near_duplicates: float = 0.0
    """``near_duplicate``: keep one of the pairs whose sources, and whose targets, are as alike as this (Jaccard
    similarity of their character 4-grams, estimated by MinHash); 0 is off, 0.8 is usual."""

    drop_overlap: bool = True
    """``overlap``: drop training pairs with a side that also stands in valid or test, on either side, after folding
    case, spacing, punctuation and Unicode forms."""

    near_overlap: float = 0.6
    """``near_overlap``: drop training pairs with a side as alike as this to one in valid or test, folded as for
    ``drop_overlap``: 0.6 finds a sentence of ten words with one of them changed; 0 is off."""

    def __post_init__(self):
        for name in ("min_characters", "max_characters"):
            require(getattr(self, name) >= 1, f"cleaning.{name}={getattr(self, name)} must be at least 1")
        require(self.max_length_ratio >= 1, f"cleaning.max_length_ratio={self.max_length_ratio} must be at least 1")
        require(
            self.max_word_ratio == 0 or self.max_word_ratio >= 1,
            f"cleaning.max_word_ratio={self.max_word_ratio} must be 0 (off) or at least 1",
        )
        for name in ("max_words", "max_repeated_characters", "max_repeated_words"):
            require(getattr(self, name) >= 0, f"cleaning.{name}={getattr(self, name)} must be 0 (off) or more")
        for name in (
            "min_letter_share",
            "max_foreign_letters",
            "min_language_probability",
            "near_duplicates",
            "near_overlap",
        ):
            require(0 <= getattr(self, name) <= 1, f"cleaning.{name}={getattr(self, name)} must lie in [0, 1]")

    def changed(self, settings: dict[str, Any], place: str) -> CleaningConfig:
        """These settings, with some of one corpus in their places.

        Raises:
            ValueError: one is no setting of cleaning, or none that a corpus can have for itself; names the ``place``.
        """
        hints = get_type_hints(CleaningConfig)
        for name, value in settings.items():
            require(name in hints, f"{place}: {name} is no setting of cleaning: choose among {', '.join(hints)}")
            require(
                name not in FOR_ALL_CORPORA,
                f"{place}: {name} is the same for all corpora: set cleaning.{name}={value}",
            )
            allowed = get_args(hints[name])
            kinds = (float, int) if hints[name] is float else (hints[name],)
            wanted = " or ".join(allowed) or f"a value of type {hints[name].__name__}"
            right = value in allowed if allowed else type(value) in kinds
            require(right, f"{place}: {name}={value} must be {wanted}")
        return replace(self, **settings)


@dataclass(frozen=True)
class TokenizerConfig:
    """The SentencePiece subwords, learned on the training side only, or brought along."""

    model: list[str] = field(default_factory=list)
    """SentencePiece models to use instead of learning: one for both languages, or the source's and the target's."""

    kind: Literal["unigram", "bpe"] = "bpe"
    """Segmentation: Kudo (2018) or Sennrich et al. (2016)."""

    vocab_size: int = 8000
    """Number of pieces, special ones included; lowered with a warning where the corpus cannot give as many."""

    multiple_of: int = 8
    """The vocabulary is filled up to a multiple of this with pieces that never occur: GPUs like multiples of 8."""

    joint: bool = True
    """One vocabulary for both languages, or one each."""

    sample_pairs: int = 1_000_000
    """Learn from so many pairs at most, taken at even distances: SentencePiece holds them in memory. 0 is all."""

    character_coverage: float = 1.0
    """Share of characters that get a piece; 0.9995 for scripts with thousands of characters."""

    byte_fallback: bool = False
    """Spell unknown characters as UTF-8 bytes instead of the unknown piece."""

    split_digits: bool = False
    """Every digit is a piece of its own."""

    split_by_unicode_script: bool = True
    """No piece holds letters of two scripts."""

    max_piece_length: int = 16
    """The most characters of a piece."""

    symbols: list[str] = field(default_factory=list)
    """User-defined pieces, never split (``<sep>``)."""

    regularisation: float = 0.0
    """Train on other segmentations of the same text every epoch. ``unigram``: the smoothing of the sampling
    distribution (subword regularisation, Kudo, 2018; 0.1 to 0.5). ``bpe``: the probability that a merge is left out
    (BPE-dropout, Provilkov et al., 2020; 0.1). 0 is off; validation and translating always take the best one."""

    def __post_init__(self):
        require(len(self.model) <= 2, f"tokenizer.model={self.model} names more than the source's and the target's")
        require(self.vocab_size >= 8, f"tokenizer.vocab_size={self.vocab_size} must be at least 8")
        for name in ("multiple_of", "max_piece_length"):
            require(getattr(self, name) >= 1, f"tokenizer.{name}={getattr(self, name)} must be at least 1")
        again = [symbol for symbol in dict.fromkeys(self.symbols) if self.symbols.count(symbol) > 1]
        require(not again, f"tokenizer.symbols names {again} more than once: once is enough")
        require(self.sample_pairs >= 0, f"tokenizer.sample_pairs={self.sample_pairs} must be 0 (all) or more")
        require(
            0.98 <= self.character_coverage <= 1,  # SentencePiece takes no other
            f"tokenizer.character_coverage={self.character_coverage} must lie in [0.98, 1]",
        )
        require(
            0 <= self.regularisation < 1, f"tokenizer.regularisation={self.regularisation} must be at least 0, below 1"
        )


@dataclass(frozen=True)
class PreparationConfig:
    """How the work of preparing is done; the prepared data does not depend on it."""

    workers: int = 0
    """Processes that clean, compare and encode; 0 is one for each core."""

    scheduler: str = ""
    """Address of a Dask scheduler (``tcp://host:8786``) whose workers do it instead; they need the same paths."""

    shard_pairs: int = 100_000
    """Pairs per file in between: what one worker handles at a time, and what is lost when it is interrupted."""

    def __post_init__(self):
        require(self.workers >= 0, f"preparation.workers={self.workers} must be 0 (one for each core) or more")
        require(self.shard_pairs >= 1, f"preparation.shard_pairs={self.shard_pairs} must be at least 1")


@dataclass(frozen=True)
class BatchingConfig:
    """How encoded pairs become batches."""

    tokens_per_batch: int = 4096
    """Budget of one batch on one device: rows times longest row, padding included, on either side."""

    max_source_tokens: int = 256
    """Training pairs with a longer source are skipped, and counted."""

    max_target_tokens: int = 256
    """Training pairs with a longer target are skipped, and counted."""

    num_workers: int = 0
    """Processes that collate batches ahead; changes speed only."""

    def __post_init__(self):
        for name in ("tokens_per_batch", "max_source_tokens", "max_target_tokens"):
            require(getattr(self, name) >= 1, f"batching.{name}={getattr(self, name)} must be at least 1")
        require(self.num_workers >= 0, f"batching.num_workers={self.num_workers} must be 0 or more")
