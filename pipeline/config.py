"""Every choice of a run that is not the model's or the data's own, as frozen, checked dataclasses; one YAML file holds
them all.

The text under a field is its ``--help``. Imports no torch, so that help and errors are instant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from models.config import ModelConfig
from pipeline.checks import require
from pipeline.data.config import BatchingConfig, CleaningConfig, CorporaConfig, PreparationConfig, TokenizerConfig


def require_positions(model: ModelConfig, needed: int, options: str) -> None:
    """Raise ``ValueError`` where ``options`` allow longer sequences than there are learned positions for."""
    require(
        model.positions != "learned" or needed <= model.max_positions,
        f"{options} may take {needed} positions, more than model.max_positions={model.max_positions}: make "
        "that less, or train with more positions",
    )


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW or Adam, and the learning rate's course."""

    name: Literal["adamw", "adam"] = "adamw"
    """AdamW (Loshchilov and Hutter, 2019) or Adam (Kingma and Ba, 2015)."""

    schedule: Literal["linear", "inverse_sqrt", "noam"] = "linear"
    """Linear warm-up in all. ``linear``: then straight down to zero at the end of training, whichever of max_steps,
    max_epochs and max_minutes is nearest; ``inverse_sqrt``: learning_rate * sqrt(warmup_steps / step); ``noam``: the
    same with the peak learning_rate * (d_model * warmup_steps)**-0.5 (the paper's with learning_rate 1)."""

    learning_rate: float = 5e-4
    """Peak rate; for ``noam`` a factor."""

    warmup_steps: int = 4000
    """Updates of linear warm-up."""

    beta1: float = 0.9
    """Decay of the gradient's running mean."""

    beta2: float = 0.98
    """Decay of the squared gradient's running mean."""

    eps: float = 1e-9
    """Added to the denominator."""

    weight_decay: float = 0.0
    """AdamW's decoupled decay of matrices (not of norms and biases)."""

    clip_norm: float = 1.0
    """Largest norm of the whole gradient; 0 does not clip."""

    def __post_init__(self):
        require(self.learning_rate > 0, f"optimizer.learning_rate={self.learning_rate} must be above 0")
        require(self.warmup_steps >= 1, f"optimizer.warmup_steps={self.warmup_steps} must be at least 1")
        require(self.clip_norm >= 0, f"optimizer.clip_norm={self.clip_norm} must be 0 (off) or more")
        require(
            self.name == "adamw" or self.weight_decay == 0,
            f"optimizer.weight_decay={self.weight_decay} is AdamW's: set optimizer.name=adamw",
        )


@dataclass(frozen=True)
class TrainerConfig:
    """How long and on what to train, what to watch and what to keep. All steps are optimiser updates."""

    max_steps: int = 100_000
    """Stop after this many updates; 0: no such limit."""

    max_epochs: int = 0
    """Stop after this many passes over the data; 0: no such limit."""

    max_minutes: float = 0.0
    """Stop after this much training time, over all restarts; 0: no such limit."""

    accumulate_batches: int = 1
    """Batches per update and device; the loss stays normalised per target token of the whole update."""

    label_smoothing: float = 0.1
    """Share of the probability spread evenly over the vocabulary (Szegedy et al., 2016)."""

    precision: Literal["32", "bf16", "16", "auto"] = "auto"
    """Of products; weights and sums stay in 32 bits. ``auto``: bf16 on a GPU or (from torch 2.11) CPU with
    instructions for it, otherwise 32."""

    compile: bool = False
    """Compile the model with ``torch.compile``."""

    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """``auto``: a GPU where there is one."""

    devices: int = 0
    """Devices per node; 0: all GPUs, or one process on a CPU."""

    num_nodes: int = 1
    """Machines that train together."""

    validate_every: int = 1000
    """Updates between validations."""

    validation_sentences: int = 200
    """Validation pairs translated greedily and scored at each validation; the loss takes all."""

    attention_pictures: bool = False
    """Draw the cross-attention of the first of these translations at each validation, in ``samples`` and TensorBoard;
    needs matplotlib."""

    metric: Literal["bleu", "chrf", "loss"] = "bleu"
    """What picks the best checkpoint, on the validation data."""

    patience: int = 0
    """Stop after this many validations without a better ``metric``; 0: never."""

    checkpoint_every: int = 500
    """Updates between checkpoints."""

    keep_last: int = 5
    """Newest checkpoints kept; as many are averaged at the end, and the average is shipped if it scores better than
    the best single one."""

    log_every: int = 50
    """Updates between two rows of the log."""

    def __post_init__(self):
        for name in ("accumulate_batches", "num_nodes", "validate_every", "checkpoint_every", "keep_last", "log_every"):
            require(getattr(self, name) >= 1, f"trainer.{name}={getattr(self, name)} must be at least 1")
        for name in ("max_steps", "max_epochs", "max_minutes", "devices", "validation_sentences", "patience"):
            require(getattr(self, name) >= 0, f"trainer.{name}={getattr(self, name)} must be 0 or more")
        require(
            bool(self.max_steps or self.max_epochs or self.max_minutes),
            "trainer.max_steps=0 leaves training without an end: set max_steps, max_epochs or max_minutes",
        )
        require(
            not self.attention_pictures or self.validation_sentences > 0,
            "trainer.attention_pictures=true has nothing to draw where trainer.validation_sentences=0: raise that",
        )
        require(0 <= self.label_smoothing < 1, f"trainer.label_smoothing={self.label_smoothing} must lie in [0, 1)")


