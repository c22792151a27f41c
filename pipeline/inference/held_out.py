"""Models put to the test: on the sentences that were held out when they were trained, or on given ones."""

import dataclasses
import itertools
import re
import sys
import warnings
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from pipeline.checkpoint import fingerprint, written_whole
from pipeline.config import require
from pipeline.data.lines import read_lines
from pipeline.data.preparation import Prepared
from pipeline.inference.engine import default_device
from pipeline.inference.evaluation import (
    Evaluation,
    EvaluationSet,
    bleu_tokenizer,
    evaluate,
    is_of_set,
    write_evaluation,
)
from pipeline.inference.translation import Sentence
from pipeline.inference.translator import Translator

RESERVED = re.compile(r"(test|valid)(\.[^.]+-[^.]+)*")
"""Names of the sets that a run has itself, also by direction and by checkpoint."""


def evaluate_models(
    paths: list[str],
    source: str = "",
    reference: str = "",
    target_language: str = "",
    compatibility: bool = False,
    search: dict | None = None,
    to: str = "",
) -> list[tuple[list[Evaluation], EvaluationSet]]:
    """Each model's evaluation, kept in its run folder as ``evaluations/NAME`` where that may be written; for models of
    several directions, that of each direction.

    Args:
        source, reference: files, one sentence a line; without them it is the models' own test set.
        search: fields of ``SearchConfig`` that take the place of each model's own.
        to: the language of the references, for models of several; without files, the only one that is evaluated.

    Raises:
        ValueError: one file without the other, files of unequal length, no test set, models with different ones, or a
            model that cannot be asked for the language. Of all models it is said before the first translates.
    """
    if bool(source) != bool(reference):
        raise ValueError("--source and --reference belong together: give both, or neither for the held-out test set")
    device = default_device()
    # Of many models, all may be more than the memory holds.
    load = lru_cache(maxsize=1)(partial(Translator.load, device=device, precision="32"))
    given = given_set(source, reference) if source else None
    tasks: list[list[Task]] = []
    for path in paths:
        model = load(path)
        model.engine.require(model.search.changed(search or {}))
        tasks.append(tasks_for(path, model, given, to, target_language))
        require_comparable(paths[0], tasks[0], path, tasks[-1])
    evaluations: list[list[Evaluation]] = []
    for path, its_tasks in zip(paths, tasks, strict=True):
        model = load(path)
        settings = model.search.changed(search or {})
        evaluations.append([])
        for asked, on in its_tasks:
            print(f"{path}: translating {len(on.sources)} sentences of {on.name} on {device}", file=sys.stderr)
            place = f"{source}, line" if source else f"{on.name}, sentence"
            texts = [Sentence(text, place=f"{place} {number}") for number, text in enumerate(on.sources, 1)]
            found = [best for best, *_ in model.into(asked).hypotheses(texts, settings)]
            translations = [each.text for each in found]
            evaluation = evaluate(path, translations, on, compatibility, dataclasses.asdict(settings))
            if cut := sum(not each.finished for each in found):
                evaluation.warnings.append(
                    f"{cut} of {len(found)} translations were cut by the length limit: see search.max_length_ratio"
                )
            keep(path, evaluation, on, its_own=not source)
            evaluations[-1].append(evaluation)
    sets = [on for _, on in tasks[0]]
    return [(list(each), on) for each, on in zip(zip(*evaluations, strict=True), sets, strict=True)]


class Task(NamedTuple):
    """What one model is evaluated on."""

    to: str
    """The language that it is asked for; of a model without tags none need be."""

    on: EvaluationSet


def tasks_for(path: str, model: Translator, given: EvaluationSet | None, to: str, target_language: str) -> list[Task]:
    """The given sentences, or what was held out for each direction of the model, or for those into one language.

    Raises:
        ValueError: the model cannot be asked for the language, or is not told which, or BLEU cannot tell its words.
    """
    try:
        asked = model.into(to)
        if given:
            asked.source_ids([])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    sets = [given._replace(target_language=asked.languages[1])] if given else own_test_sets(path, model, to)
    tasks = []
    for on in sets:
        bleu_tokenizer(target_language or on.target_language)
        tag = to or (on.target_language if model.tokenizers.languages else "")
        tasks.append(Task(tag, on._replace(target_language=target_language or on.target_language)))
    return tasks


