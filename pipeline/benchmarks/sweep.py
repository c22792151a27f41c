"""Mechanisms compared under one budget: each is an overlay on one configuration, trained, scored and measured.

The work is done by the scripts that users run, in processes of their own, and what they leave on disk is all that a
sweep knows of the past: killed at any moment and started again, it goes on.
"""

import dataclasses
import fcntl
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from pipeline.benchmarks.report import cell, publish, require_name
from pipeline.cli import read_configuration, write_configuration
from pipeline.config import Configuration, TrainerConfig, require
from pipeline.training.ending import FINISHED
from pipeline.training.fit import flat, say

MECHANISMS = (
    "baseline",
    *("learned", "rotary", "shaw", "alibi", "no_positions"),
    *("plain_kernel", "flex", "window", "global"),
    *("performer", "elu", "additive", "recurrent", "recurrent_no_attention"),
    *("post_norm", "rms_norm", "gelu", "swiglu", "grouped_queries", "deep_encoder"),
)
"""The configuration as it is, and the overlays ``configs/with_NAME.yaml``, in the order of the table."""

CONFIGS = Path(__file__).parents[2] / "configs"

SCORES = "evaluations/test/scores.json"
MEASURED = "measure.json"


def sweep(
    configuration: Configuration, mechanisms: list[str], folder: Path, measure_again: bool, report: str, scripts: Path
) -> None:
    """Train, score and measure ``mechanisms`` in ``folder`` by the programs in ``scripts``; publish a table.

    Measuring comes when all are trained, one right after the other, since a machine's speed changes with the hours.

    Raises:
        ValueError: the sweep cannot begin or go on, or, after the table, some mechanism failed.
    """
    require_name("report", report)
    require(len(mechanisms) > 0, f"--mechanisms: name at least one of {', '.join(MECHANISMS)}")
    for name in mechanisms:
        require(name in MECHANISMS, f"--mechanisms {name}: choose among {', '.join(MECHANISMS)}")
    configuration = under_one_budget(configuration)
    runs = configurations(configuration, mechanisms, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder) as lock:
        begin(folder, configuration)
        programs = Programs(scripts, folder, runs, lock)
        programs.run("prepare.py", "--config", folder / "config.yaml")
        require_the_same_corpus(folder, Path(configuration.output.data))
        for name in mechanisms if measure_again else ():
            (folder / name / MEASURED).unlink(missing_ok=True)
        failures: dict[str, str] = {}
        for stage in (programs.train, programs.score, programs.measure):
            for number, name in enumerate(mechanisms, 1):
                if name not in failures:
                    say(f"[{number}/{len(mechanisms)}] {name}: {stage.__name__}")
                    try:
                        stage(name)
                    except ProgramFailed as error:
                        failures[name] = str(error)
        publish_table(folder, configuration, mechanisms, failures, report)
    require(not failures, f"{len(failures)} of {len(mechanisms)} mechanisms failed: {', '.join(failures)}")


def under_one_budget(configuration: Configuration) -> Configuration:
    """The configuration without any end but ``trainer.max_steps``."""
    trainer = configuration.trainer
    require(trainer.max_steps > 0, "trainer.max_steps=0: say how many updates each mechanism gets")
    require_measurable(trainer)
    trainer = dataclasses.replace(trainer, max_epochs=0, max_minutes=0.0, patience=0)
    return dataclasses.replace(configuration, trainer=trainer)


def require_measurable(config: TrainerConfig) -> None:
    """Raise ``ValueError`` at a precision that benchmarks cannot time; better known before there is much work."""
    require(config.precision != "16", "trainer.precision=16 is not measured: choose bf16, 32 or auto")


def configurations(configuration: Configuration, mechanisms: list[str], folder: Path) -> dict[str, Configuration]:
    """The configuration of each mechanism's run: its overlay laid over the sweep's.

    Raises:
        ValueError: some do not go together; which, and why, is said on stderr.
    """
    runs, refused = {}, []
    for name in mechanisms:
        overlay = {} if name == "baseline" else yaml.safe_load(overlay_of(name).read_text("utf-8"))
        overlay |= {"output": {"run": str(folder / name)}}
        try:
            sections = {key: dataclasses.replace(getattr(configuration, key), **overlay[key]) for key in overlay}
            runs[name] = dataclasses.replace(configuration, **sections)
        except ValueError as error:
            refused.append(name)
            say(f"{name}: {error}")
    require(
        not refused,
        f"the configuration does not go with {', '.join(refused)}: change it, or leave them out by --mechanisms",
    )
    return runs


def overlay_of(name: str) -> Path:
    return CONFIGS / f"with_{name}.yaml"


@contextmanager
def alone(folder: Path) -> Iterator[int]:
    """Holds ``folder`` against other sweeps. Programs that inherit the lock's descriptor hold it too, so one that
    outlives a killed sweep is waited for by nobody and disturbed by nobody."""
    with open(folder / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another sweep, or a program that it left behind, is at work in {folder}: wait for its end, or choose "
                "another --folder"
            ) from None
        yield lock.fileno()