GREATEST = {"beam_size": 1000, "candidates": 10_000, "max_length_ratio": 100, "max_length_extra": 10_000}
"""Settings of the search beyond which it takes hours, and finds nothing more."""


@dataclass(frozen=True)
class ScoreConfig:
    """What the score of a translation is made of, whether it is looked for or given."""

    length_normalisation: Literal["average", "gnmt", "none", "word_reward"] = "average"
    """What makes long and short hypotheses comparable, L being the tokens with the end of sentence. ``average``:
    log P / L**length_penalty. ``gnmt``: log P / ((5 + L) / 6)**length_penalty. ``none``: log P.
    ``word_reward``: log P + length_penalty * L."""

    length_penalty: float = 1.0
    """See ``length_normalisation``; 0 is neutral, more favours longer translations."""

    repetition_penalty: float = 1.0
    """Makes tokens that have occurred less likely: positive logits are divided by it, negative ones multiplied
    (Keskar et al., 2019); 1 is neutral."""

    tokens_per_batch: int = 8192
    """Budget of source tokens, padding included, decoded at once; changes speed and memory only."""

    def __post_init__(self):
        require(self.tokens_per_batch >= 1, f"search.tokens_per_batch={self.tokens_per_batch} must be at least 1")
        require(self.repetition_penalty > 0, f"search.repetition_penalty={self.repetition_penalty} must be more than 0")


