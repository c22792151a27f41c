"""The commands of ``scripts/benchmark.py``. Each imports what it measures when it runs: help is instant, and so is the
answer to a wrong option."""

# ruff: noqa: B006 (a default here is what --help shows)

from importlib.util import find_spec
from typing import Literal

from jsonargparse.typing import PositiveInt

from models.config import ModelConfig
from pipeline.benchmarks import plots
from pipeline.benchmarks.report import publish, require_name
from pipeline.config import Configuration, require

MECHANISMS = ["recurrent", "convolutional", "plain", "fused", "window", "performer", "elu"]
"""The keys of ``growth.MECHANISMS``, which imports torch."""

ENGINES = ["ours-32", "ours-bf16", "ours-int8", "huggingface", "ctranslate2-float32", "ctranslate2-int8"]
"""What ``decode`` can measure; a part after the hyphen is the type of products."""

PACKAGES = {"huggingface": "transformers", "ctranslate2": "ctranslate2"}


def train(
    configuration: Configuration,
    shapes: list[str] = ["config"],
    precisions: list[Literal["32", "bf16"]] = ["32", "bf16"],
    compare_compiled: bool = False,
    against: list[str] = [],
    windows: int = 3,
    updates: int = 20,
    report: str = "",
):
    """Real tokens per second of training on the configuration's corpus; all combinations take turns.

    Args:
        shapes: config (the configuration's own), tiny, base, big
        precisions: 32, bf16
        compare_compiled: each with and without torch.compile, instead of as trainer.compile says
        against: baselines to measure beside it: torch (nn.Transformer), marian (Hugging Face's)
        windows: turns of each combination; medians are reported
        updates: in a turn, of one batch each
        report: file for the rows, .csv or .json
    """
    require_name("report", report)
    from pipeline.benchmarks import throughput

    compiled = [False, True] if compare_compiled else [configuration.trainer.compile]
    rows = throughput.throughput(configuration, shapes, precisions, compiled, against, windows, updates)
    publish(rows, "training", report)


def accuracy(configuration: Configuration, report: str = ""):
    """Errors of loss and gradient against 64-bit floats, by attention kernel and precision; fails if they are large."""
    require_name("report", report)
    from pipeline.benchmarks import throughput

    publish(throughput.accuracy(configuration), "errors", report)


def attention(
    lengths: list[PositiveInt] = [],
    d_model: PositiveInt = 128,
    num_heads: PositiveInt = 4,
    batch: PositiveInt = 1,
    mechanisms: list[str] = MECHANISMS,
    report: str = "",
    plot: str = "",
):
    """Time and memory of one layer, forward and backward, as the length grows; all mechanisms take turns.

    Args:
        lengths: positions; if none are given, from 64 by doubling to 8192, on a GPU to 65536
        d_model: width of the layers
        num_heads: attention heads; must divide d_model
        batch: sequences at a time
        mechanisms: recurrent, convolutional, and the attention kinds plain, fused, window, performer, elu
        report: file for the measurements, .csv or .json; their growth goes into X.growth.csv beside X.csv
        plot: file for the figure, .png, .svg or .pdf
    """
    require(len(mechanisms) > 0, f"--mechanisms: name at least one of {', '.join(MECHANISMS)}")
    for name in mechanisms:
        require(name in MECHANISMS, f"--mechanisms {name}: choose among {', '.join(MECHANISMS)}")
    config = ModelConfig(d_model=d_model, num_heads=num_heads)
    require_name("report", report)
    require_name("plot", plot, plots.FORMATS)
    from pipeline.benchmarks import growth

    growth.compare(lengths, config, batch, mechanisms, report, plot)


def saturation(report: str = "", plot: str = ""):
    """What dividing the scores by the root of d_k is for: how their variance, and the softmax, go with d_k.

    Args:
        report: file for the rows, .csv or .json
        plot: file for the figure, .png, .svg or .pdf
    """
    require_name("report", report)
    require_name("plot", plot, plots.FORMATS)
    from pipeline.benchmarks import saturation

    saturation.demonstrate(report, plot)


def decode(
    model: list[str],
    source: str,
    reference: str = "",
    beam_size: PositiveInt = 5,
    engines: list[str] = ENGINES,
    rounds: PositiveInt = 3,
    batch_one_sentences: PositiveInt = 100,
    report: str = "",
):
    """Sentences per second of translating, by our engine and by those of others; all take turns.

    CTranslate2 is measured with one worker of all threads, with a worker for each thread, and with our batches. How
    many threads there are is torch's choice, or OMP_NUM_THREADS.

    Args:
        model: run folders, model folders or checkpoints
        source: file of sentences, one a line
        reference: their translations by people, for BLEU
        beam_size: in place of the models' own; 1 is greedy search
        engines: ours-32, ours-bf16, ours-int8, huggingface, ctranslate2-float32, ctranslate2-int8; on a GPU only
            ours-bf16 and huggingface (in bf16) are measured
        rounds: turns of each engine; medians are reported
        batch_one_sentences: so many of the first are translated one by one as well
        report: file for the rows, .csv or .json
    """
    require(len(engines) > 0, f"--engines: name at least one of {', '.join(ENGINES)}")
    for name in engines:
        require(name in ENGINES, f"--engines {name}: choose among {', '.join(ENGINES)}")
        package = PACKAGES.get(name.split("-")[0])
        require(
            package is None or find_spec(package) is not None,
            f"--engines {name} needs {package}: pip install 'dragoman[export]'",
        )
    require_name("report", report)
    from pipeline.benchmarks import decoding

    rows, signature = decoding.decoding(model, source, reference, beam_size, engines, rounds, batch_one_sentences)
    publish(rows, f"translating with beam_size={beam_size}" + (f", BLEU {signature}" if signature else ""), report)
    print(decoding.LIMITS)


def prepare(configuration: Configuration, pairs: PositiveInt = 1_000_000, report: str = ""):
    """Pairs per second and memory of preparing a made-up corpus, stage by stage, as the configuration's settings of
    cleaning, tokenizer and preparation have it.

    Args:
        pairs: of the corpus, which is written to the folder for temporary files
        report: file for the rows, .csv or .json
    """
    require_name("report", report)
    from pipeline.benchmarks import preparation

    publish(preparation.preparation(configuration, pairs), f"preparing {pairs:,} pairs", report)
