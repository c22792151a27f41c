"""Text around the model: rows read from a file, a pipe or whoever types, and answered in order into another."""

import dataclasses
import math
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from pipeline.config import require
from pipeline.data.arrivals import as_they_arrive
from pipeline.data.progress import progress
from pipeline.inference.advice import Advice
from pipeline.inference.jobs import Job, fingerprint, model_files
from pipeline.inference.outputs import STANDARD_OUTPUT, is_new_or_regular, require_output, written
from pipeline.inference.paragraphs import ParagraphTranslator
from pipeline.inference.protection import ProtectingTranslator
from pipeline.inference.records import Form, Row, Rows, typed
from pipeline.inference.sharding import on_devices
from pipeline.inference.translator import Translator

SPEED_ONLY = ("tokens_per_batch",)
"""Settings of the search that change no translation."""


def translate(
    models: list[str],
    source: list[str] | str,
    output: str,
    form: Form,
    search: dict,
    devices: int = 1,
    **how: Any,
) -> None:
    """Translate sentences, or the rows of a file or of the standard input (``-``), into a file or the standard output.

    From file to file it is a job that may be interrupted (``jobs.Job``). The rows of a file are all read before the
    first is translated, so that no hour ends at a wrong one; what else comes in is answered as it arrives.

    Args:
        search: fields of ``SearchConfig`` that take the place of the model's own.
        devices: see ``on_devices``.
        how: see ``load``.

    Raises:
        ValueError, OSError: a row cannot be read, a model cannot be loaded or has no use of the settings, or a file
            cannot be written.
    """
    is_file = isinstance(source, str) and Path(source).is_file()
    require_output("output", output, [*([source] if is_file else []), *models])
    read = partial(form.read, source) if isinstance(source, str) else lambda: typed(source, form)
    total = None if isinstance(source, str) and not is_file else sum(1 for _ in read())
    require(
        "ensemble" not in search or len(models) > 1,
        f"search.ensemble={search.get('ensemble')} has no effect on one model: name several, with commas",
    )
    job = Job(output, _made_from(models, source, form, search, how)) if is_file and is_new_or_regular(output) else None
    done = job.rows if job else 0
    with _ended_by_sigterm(), on_devices(partial(load, models, **how), devices) as model:
        settings = model.search.changed(search)
        require(
            form.nbest <= settings.beam_size or settings.method == "sampling",
            f"--nbest={form.nbest} cannot come of search.beam_size={settings.beam_size}: raise that, or lower it",
        )
        # So many sentences make batches enough to sort by length; of a job, no more than one likes to lose.
        size = settings.tokens_per_batch // (2 * model.num_devices if total is None else 8)
        if total is not None:
            size = min(size, math.ceil(total / model.num_devices))
        size = max(1, size)
        rows = islice(read(), done, None)
        lists = as_they_arrive(rows, size) if total is None else iter(lambda: list(islice(rows, size)), [])
        answers = model.map(partial(form.answer, search=settings), _numbered(lists, done + 1))
        with _into(job, output) as write, _progress(output, total, done) as advance:
            for answer in answers:
                write(answer.text, answer.rows)
                advance(answer.rows)
                done += answer.rows
            require(total in (None, done), f"{source} has changed while it was read: start again")


def load(
    models: list[str],
    engine: str = "dragoman",
    precision: str = "auto",
    document: bool = False,
    protect: Sequence[str] = (),
    to: str = "",
    device: torch.device | None = None,
) -> Translator:
    """What translates: a model, or several, on an engine, into a language (``Translator.load``); with ``document``,
    each row as running text (``ParagraphTranslator``); with ``protect``, spans of these kinds unchanged
    (``ProtectingTranslator``).

    Raises:
        ValueError: also if the model has several languages, and none is asked for.
    """
    translator = Translator.load(models, device, precision, engine, to)
    translator.source_ids([])  # says at once, not at the first row, that a language is to be chosen
    if protect:
        translator = ProtectingTranslator(translator, protect)
    translator.advice = Advice(translator.languages)
    return ParagraphTranslator(translator) if document else translator


def _made_from(models: list[str], source: str, form: Form, search: dict, how: dict) -> dict:
    """All that decides what is written."""
    weights = fingerprint(*(file for model in models for file in model_files(model)))
    settings = {f"search.{name}": value for name, value in search.items() if name not in SPEED_ONLY}
    asked = {name: value for name, value in how.items() if value != ""}
    return {"input": fingerprint(Path(source)), "model": weights} | settings | dataclasses.asdict(form) | asked


def _numbered(lists: Iterable[list[Row]], first: int) -> Iterator[Rows]:
    for rows in lists:
        yield Rows(first, rows)
        first += len(rows)


@contextmanager
def _into(job: Job | None, output: str) -> Iterator[Callable[[str, int], None]]:
    """What writes the text that answers so many rows."""
    if job:
        try:
            yield job.append
        except (KeyboardInterrupt, SystemExit):
            where = f"{job.rows} rows are in {job.partial}, and the same command goes on there"
            print(f"stopped: {where if job.rows else 'no row was written yet'}", file=sys.stderr)
            raise
        job.finish()
    else:
        with written(output) as file:

            def write(text: str, rows: int) -> None:
                file.write(text)
                file.flush()

            yield write


def _progress(output: str, total: int | None, done: int):
    """A bar would stand among translations on a terminal."""
    on_terminal = output in STANDARD_OUTPUT and sys.stdout.isatty()
    return nullcontext(lambda count: None) if on_terminal else progress("translating", total, done)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the process as Ctrl-C does: nothing temporary is left, and no other process."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
