"""How fast and how exact a training step is, on real batches.

Speeds drift with the machine's mood, so what is compared takes turns: window by window, each on the same batches.
"""

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Iterator
from itertools import islice, product

import torch
from torch import nn

from models.config import ModelConfig
from pipeline.benchmarks.baselines import BASELINES
from pipeline.config import Configuration
from pipeline.data.batching import Batch, TokenBudgetSampler
from pipeline.data.datamodule import EncodedPairs
from pipeline.data.preparation import Prepared, prepare
from pipeline.data.tokenizer import PAD_ID
from pipeline.training.module import TranslationModule
from pipeline.training.optimizer import build_optimizer

SHAPES = {
    "tiny": dict(encoder_layers=4, decoder_layers=4, d_model=128, d_ff=256, num_heads=4),
    "base": dict(encoder_layers=6, decoder_layers=6, d_model=512, d_ff=2048, num_heads=8),
    "big": dict(encoder_layers=6, decoder_layers=6, d_model=1024, d_ff=4096, num_heads=16),
}
"""``config`` besides these is the configuration's own shape."""

PEAK_BF16_FLOPS = {
    "B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12, "L4": 121e12,
}  # fmt: skip
"""Dense products per second by the makers' data sheets, for GPUs whose name contains the key."""

LARGEST_ERRORS = {"32": 5e-3, "bf16": 5e-2}
"""Of loss and gradient, relative to 64-bit floats; on a GPU 32-bit products are TF32."""


def throughput(
    configuration: Configuration,
    shapes: list[str],
    precisions: list[str],
    compiled: list[bool],
    against: list[str],
    windows: int,
    updates: int,
) -> list[dict]:
    """Tokens per second of every combination, and of the baselines ``against`` it: a row each, medians over windows.

    A window is ``updates`` updates of one batch each, on the first GPU where there is one.
    """
    prepared = prepare(configuration)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")  # as in training
    batches = real_batches(configuration, prepared)
    stretches = [list(islice(batches, updates)) for _ in range(windows)]
    contestants = []
    for shape, precision in product(shapes, precisions):
        config = dataclasses.replace(configuration, model=shaped(configuration.model, shape))
        for compile in compiled:
            trainer = dataclasses.replace(configuration.trainer, compile=compile)
            module = TranslationModule(dataclasses.replace(config, trainer=trainer), prepared.tokenizers)
            labels = {"model": "dragoman", "shape": shape, "precision": precision, "compiled": compile}
            contestants.append(Contestant(labels, module, config, prepared, device))
        for name in against:
            labels = {"model": name, "shape": shape, "precision": precision, "compiled": False}
            contestants.append(Contestant(labels, baseline(name, config, prepared), config, prepared, device))
    for contestant in contestants:
        contestant.warm_up(stretches[0])
    for stretch in stretches:
        for contestant in contestants:
            contestant.run(stretch)
    return [contestant.row() for contestant in contestants]


def real_batches(configuration: Configuration, prepared: Prepared) -> Iterator[Batch]:
    """Batches of the training data, in the order of training, epoch after epoch."""
    batching = configuration.batching
    pairs = EncodedPairs(prepared.train, batching.max_source_tokens, batching.max_target_tokens)
    for epoch in itertools.count():
        for batch in TokenBudgetSampler(
            pairs.source_lengths, pairs.target_lengths, batching.tokens_per_batch, configuration.seed, epoch
        ):
            yield pairs[batch]


class Contestant:
    """One model, shape and precision, compiled or not, with an optimizer of its own."""

    def __init__(
        self, labels: dict, module: nn.Module, config: Configuration, prepared: Prepared, device: torch.device
    ):
        self.labels, self.model, self.device = labels, config.model, device
        self.module = module.to(device)
        self.optimizer = build_optimizer(self.module, config.optimizer)
        self.clip_norm = config.optimizer.clip_norm or math.inf
        self.target_words = prepared.tokenizers.target.vocab_size
        self.speeds: list[tuple[float, float, float]] = []
        """Source tokens, target tokens and floating-point operations per second, by window."""
        self.peak_memory = 0
        self.out_of_memory = False

    def warm_up(self, batches: list[Batch]) -> None:
        self.run(batches)
        self.speeds.clear()

    def run(self, batches: list[Batch]) -> None:
        """One update a batch; note the speed and, on a GPU, the most memory."""
        if self.out_of_memory:
            return
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
            others = torch.cuda.memory_allocated() - self.held()
        seconds = time.perf_counter()
        try:
            for batch in batches:
                self.update(batch)
            if on_gpu:
                torch.cuda.synchronize()
        except torch.OutOfMemoryError:
            self.out_of_memory = True
            return
        seconds = time.perf_counter() - seconds
        work = [
            sum(int((batch.source != PAD_ID).sum()) for batch in batches),
            sum(int((batch.target_out != PAD_ID).sum()) for batch in batches),
            sum(training_flops(self.model, self.target_words, batch) for batch in batches),
        ]
        self.speeds.append(tuple(amount / seconds for amount in work))
        if on_gpu:
            self.peak_memory = max(self.peak_memory, torch.cuda.max_memory_allocated() - others)

    def held(self) -> int:
        """Bytes that this contestant keeps between updates: weights, and what the optimizer remembers."""
        remembered = (value for state in self.optimizer.state.values() for value in state.values())
        return sum(tensor.nbytes for tensor in itertools.chain(self.module.parameters(), remembered) if tensor.is_cuda)

    def update(self, batch: Batch) -> None:
        """What one update of training does, without Lightning, log and clock."""
        on_device = [t.to(self.device, non_blocking=True) for t in batch[:3]]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.labels["precision"] == "bf16"):
            loss, _ = self.module.loss_sums(Batch(*on_device, batch.update_tokens))
        (loss / batch.update_tokens).backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), self.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def row(self) -> dict:
        if self.out_of_memory:
            return self.labels | {"note": "out of memory"}
        source, target, flops = zip(*self.speeds, strict=True)
        row = self.labels | {
            "target_tokens_per_second": statistics.median(target),
            "slowest": min(target),
            "fastest": max(target),
            "all_tokens_per_second": statistics.median(map(sum, zip(source, target, strict=True))),
            "tflops_per_second": statistics.median(flops) / 1e12,
        }
        if self.device.type == "cuda":
            row["peak_memory_gb"] = self.peak_memory / 1e9
            name = torch.cuda.get_device_name()
            if peak := next((flops for key, flops in PEAK_BF16_FLOPS.items() if key in name), None):
                row["share_of_bf16_peak"] = statistics.median(flops) / peak
        return row