def begin(folder: Path, configuration: Configuration) -> None:
    """Note the configuration, or hold it against the one that the sweep was begun with."""
    path = folder / "config.yaml"
    if path.exists():
        before = flat(read_configuration(path))
        for option, value in flat(configuration).items():
            require(
                value == before[option] or option == "output.run",
                f"{option}={value}, but {folder} was begun with {option}={before[option]}: go back to that, or choose "
                "another --folder",
            )
    else:
        replace(path, lambda new: write_configuration(configuration, new))


def require_the_same_corpus(folder: Path, data: Path) -> None:
    """Note which data the sweep was begun with, or hold it against what has been prepared now."""
    path, fingerprint = folder / "corpus", json.loads((data / "report.json").read_text("utf-8"))["fingerprint"]
    require(
        not path.exists() or path.read_text("utf-8") == fingerprint,
        f"the corpus in {data} has changed since {folder} was begun: choose another --folder",
    )
    replace(path, lambda new: new.write_text(fingerprint, encoding="utf-8"))


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Put a file in place, whole or not at all."""
    new = path.with_name(f"{path.name}.unfinished")
    write(new)
    new.replace(path)


class ProgramFailed(ValueError):
    """A program ended with an error; the message is its last line."""


class Programs:
    """The programs of ``scripts/`` at work on a sweep; each stage leaves its result in the mechanism's run folder."""

    def __init__(self, scripts: Path, folder: Path, runs: dict[str, Configuration], lock: int):
        self.scripts, self.folder, self.runs, self.lock = scripts, folder, runs, lock

    def train(self, name: str) -> None:
        """Train; a run that ended with the very configuration that it is to have needs no process to say so."""
        run = self.folder / name
        if (run / FINISHED).exists():
            effective = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
            if effective == dataclasses.asdict(self.runs[name]):
                say(f"{run} is finished")
                return
        overlay = [] if name == "baseline" else ["--config", overlay_of(name)]
        self.run("train.py", "--config", self.folder / "config.yaml", *overlay, "--output.run", run)

    def score(self, name: str) -> None:
        self.make(name, SCORES, "evaluate.py", "--model", self.folder / name)

    def measure(self, name: str) -> None:
        self.make(name, MEASURED, "measure.py", "--model", self.folder / name)

    def make(self, name: str, result: str, script: str, *arguments: object) -> None:
        """Run a program, unless its result is there, and of the model as it was trained last."""
        path, trained = (self.folder / name / file for file in (result, FINISHED))
        if path.exists() and path.stat().st_mtime_ns >= trained.stat().st_mtime_ns:
            say(f"{path} is there already")
        else:
            self.run(script, *arguments)

    def run(self, script: str, *arguments: object) -> None:
        """Run a program to its end; all that it says goes to stderr."""
        command = [sys.executable, self.scripts / script, *arguments]
        line = ""
        with subprocess.Popen(
            list(map(str, command)), stdout=sys.stderr, stderr=subprocess.PIPE, pass_fds=[self.lock], encoding="utf-8"
        ) as program:
            for line in program.stderr:
                print(line, end="", file=sys.stderr, flush=True)
        if program.returncode < 0:
            raise ProgramFailed(f"{script} was ended by signal {-program.returncode}")
        if program.returncode:
            raise ProgramFailed(line.strip() or f"{script} ended with status {program.returncode}")


def publish_table(
    folder: Path, configuration: Configuration, mechanisms: list[str], failures: dict[str, str], report: str
) -> None:
    """Print the table, write its rows to ``report`` and the table for a README to ``table.md``."""
    import torch  # slow to import: not for --help

    batching, trainer = configuration.batching, configuration.trainer
    tokens = trainer.accumulate_batches * batching.tokens_per_batch
    budget = f"{trainer.max_steps:,} updates of up to {tokens:,} tokens per device"
    rows, conditions = [], {}
    for name in mechanisms:
        if name in failures:
            rows.append({"mechanism": name, "error": failures[name]})
            continue
        (system,) = json.loads((folder / name / SCORES).read_text("utf-8"))["systems"]
        figures = json.loads((folder / name / MEASURED).read_text("utf-8"))
        conditions[f"{figures.pop('hardware')}, precision {figures.pop('precision')}"] = True
        scores = {system["scores"][metric]["title"]: system["scores"][metric] for metric in ("bleu", "chrf")}
        conditions |= {f"{title} {score['signature']}": True for title, score in scores.items()}
        rows.append({"mechanism": name} | {title: score["value"] for title, score in scores.items()} | figures)
    if "flex" in mechanisms and not torch.cuda.is_available():
        conditions["without CUDA, flex is computed by the fused kernel"] = True
    publish(rows, budget, report)
    caption = "; ".join([f"{budget} each", *conditions])
    print(caption)
    replace(folder / "table.md", lambda new: new.write_text(f"{markdown(rows)}\n{caption}\n", encoding="utf-8"))


def markdown(rows: list[dict]) -> str:
    """A table for a README."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [
        [name.replace("_", " ") for name in columns],
        ["---", *("---:" for _ in columns[1:])],
        *([cell(row.get(name, "")).replace("|", "\\|") for name in columns] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