@dataclass(frozen=True)
class SearchConfig(ScoreConfig):
    """How a translation is looked for."""

    method: Literal["beam", "sampling"] = "beam"
    """``beam`` looks for the most probable translation, ``sampling`` draws translations by their probability."""

    beam_size: int = 5
    """Hypotheses kept per sentence; 1 is greedy search."""

    coverage_penalty: float = 0.0
    """Adds ``coverage_penalty`` * the sum over the source tokens of log min(attention received, 1) to a finished
    hypothesis: more asks for translations that leave nothing out (Wu et al., 2016); 0 is off."""

    max_length_ratio: float = 2.0
    """A translation has at most ``max_length_ratio * source tokens + max_length_extra`` tokens, its end of sentence
    counted, the source's not."""

    max_length_extra: int = 10
    """See ``max_length_ratio``."""

    min_length: int = 0
    """Least number of tokens of a translation, the end of sentence counted as in its greatest length."""

    diverse_groups: int = 1
    """Groups the beam is divided into, each of which avoids the words of those before it (Vijayakumar et al., 2018);
    must divide ``beam_size``."""

    diversity_penalty: float = 0.5
    """What a token costs a group for every hypothesis of an earlier group that has chosen it at the same step; it
    decides which hypotheses are kept, and is not in their scores."""

    temperature: float = 1.0
    """``sampling``: less than 1 sharpens the distribution, more flattens it."""

    top_k: int = 0
    """``sampling``: only among so many most probable tokens; 0 is all."""

    top_p: float = 1.0
    """``sampling``: only among the fewest most probable tokens that together have this probability."""

    seed: int = 1
    """``sampling``: another seed draws other translations; the same one always the same, sentence by sentence."""

    no_repeat_ngram: int = 0
    """No sequence of so many tokens occurs twice in a translation; 0 allows all."""

    banned: list[str] = field(default_factory=list)
    """Words or phrases that no translation may contain; nor, for a search works with pieces, words that are spelled
    as one of them and more."""

    minimum_bayes_risk: Literal["none", "chrf", "bleu"] = "none"
    """Returns, of ``candidates`` hypotheses, the one most like all others by this metric (Eikema and Aziz, 2022)."""

    candidates: int = 16
    """``minimum_bayes_risk``: among so many samples, or hypotheses of a beam, which is as wide for it."""

    ensemble: Literal["probability", "log_probability"] = "probability"
    """Several models translate as one by the mean of their probabilities, or of their log-probabilities: what one
    model thinks possible stays possible, or all must consent."""

    ensemble_weights: list[float] = field(default_factory=list)
    """How much each model of an ensemble counts, in any unit; equally, where nothing is said."""

    max_source_tokens: int = 256
    """A longer line is translated sentence by sentence, and a sentence that is longer by itself in pieces, with a
    warning."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("beam_size", "max_source_tokens", "diverse_groups", "candidates"):
            require(getattr(self, name) >= 1, f"search.{name}={getattr(self, name)} must be at least 1")
        for name, most in GREATEST.items():
            require(getattr(self, name) <= most, f"search.{name}={getattr(self, name)} must be at most {most}")
        require(
            self.minimum_bayes_risk == "none" or self.method == "sampling" or self.candidates <= GREATEST["beam_size"],
            f"search.candidates={self.candidates} are more than the {GREATEST['beam_size']} that a beam may have: "
            "lower them, or set search.method=sampling",
        )
        require(
            all(phrase.strip() for phrase in self.banned),
            f"search.banned={self.banned} has a phrase without a word: leave it out",
        )
        for name in (
            "max_length_ratio",
            "max_length_extra",
            "min_length",
            "coverage_penalty",
            "diversity_penalty",
            "top_k",
            "no_repeat_ngram",
        ):
            require(getattr(self, name) >= 0, f"search.{name}={getattr(self, name)} must be 0 or more")
        require(self.temperature > 0, f"search.temperature={self.temperature} must be more than 0")
        require(
            all(weight > 0 for weight in self.ensemble_weights),
            f"search.ensemble_weights={self.ensemble_weights} must be more than 0: leave out a model that does not "
            "count",
        )
        require(0 < self.top_p <= 1, f"search.top_p={self.top_p} must be more than 0 and at most 1")
        require(
            self.beam_size % self.diverse_groups == 0,
            f"search.diverse_groups={self.diverse_groups} must divide search.beam_size={self.beam_size}",
        )
        require(
            self.max_length_ratio > 0 or self.max_length_extra > 0,
            "search.max_length_extra=0 allows no token: raise it or search.max_length_ratio",
        )

    def changed(self, given: Mapping[str, Any]) -> SearchConfig:
        """With the fields that a user has given.

        Raises:
            ValueError: one of them is wrong, or has no effect without another.
        """
        search = replace(self, **given)
        sampling = search.method == "sampling", "search.method=sampling"
        needs = dict.fromkeys(("temperature", "top_k", "top_p", "seed"), sampling) | {
            "diversity_penalty": (search.diverse_groups > 1, "search.diverse_groups"),
            "candidates": (search.minimum_bayes_risk != "none", "search.minimum_bayes_risk"),
            "length_penalty": (search.length_normalisation != "none", "a search.length_normalisation that is not none"),
        }
        for name, (has_effect, other) in needs.items():
            require(
                name not in given or has_effect,
                f"search.{name}={given.get(name)} has no effect without {other}: set that too, or neither",
            )
        return search

    def max_length(self, source_tokens: int) -> int:
        """The most tokens that the translation of so many source tokens may have, the end of sentence counted."""
        return max(1, int(self.max_length_ratio * source_tokens + self.max_length_extra))

    def require_room(self, model: ModelConfig) -> None:
        """Raise ``ValueError`` where ``min_length`` is more than a short sentence may get, or a long one may take more
        positions than the model has. Apart from the checks of single fields, since fields given on the command line
        are completed by a model's own."""
        shortest_limit = self.max_length(1)
        require(
            self.min_length <= shortest_limit,
            f"search.min_length={self.min_length} exceeds the {shortest_limit} tokens that a one-token sentence may "
            "get: lower it, or raise search.max_length_extra",
        )
        source = f"search.max_source_tokens={self.max_source_tokens}"
        require_positions(model, self.max_source_tokens + 1, source)
        require_positions(
            model,
            self.max_length(self.max_source_tokens),
            f"search.max_length_ratio={self.max_length_ratio} with {source} and "
            f"search.max_length_extra={self.max_length_extra}",
        )


@dataclass(frozen=True)
class OutputConfig:
    """Where things are written."""

    data: str = "data/default"
    """Folder of the prepared corpus."""

    run: str = "runs/default"
    """Folder of the run: checkpoints, model, logs, samples."""


@dataclass(frozen=True)
class Configuration:
    """A whole run."""

    corpora: CorporaConfig = field(default_factory=CorporaConfig)
    cleaning: CleaningConfig = field(default_factory=CleaningConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    preparation: PreparationConfig = field(default_factory=PreparationConfig)
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    seed: int = 1
    """Decides the initial weights, the order of the batches and dropout."""

    def __post_init__(self):
        for name in ("max_source_tokens", "max_target_tokens"):
            tokens = getattr(self.batching, name)
            require_positions(self.model, tokens + 1, f"batching.{name}={tokens}")
        self.search.require_room(self.model)
        require(
            self.tokenizer.joint or self.model.tied_embeddings != "all",
            "model.tied_embeddings=all needs one vocabulary: set tokenizer.joint=true or model.tied_embeddings=target",
        )
        require(
            not self.trainer.attention_pictures or self.model.attention != "none",
            "trainer.attention_pictures=true has nothing to draw where model.attention=none: set it to false",
        )
        require(
            not self.corpora.stream_window
            or self.optimizer.schedule != "linear"
            or bool(self.trainer.max_steps or self.trainer.max_minutes),
            "optimizer.schedule=linear needs to know the end, which trainer.max_epochs of a stream does not tell: set "
            "trainer.max_steps too",
        )
