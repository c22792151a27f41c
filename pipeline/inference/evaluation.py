"""Scores of translations: sacreBLEU's BLEU, chrF and TER, each with its signature (Post, 2018).

Detokenised translations against untouched references. The one place where scores are taken, in training as well.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

from pipeline.data.languages import scripts_of
from pipeline.data.lines import read_lines
from pipeline.inference.outputs import STANDARD_OUTPUT, written

METRICS = ("bleu", "chrf", "ter")

TITLES = {"bleu": "BLEU", "bleu_lowercased": "BLEU lower-cased (compatibility)", "chrf": "chrF", "ter": "TER"}
"""Metrics by name. ``bleu_lowercased`` is for comparison with papers that report tokenised, lower-cased BLEU: on the
Multi30k test set it lies within 0.1 of BLEU over Moses tokens."""


class Score(NamedTuple):
    """One metric of one set of translations."""

    value: float
    """From 0 to 100; the higher the better, but for TER, where less is better."""

    signature: str
    """sacreBLEU's account of how it was computed."""

    details: dict
    """BLEU: ``bp`` (brevity penalty), ``sys_len`` and ``ref_len`` (tokens), ``precisions``, ``totals`` (n-grams of
    the translations, n from 1 to 4)."""


def score(
    translations: Sequence[str],
    references: Sequence[str],
    target_language: str = "",
    metrics: Sequence[str] = METRICS,
) -> dict[str, Score]:
    """The scores of ``translations``, one reference each, by metric (names in ``TITLES``).

    Args:
        target_language: code that picks the words BLEU counts: sacreBLEU's tokenizers for zh, ja and ko, else 13a.

    Raises:
        ValueError: there is nothing to score, the counts differ, or the language's tokenizer is not installed.
    """
    if len(translations) != len(references):
        raise ValueError(
            f"{len(translations)} translations and {len(references)} references: each translation needs its reference, "
            "in the same order"
        )
    if not translations:
        raise ValueError("there is nothing to score: no translations and no references")
    scores = {}
    for name in metrics:
        metric = _metric(name, target_language)
        result = metric.corpus_score(translations, [references])  # one stream of references, not one list a sentence
        details = {key: getattr(result, key) for key in _DETAILS} if name.startswith("bleu") else {}
        scores[name] = Score(float(result.score), str(metric.get_signature()), details)
    return scores


def sentence_bleu(translation: str, reference: str, target_language: str = "") -> float:
    """BLEU of one sentence, over as many n-gram orders as it has (effective order)."""
    bleu = BLEU(tokenize=bleu_tokenizer(target_language), effective_order=True)
    return bleu.sentence_score(translation, [reference]).score


@cache
def bleu_tokenizer(target_language: str) -> str:
    """How BLEU tells words. Raises ``ValueError`` if that is not installed, better known before there is much work."""
    code = _code(target_language)
    tokenizer = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}.get(code, "13a")
    try:
        BLEU(tokenize=tokenizer)
    except (ImportError, RuntimeError) as error:
        raise ValueError(
            f"BLEU for target language {target_language} counts words by {tokenizer}, which is not installed: "
            f"pip install 'sacrebleu[{code}]'"
        ) from error
    return tokenizer


def doubts(
    translations: Sequence[str], references: Sequence[str], scores: dict[str, Score], target_language: str = ""
) -> list[str]:
    """What speaks against taking the scores at face value, a sentence each."""
    found = []
    if target_language and not _is_known(target_language):
        found.append(
            f"{target_language} is the code of no known language, so BLEU tells words by their spaces; Chinese is zh, "
            "Japanese ja, Korean ko: correct --target_language, or corpora.target_language"
        )
    for name, lines in (("translations", translations), ("references", references)):
        if empty := sum(not line.strip() for line in lines):
            found.append(f"{empty} of {len(lines)} {name} are empty")
        if _looks_tokenised(lines):
            found.append(
                f"the {name} look tokenised or cut into pieces: scores compare only on plain text, so detokenise them"
            )
    if bleu := scores.get("bleu"):
        if not bleu.details["totals"][3]:
            found.append("no translation has four words, so BLEU is 0 by definition: look at chrF")
        # Languages written with spaces have 4 to 8 characters to a token.
        if "tok:13a" in bleu.signature and sum(map(len, references)) > 10 * bleu.details["ref_len"]:
            found.append(
                "the references have few spaces, by which BLEU tells words: look at chrF, or name the target language "
                "(zh, ja, ko)"
            )
    return found