def baseline(name: str, config: Configuration, prepared: Prepared) -> nn.Module:
    """A baseline of ``BASELINES`` in the shape of ``config``, ready to train."""
    if name not in BASELINES:
        raise ValueError(f"--against {name}: choose among {', '.join(BASELINES)}")
    if not prepared.tokenizers.joint:
        raise ValueError("--against needs tokenizer.joint=true, since the baselines have one vocabulary")
    torch.manual_seed(config.seed)
    words = prepared.tokenizers.target.vocab_size
    return BASELINES[name](config.model, words, config.trainer.label_smoothing).train()


def shaped(model: ModelConfig, shape: str) -> ModelConfig:
    """``model`` with the sizes of ``shape``."""
    if shape == "config":
        return model
    if shape not in SHAPES:
        raise ValueError(f"--shapes {shape}: choose among config, {', '.join(SHAPES)}")
    return dataclasses.replace(model, **SHAPES[shape])


def training_flops(config: ModelConfig, target_words: int, batch: Batch) -> float:
    """Floating-point operations that the products of one update need: forward, and twice that backward.

    Only what real tokens need: padding, and the future that the decoder may not see, count nothing.
    """
    s = (batch.source != PAD_ID).sum(1).double()
    t = (batch.target_out != PAD_ID).sum(1).double()
    square, feed_forward = config.d_model**2, config.d_model * config.d_ff
    # Per token: queries, keys, values, output; and scores and values, 2 D for each key that is seen.
    encoder = s * (4 * square + 2 * feed_forward) + 2 * config.d_model * s * s
    own = t * (4 * square + 2 * feed_forward) + 2 * config.d_model * t * (t + 1) / 2
    cross = t * 2 * square + s * 2 * square + 2 * config.d_model * s * t
    products = (
        config.encoder_layers * encoder + config.decoder_layers * (own + cross) + t * config.d_model * target_words
    )
    return 3 * 2 * float(products.sum())


def accuracy(configuration: Configuration) -> list[dict]:
    """Relative errors of loss and gradient, against the plain formulas in 64-bit floats, for a batch without dropout.

    Raises:
        ValueError: an error is larger than ``LARGEST_ERRORS``.
    """
    prepared = prepare(configuration)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    batch = next(real_batches(configuration, prepared))
    on_device = Batch(*(t.to(device) for t in batch[:3]), batch.update_tokens)
    exact = loss_and_gradient(configuration, prepared, on_device, "plain", "64")
    rows = []
    for kernel, precision in product(("plain", "fused", "flex"), LARGEST_ERRORS):
        found = loss_and_gradient(configuration, prepared, on_device, kernel, precision)
        errors = [float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]
        rows.append({"kernel": kernel, "precision": precision, "loss_error": errors[0], "gradient_error": errors[1]})
        if not max(errors) <= LARGEST_ERRORS[precision]:
            raise ValueError(f"{kernel} attention in {precision} errs by {max(errors):.1e}: {rows}")
    return rows


def loss_and_gradient(
    configuration: Configuration, prepared: Prepared, batch: Batch, kernel: str, precision: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the gradient of all weights as one vector, in 64-bit floats."""
    model = dataclasses.replace(configuration.model, attention_kernel=kernel)
    module = TranslationModule(dataclasses.replace(configuration, model=model), prepared.tokenizers)
    module.eval().to(batch.source.device, torch.float64 if precision == "64" else torch.float32)
    with torch.autocast(batch.source.device.type, torch.bfloat16, enabled=precision == "bf16"):
        loss, _ = module.loss_sums(batch)
    loss.backward()
    gradient = torch.cat([p.grad.double().flatten() for p in module.parameters()])
    return loss.detach().double(), gradient