def require_comparable(first_path: str, first: list[Task], path: str, other: list[Task]) -> None:
    """:raises ValueError: two models have not the same sentences to translate, or not into the same language."""
    one_language = ", or one language for both with --to" if len(first) != len(other) else ""
    require(
        [task.on[1:3] for task in first] == [task.on[1:3] for task in other],
        f"{first_path} and {path} have different test sets: name one for both with --source and --reference"
        + one_language,
    )
    for (_, on), (_, its) in zip(first, other, strict=True):
        require(
            on.target_language == its.target_language,
            f"{first_path} translates into {on.target_language} and {path} into {its.target_language}: name the "
            "language of the references with --target_language, or leave one of the models out",
        )


def given_set(source: str, reference: str) -> EvaluationSet:
    """The sentences of two files of text."""
    on = EvaluationSet(Path(reference).name, list(read_lines(source)), list(read_lines(reference)), "")
    if len(on.sources) != len(on.references):
        raise ValueError(
            f"{source} has {len(on.sources)} lines and {reference} {len(on.references)}: line n of one must be the "
            "translation of line n of the other"
        )
    return on


def own_test_sets(path: str, model: Translator, to: str = "") -> list[EvaluationSet]:
    """The raw sentences that were held out from the training of ``model``, a set for each of its directions, or those
    into one language."""
    folder, corpora = Path(model.configuration.output.data), model.configuration.corpora
    remedy = "give --source and --reference, or prepare the corpus again"
    if not folder.is_dir():
        raise ValueError(f"the test data of {path} is not in {folder} any more: {remedy}")
    prepared = Prepared.load(folder)
    if fingerprint(prepared.tokenizers) != fingerprint(model.tokenizers):
        warnings.warn(
            f"{folder} was prepared anew since {path} was trained, which may have seen the test data of today",
            stacklevel=2,
        )
    if not len(prepared.test):
        raise ValueError(f"{folder} holds no test data (corpora.test_size=0): {remedy}")
    directions: dict[tuple[str, str], EvaluationSet] = {}
    for pair in prepared.test.select_columns(["source", "target", "corpus"]):
        corpus = corpora.each[pair["corpus"]]
        direction = corpus.source_language, corpus.target_language
        on = directions.setdefault(direction, EvaluationSet("test", [], [], corpus.target_language))
        on.sources.append(pair["source"])
        on.references.append(pair["target"])
    if len(directions) > 1:
        directions = {each: on._replace(name=f"test.{'-'.join(each)}") for each, on in directions.items()}
    sets = [on for (_, target), on in sorted(directions.items()) if to in ("", target)]
    if not sets:
        raise ValueError(f"{folder} holds no test data into {to}: {remedy}")
    return sets


def keep(path: str, evaluation: Evaluation, on: EvaluationSet, its_own: bool) -> None:
    """Write an evaluation beside its model, or warn where that may not be."""
    try:
        folder = evaluation_folder(Path(path), on, its_own)
        with written_whole(folder) as new:
            write_evaluation(new, evaluation, on)
    except OSError as error:
        warnings.warn(f"{path}: the evaluation on {on.name} is shown, and not kept: {error}", stacklevel=2)
    else:
        print(f"{path}: the evaluation is kept in {folder}", file=sys.stderr)


def evaluation_folder(model: Path, on: EvaluationSet, its_own: bool) -> Path:
    """Where an evaluation of a run, a model folder or a checkpoint is kept: under the name of its set, and where given
    sentences would take the place of others, or of the run's own, with a number."""
    home, ending = model, ""
    if model.is_file():
        home, ending = model.parent, f".{model.stem}"
        home = home.parent if home.name == "checkpoints" else home
    numbered = (f"{on.name}.{number}" for number in itertools.count(2))
    names = itertools.chain([on.name] if its_own or not RESERVED.fullmatch(on.name) else [], numbered)
    folders = (home / "evaluations" / f"{name}{ending}" for name in names)
    return next(folder for folder in folders if its_own or not folder.exists() or is_of_set(folder, on))