def differences(systems: dict[str, Sequence[str]], references: Sequence[str], target_language: str = "") -> dict:
    """How sure it is that each system differs from the first: p-values of paired bootstrap resampling (Koehn, 2004).

    Returns:
        ``{system: {metric: p}}`` for all systems but the first.
    """
    names = list(systems)
    p_values: dict[str, dict[str, float]] = {name: {} for name in names[1:]}
    for metric in METRICS:
        test = PairedTest(
            list(systems.items()), {metric: _metric(metric, target_language)}, [references], "bs", n_samples=1000
        )
        _, columns = test()
        columns.pop("System")
        (results,) = columns.values()
        for name, result in zip(names[1:], results[1:], strict=True):
            # sacreBLEU counts larger differences only, which for equal systems there are none of.
            p_values[name][metric] = 1.0 if result.score == results[0].score else float(result.p_value)
    return p_values


class EvaluationSet(NamedTuple):
    """Sentences to translate, and how people translated them."""

    name: str
    sources: Sequence[str]
    references: Sequence[str]
    target_language: str


@dataclass(frozen=True)
class Evaluation:
    """One system's translations of an evaluation set, and their scores."""

    system: str
    translations: Sequence[str]
    scores: dict[str, Score]
    warnings: list[str]
    search: dict = field(default_factory=dict)
    """How the translations were looked for, where that is known."""


def evaluate(
    system: str, translations: Sequence[str], on: EvaluationSet, compatibility: bool = False, search: dict | None = None
) -> Evaluation:
    """Score one system's translations, in ``compatibility`` also as older papers do.

    Raises:
        ValueError: as ``score``.
    """
    metrics = (*METRICS[:1], "bleu_lowercased", *METRICS[1:]) if compatibility else METRICS
    try:
        scores = score(translations, on.references, on.target_language, metrics)
    except ValueError as error:
        raise ValueError(f"{system}: {error}") from error
    found = doubts(translations, on.references, scores, on.target_language)
    return Evaluation(system, translations, scores, found, search or {})


def evaluate_files(
    paths: Sequence[str], reference: str, target_language: str = "", compatibility: bool = False
) -> tuple[list[Evaluation], EvaluationSet]:
    """Score files of translations, one a line, against a file of references."""
    on = EvaluationSet(Path(reference).name, [], list(read_lines(reference)), target_language)
    return [evaluate(path, list(read_lines(path)), on, compatibility) for path in paths], on


