"""Models put to the test: on the sentences that were held out when they were trained, or on given ones."""

import dataclasses
import sys
import warnings
from pathlib import Path

import torch

from pipeline.checkpoint import LoadedModel, fingerprint, load_model, written_whole
from pipeline.data.lines import read_lines
from pipeline.data.preparation import Prepared
from pipeline.inference.engine import TorchEngine
from pipeline.inference.evaluation import Evaluation, EvaluationSet, bleu_tokenizer, evaluate, write_evaluation
from pipeline.inference.translator import Translator


def evaluate_models(
    paths: list[str],
    source: str = "",
    reference: str = "",
    target_language: str = "",
    compatibility: bool = False,
    search: dict | None = None,
) -> tuple[list[Evaluation], EvaluationSet]:
    """Each model's evaluation, kept in its run folder as ``evaluations/NAME``.

    Args:
        source, reference: files, one sentence a line; without them it is the models' own test set.
        search: fields of ``SearchConfig`` that take the place of each model's own.

    Raises:
        ValueError: one file without the other, files of unequal length, no test set, or models with different ones.
    """
    if bool(source) != bool(reference):
        raise ValueError("--source and --reference belong together: give both, or neither for the held-out test set")
    on = given_set(source, reference) if source else None
    evaluations = []
    for path in paths:
        model = load_model(path)
        if not source:
            its_own = own_test_set(path, model)
            if on and (on.sources, on.references) != (its_own.sources, its_own.references):
                raise ValueError(
                    f"{paths[0]} and {path} have different test sets: name one for both with --source and --reference"
                )
            on = its_own
        on = on._replace(target_language=target_language or model.configuration.corpora.target_language)
        bleu_tokenizer(on.target_language)
        settings = dataclasses.replace(model.configuration.search, **(search or {}))
        device = "cuda" if torch.cuda.is_available() else "cpu"
        print(f"{path}: translating {len(on.sources)} sentences of {on.name} on {device}", file=sys.stderr)
        translator = Translator(TorchEngine(model.model.to(device)), model.tokenizers, model.configuration)
        translations = translator.translate(on.sources, settings)
        evaluation = evaluate(path, translations, on, compatibility, dataclasses.asdict(settings))
        with written_whole(evaluation_folder(Path(path), on)) as new:
            write_evaluation(new, evaluation, on)
        evaluations.append(evaluation)
    return evaluations, on


def given_set(source: str, reference: str) -> EvaluationSet:
    """The sentences of two files of text."""
    on = EvaluationSet(Path(reference).name, list(read_lines(source)), list(read_lines(reference)), "")
    if len(on.sources) != len(on.references):
        raise ValueError(
            f"{source} has {len(on.sources)} lines and {reference} {len(on.references)}: line n of one must be the "
            "translation of line n of the other"
        )
    return on


def own_test_set(path: str, model: LoadedModel) -> EvaluationSet:
    """The raw sentences that were held out from the training of ``model``."""
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
    sources, references = list(prepared.test["source"]), list(prepared.test["target"])
    return EvaluationSet("test", sources, references, corpora.target_language)


def evaluation_folder(model: Path, on: EvaluationSet) -> Path:
    """Where an evaluation of a run, a model folder or a checkpoint is kept."""
    if model.is_file():
        return model.parents[1] / "evaluations" / f"{on.name}.{model.stem}"
    return model / "evaluations" / on.name
