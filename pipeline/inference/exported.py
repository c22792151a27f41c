"""What every exported folder holds beside its engine's own files: the tokenizer and the configuration, so that the
folder alone is enough to translate from, with the normalisation and the search settings it was made for."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.checkpoint import portable_files
from pipeline.cli import read_configuration
from pipeline.config import Configuration, SearchConfig, require
from pipeline.data.tokenizer import Tokenizer, Tokenizers
from pipeline.inference.engine import Source

FORBIDDEN = -1e4
"""Added to a logit that must not win: e to its power is 0, and 16 bits hold it."""

LEAST_POSITIONS = 1024
"""In written tables of positions, also where the model's search settings need fewer."""


def write_small_files(folder: Path, tokenizers: Tokenizers, configuration: Configuration) -> None:
    for name, content in portable_files(tokenizers, configuration).items():
        (folder / name).write_bytes(content)


def read_small_files(folder: str | Path) -> tuple[Tokenizers, Configuration]:
    """:raises ValueError, OSError: they are missing or damaged."""
    configuration = read_configuration(Path(folder) / "config.yaml")
    return Tokenizers.load(folder), configuration


def damaged(folder: str | Path, found: object) -> str:
    return f"{folder}: the export is damaged ({found}): write it again with scripts/export.py"


def pieces(tokenizer: Tokenizer) -> list[str]:
    """The vocabulary, by id."""
    return tokenizer.processor.id_to_piece(list(range(tokenizer.vocab_size)))


def num_positions(configuration: Configuration) -> int | None:
    """How many positions an exported model has; None where any number will do."""
    if configuration.model.positions == "learned":
        return configuration.model.max_positions
    if configuration.model.positions in ("sinusoidal", "alibi"):
        return max(LEAST_POSITIONS, _needed_positions(configuration.search))
    return None


def _needed_positions(search: SearchConfig) -> int:
    return max(search.max_source_tokens + 1, search.max_length(search.max_source_tokens))


def require_as_ours(search: SearchConfig, configuration: Configuration, engine: str) -> None:
    """:raises ValueError: these settings ask for what another engine does in another way than our search, or not at
    all, or for more positions than were exported."""
    alike = {
        "method": ("beam",),
        "length_normalisation": ("average", "none"),
        "coverage_penalty": (0,),
        "diverse_groups": (1,),
        "min_length": (0,),
        "no_repeat_ngram": (0,),
        "repetition_penalty": (1,),
        "banned": ([],),
        "ensemble_weights": ([],),
    }
    for name, values in alike.items():
        require(
            getattr(search, name) in values,
            f"search.{name}={getattr(search, name)} is not done by {engine} as by our own search: set "
            f"search.{name}={values[0]}, or translate with the model that was exported",
        )
    search.require_room(configuration.model)
    exported, needed = num_positions(configuration), _needed_positions(search)
    require(
        exported is None or needed <= exported,
        f"search.max_source_tokens={search.max_source_tokens} and a translation of so many may take {needed} "
        f"positions, more than the {exported} of this export: lower it, or export the model with it",
    )


def require_free(sources: Sequence[Source], engine: str) -> None:
    """:raises ValueError: something is asked to be in a translation."""
    require(
        not any(source.prefix or source.terms for source in sources),
        f"a prefix or terms are not asked of {engine}: translate with the model that was exported",
    )