def show(results: Sequence[tuple[Sequence[Evaluation], EvaluationSet]], json_path: str = "") -> None:
    """Print the scores on each set as a table, and doubts on stderr; write them as JSON, an object, or of several sets
    a list of objects (``-``: to stdout, the tables to stderr)."""
    console = Console(file=sys.stderr if json_path in STANDARD_OUTPUT else sys.stdout, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 1000  # a file has no width to fit into, and names are not to be broken
    described = []
    for evaluations, on in results:
        p_values = {}
        if len(evaluations) > 1:
            systems = {evaluation.system: evaluation.translations for evaluation in evaluations}
            p_values = differences(systems, on.references, on.target_language)
        console.print(as_table(evaluations, on, p_values))
        for name, (_, signature, _) in evaluations[0].scores.items():
            console.print(f"{TITLES[name]}: {signature}", soft_wrap=True)
        if p_values:
            console.print(f"p: paired bootstrap against {evaluations[0].system}, 1000 samples", soft_wrap=True)
        for evaluation in evaluations:
            for warning in evaluation.warnings:
                print(f"warning: {evaluation.system}: {warning}", file=sys.stderr)
        described.append(description(evaluations, on, p_values))
    if json_path:
        with written(json_path) as file:
            file.write(as_json(described if len(described) > 1 else described[0]))


def as_table(evaluations: Sequence[Evaluation], on: EvaluationSet, p_values: dict) -> Table:
    """A row for each system, a column for each metric."""
    table = Table(title=f"{on.name}, {len(on.references)} sentences", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("", overflow="fold")
    for name in evaluations[0].scores:
        table.add_column(TITLES[name].replace(" ", "\n"), justify="right", no_wrap=True)
    for evaluation in evaluations:
        p = p_values.get(evaluation.system, {})
        cells = [
            f"{score.value:.2f}" + (f"\np {p[name]:.3f}" if name in p else "")
            for name, score in evaluation.scores.items()
        ]
        table.add_row(evaluation.system, *cells)
    return table


def description(evaluations: Sequence[Evaluation], on: EvaluationSet, p_values: dict) -> dict:
    """The scores for programs."""
    systems = [
        {
            "system": evaluation.system,
            "scores": {name: {"title": TITLES[name], **score._asdict()} for name, score in evaluation.scores.items()},
            "p_against_first": p_values.get(evaluation.system, {}),
            "warnings": evaluation.warnings,
            "search": evaluation.search,
        }
        for evaluation in evaluations
    ]
    return {
        "evaluation_set": on.name,
        "sentences": len(on.references),
        "target_language": on.target_language,
        "systems": systems,
    }


def as_json(content: dict | list[dict]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def write_evaluation(folder: Path, evaluation: Evaluation, on: EvaluationSet) -> None:
    """Fill a new folder: ``source.txt``, ``reference.txt``, ``translation.txt``, ``scores.json``, ``sentences.jsonl``.

    The last has a line for each sentence with its own BLEU.
    """
    folder.mkdir(parents=True)
    columns = {"source": on.sources, "reference": on.references, "translation": evaluation.translations}
    for name, lines in columns.items():
        (folder / f"{name}.txt").write_text(as_lines(lines), encoding="utf-8", newline="\n")
    with open(folder / "sentences.jsonl", "w", encoding="utf-8") as file:
        for row in zip(*columns.values(), strict=True):
            bleu = sentence_bleu(row[2], row[1], on.target_language)
            print(json.dumps(dict(zip(columns, row, strict=True)) | {"bleu": bleu}, ensure_ascii=False), file=file)
    (folder / "scores.json").write_text(as_json(description([evaluation], on, {})), encoding="utf-8")


def is_of_set(folder: Path, on: EvaluationSet) -> bool:
    """Whether a folder that ``write_evaluation`` has filled is of these sentences."""
    sides = {"source": on.sources, "reference": on.references}
    files = {folder / f"{name}.txt": as_lines(lines).encode() for name, lines in sides.items()}
    return all(file.is_file() and file.read_bytes() == text for file, text in files.items())


def as_lines(texts: Sequence[str]) -> str:
    """One line each, whatever ends of lines they have."""
    return "".join(re.sub(r"\s*[\r\n]+\s*", " ", text) + "\n" for text in texts)


_DETAILS = ("bp", "sys_len", "ref_len", "precisions", "totals")


def _metric(name: str, target_language: str) -> Metric:
    if name == "ter":
        spaceless = _code(target_language) in ("zh", "ja")
        return TER(normalized=spaceless, asian_support=spaceless)  # counts characters where words are not set apart
    if name == "chrf":
        return CHRF()
    # force: sacreBLEU's own warning about tokenised text is one of our doubts.
    return BLEU(tokenize=bleu_tokenizer(target_language), lowercase=name == "bleu_lowercased", force=True)


def _code(language: str) -> str:
    """The two-letter code of the languages that need a tokenizer of their own."""
    code = re.split(r"[-_]", language.lower())[0]
    return {"zho": "zh", "chi": "zh", "cmn": "zh", "yue": "zh", "jpn": "ja", "kor": "ko"}.get(code, code)


def _is_known(language: str) -> bool:
    """There are thousands of codes of three letters; those of two are nearly all in ``SCRIPTS``."""
    return bool(re.fullmatch(r"[a-z]{3}", re.split(r"[-_]", language.lower())[0]) or scripts_of(language))


def _looks_tokenised(lines: Sequence[str]) -> bool:
    marks = sum(line.endswith((" .", " ?", " !")) or "▁" in line or "@@ " in line for line in lines)
    return marks > len(lines) / 2
