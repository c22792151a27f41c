"""Models put to the test: on the sentences that were held out when they were trained, or on given ones."""

import dataclasses
import itertools
import re
import sys
import warnings
from pathlib import Path

import torch

from pipeline.checkpoint import LoadedModel, fingerprint, load_model, written_whole
from pipeline.data.lines import read_lines
from pipeline.data.preparation import Prepared
from pipeline.inference.engine import TorchEngine
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
from pipeline.inference.vocabulary import Vocabulary

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
        ValueError: one file without the other, files of unequal length, no test set, or models with different ones.
    """
    if bool(source) != bool(reference):
        raise ValueError("--source and --reference belong together: give both, or neither for the held-out test set")
    sets = [given_set(source, reference)] if source else []
    evaluations: list[list[Evaluation]] = []
    for path in paths:
        model = load_model(path)
        if not source:
            its_own = own_test_sets(path, model, to)
            if sets and [on[1:3] for on in sets] != [on[1:3] for on in its_own]:
                raise ValueError(
                    f"{paths[0]} and {path} have different test sets: name one for both with --source and --reference"
                )
            sets = its_own
        settings = model.configuration.search.changed(search or {})
        device = "cuda" if torch.cuda.is_available() else "cpu"
        engine = TorchEngine(model.model.to(device), vocabulary=Vocabulary.of(model.tokenizers.target))
        evaluations.append([])
        for number, on in enumerate(sets):
            translator = Translator(engine, model.tokenizers, model.configuration, to or _asked(on, model))
            on = on._replace(target_language=target_language or on.target_language or translator.languages[1])
            bleu_tokenizer(on.target_language)
            print(f"{path}: translating {len(on.sources)} sentences of {on.name} on {device}", file=sys.stderr)
            place = f"{source}, line" if source else f"{on.name}, sentence"
            asked = [Sentence(text, place=f"{place} {number}") for number, text in enumerate(on.sources, 1)]
            found = [best for best, *_ in translator.hypotheses(asked, settings)]
            translations = [each.text for each in found]
            evaluation = evaluate(path, translations, on, compatibility, dataclasses.asdict(settings))
            if cut := sum(not each.finished for each in found):
                evaluation.warnings.append(
                    f"{cut} of {len(found)} translations were cut by the length limit: see search.max_length_ratio"
                )
            keep(path, evaluation, on, its_own=not source)
            evaluations[-1].append(evaluation)
            sets[number] = on
    return [(list(each), on) for each, on in zip(zip(*evaluations, strict=True), sets, strict=True)]


def _asked(on: EvaluationSet, model: LoadedModel) -> str:
    """The language that a model with tags is asked for."""
    return on.target_language if model.tokenizers.languages else ""


def given_set(source: str, reference: str) -> EvaluationSet:
    """The sentences of two files of text."""
    on = EvaluationSet(Path(reference).name, list(read_lines(source)), list(read_lines(reference)), "")
    if len(on.sources) != len(on.references):
        raise ValueError(
            f"{source} has {len(on.sources)} lines and {reference} {len(on.references)}: line n of one must be the "
            "translation of line n of the other"
        )
    return on


def own_test_sets(path: str, model: LoadedModel, to: str = "") -> list[EvaluationSet]:
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
