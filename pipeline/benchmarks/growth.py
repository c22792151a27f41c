"""How time and memory of one layer grow with the length: recurrence, convolution and self-attention, beside theory.

Every layer maps [B, L, D] to [B, L, D], is causal (recurrence cannot be otherwise), and runs forward and backward.
"""

import dataclasses
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from models import layers
from models.config import ModelConfig
from pipeline.benchmarks import plots
from pipeline.benchmarks.report import publish
from pipeline.checkpoint import written_whole
from pipeline.data.progress import progress
from pipeline.training.fit import say

TURNS = 5
SECONDS_A_TURN = 0.04
KERNEL_WIDTH = 3
WINDOW = 64
FEWEST_LENGTHS = 3


class Recurrence(nn.LSTM):
    def __init__(self, config: ModelConfig):
        super().__init__(config.d_model, config.d_model, batch_first=True)

    def forward(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        return super().forward(x)[0]


class GatedConvolution(nn.Module):
    """A layer of ConvS2S (Gehring et al., 2017): √½ (x + a ⊙ σ(b)), where a and b are convolutions of x."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.convolution = nn.Conv1d(config.d_model, 2 * config.d_model, KERNEL_WIDTH)

    def forward(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        past = F.pad(x.transpose(1, 2), (KERNEL_WIDTH - 1, 0))  # [B, L, D] -> [B, D, L + k - 1]
        return (x + F.glu(self.convolution(past), dim=1).transpose(1, 2)) * 0.5**0.5


class CausalAttention(nn.Module):
    """The decoder's self-attention over a whole sequence."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attention = layers.self_attention(config)
        self.mask = layers.self_attention_mask(config, causal=True)

    def forward(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        return self.attention(x, self.mask)[0]


def attention(**choices) -> Callable[[ModelConfig], nn.Module]:
    return lambda config: CausalAttention(dataclasses.replace(config, **choices))


class Mechanism(NamedTuple):
    """A layer, and what theory says of it (Vaswani et al., 2017, table 1)."""

    layer: Callable[[ModelConfig], nn.Module]
    operations: str
    sequential_steps: str
    longest_path: str
    time_exponent: int
    memory_exponent: int


MECHANISMS = {
    "recurrent": Mechanism(Recurrence, "n d²", "n", "n", 1, 1),
    "convolutional": Mechanism(GatedConvolution, "k n d²", "1", "n / k", 1, 1),
    "plain": Mechanism(attention(attention_kernel="plain"), "n² d", "1", "1", 2, 2),
    "fused": Mechanism(attention(attention_kernel="fused"), "n² d", "1", "1", 2, 1),
    "window": Mechanism(
        attention(attention_kernel="fused", attention_window=WINDOW), "w n d", "1", "n / w", 1, 1
    ),
    "performer": Mechanism(attention(attention="performer"), "n M d", "n / c", "1", 1, 1),
    "elu": Mechanism(attention(attention="elu"), "n K d", "n / c", "1", 1, 1),
}  # fmt: skip

LEGEND = (
    "Exponents are fitted over the upper half of the lengths that could be measured, from fitted_from to fitted_to, "
    f"at least {FEWEST_LENGTHS}.\n"
    "Orders, for length n, width d, head width K,\n"
    f"convolutions of width k = {KERNEL_WIDTH}, a window of w = {WINDOW}, M = {ModelConfig.random_features} random "
    "features, chunks of c positions.\n"
    "The longest path between two positions is counted in layers, in steps where recurrent.\n"
    "Attention has projections too, n d² operations, which keep its time below n² while n is near d;\n"
    "tensors that outgrow the caches raise any exponent of time."
)


class Cell:
    """One mechanism at one length."""

    def __init__(self, name: str, config: ModelConfig, batch: int, length: int, device: torch.device):
        self.labels = {"mechanism": name, "length": length}
        self.layer = MECHANISMS[name].layer(config).to(device)
        self.shape = batch, length, config.d_model
        self.device = device
        self.peak_bytes = 0
        self.seconds: list[float] = []
        self.out_of_memory = False

    def warm_up(self) -> None:
        """Input and gradient for all runs, and a first run, which sets caches up."""
        self.x = torch.randn(self.shape, device=self.device, requires_grad=True)
        self.gradient = torch.randn_like(self.x)
        self.run()

    def run(self) -> None:
        """Forward and backward, in the precision of training."""
        with torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda"):
            y = self.layer(self.x)
        torch.autograd.grad(y, [self.x, *self.layer.parameters()], self.gradient.to(y.dtype))
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def weigh(self) -> None:
        self.peak_bytes = peak_memory(self.run, self.device)

    def take_turn(self) -> None:
        begun, runs = time.perf_counter(), 0
        while not runs or time.perf_counter() - begun < SECONDS_A_TURN:
            self.run()
            runs += 1
        self.seconds.append((time.perf_counter() - begun) / runs)

    def row(self) -> dict:
        if self.out_of_memory:
            return self.labels | {"note": "out of memory"}
        milliseconds = statistics.median(self.seconds) * 1e3
        return self.labels | {"milliseconds": milliseconds, "peak_megabytes": self.peak_bytes / 1e6}


def peak_memory(function: Callable[[], None], device: torch.device) -> int:
    """The most bytes that torch's allocator held at a time because of ``function``.

    On a CPU the profiler tells: exact to the byte, and it sees kernels' workspaces, which torch allocates (not the
    private buffers of oneDNN and MKL). The peak of resident memory (VmHWM) agrees within 5 % for large tensors, except
    that an LSTM touches only three quarters of its workspace, but errs twofold for small ones, by pages and by what
    malloc has not given back.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler tells that it starts and stops
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        function()
    held = peak = 0
    for event in profile.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def measure(cells: list[Cell]) -> None:
    """Memory and time of all ``cells``, which take turns, since the speed of a machine drifts."""
    for step in (Cell.warm_up, Cell.weigh, *[Cell.take_turn] * TURNS):
        for cell in cells:
            if not cell.out_of_memory:
                try:
                    step(cell)
                except RuntimeError as error:
                    # A GPU has an error of its own for it, a CPU only a message.
                    if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                        raise
                    cell.out_of_memory = True


def compare(lengths: list[int], config: ModelConfig, batch: int, mechanisms: list[str], report: str, plot: str) -> None:
    """Measure every mechanism at every length; print, and write, the cells and the exponents beside theory."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lengths = sorted(set(lengths)) or [64 * 2**i for i in range(11 if device.type == "cuda" else 8)]
    figure = plots.blank_figure(plot, 12, 5.6) if plot else None
    refuse_what_is_not_there()
    torch.manual_seed(0)
    rows = []
    say(f"measuring {', '.join(mechanisms)} at lengths {', '.join(map(str, lengths))}")
    with progress("measuring", len(lengths)) as advance:
        for length in lengths:
            cells = [Cell(name, config, batch, length, device) for name in mechanisms]
            measure(cells)
            rows += [cell.row() for cell in cells]
            advance(1)
    precision = "bf16" if device.type == "cuda" else "float32"
    sizes = f"width {config.d_model}, {config.num_heads} heads, batch {batch}, {precision}"
    publish(rows, f"one causal layer, forward and backward; {sizes}; {machine()};", report)
    found = [exponents(name, rows) for name in mechanisms]
    suffix = Path(report).suffix
    beside = report and f"{report.removesuffix(suffix)}.growth{suffix}"
    publish(found, f"growth with the length n; {sizes}; {machine()};", beside)
    print(LEGEND)
    if figure:
        draw(figure, rows, found, f"{sizes}; {machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
        with written_whole(Path(plot)) as new:
            figure.savefig(new, format=Path(plot).suffix[1:])


def exponents(name: str, rows: list[dict]) -> dict:
    """How time and memory of a mechanism grow, n to which power, beside theory.

    Over the upper half of the lengths that it could be measured at: at small lengths it is the overhead that is seen.
    Where there are fewer than ``FEWEST_LENGTHS``, through which any line goes, there is no exponent.
    """
    mechanism = MECHANISMS[name]
    measured = [row for row in rows if row["mechanism"] == name and "note" not in row]
    upper = measured[-max(FEWEST_LENGTHS, len(measured) // 2) :]
    lengths = [row["length"] for row in upper]
    fitted = len(lengths) >= FEWEST_LENGTHS
    return {
        "mechanism": name,
        "time_exponent": exponent(lengths, [row["milliseconds"] for row in upper]) if fitted else "",
        "time_in_theory": mechanism.time_exponent,
        "memory_exponent": exponent(lengths, [row["peak_megabytes"] for row in upper]) if fitted else "",
        "memory_in_theory": mechanism.memory_exponent,
        "fitted_from": lengths[0] if fitted else "",
        "fitted_to": lengths[-1] if fitted else "",
        "operations": mechanism.operations,
        "sequential_steps": mechanism.sequential_steps,
        "longest_path": mechanism.longest_path,
    }


def exponent(lengths: list[int], amounts: list[float]) -> float:
    """The p of amount ~ length^p: the slope of the least-squares line through the logarithms."""
    return statistics.linear_regression(*([math.log(value) for value in values] for values in (lengths, amounts))).slope


def machine() -> str:
    """The GPU's name, or the CPU's."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    known = Path("/proc/cpuinfo")
    lines = known.read_text(encoding="utf-8").splitlines() if known.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def refuse_what_is_not_there() -> None:
    """Linux kills a process that uses more memory than there is; let it be refused, as a GPU's would be."""
    if platform.system() == "Linux":
        import resource

        amounts = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
        available = int(amounts["MemAvailable"].split()[0]) * 1024
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (available, hard))


def draw(figure, rows: list[dict], found: list[dict], conditions: str) -> None:
    """Time and memory over the length, both logarithmic: a power of n is a straight line."""
    figure.text(0.05, 0.94, "One causal layer, forward and backward, as the length grows", fontsize=13, weight="bold")
    figure.text(0.05, 0.895, conditions, fontsize=9, color="#555555")
    figure.subplots_adjust(left=0.05, right=0.87, top=0.81, bottom=0.11, wspace=0.52)
    panels = {"milliseconds": ("time (ms)", "time_exponent"), "peak_megabytes": ("peak memory (MB)", "memory_exponent")}
    ticks = sorted({row["length"] for row in rows})
    for axes, (column, (label, power)) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        plots.panel(axes, label, "length $n$", ticks)
        axes.set_yscale("log")
        for i, summary in enumerate(found):
            points = [
                (row["length"], row[column])
                for row in rows
                if row["mechanism"] == summary["mechanism"] and column in row
            ]
            growth = f" $n^{{{summary[power]:.2f}}}$" if summary[power] != "" else ""
            if points:
                plots.line(axes, points, i, summary["mechanism"] + growth)
        plots.powers(axes)
        plots.name_lines(axes)
