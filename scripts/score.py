"""python scripts/score.py --model runs/X --source F --target G [--json] [--output F]"""

from dataclasses import replace

from pipeline.cli import Given, main
from pipeline.config import SearchConfig


def score(
    *,
    model: str,
    source: str = "",
    target: str = "",
    pairs: str = "",
    output: str = "-",
    json: bool = False,
    search: Given[SearchConfig] = Given(),
):
    """Tell what a model thinks of given translations, without translating.

    Writes a row per pair, separated by tabs: its number, the score that a search would give to this translation, the
    log-probability of its tokens, and their number.

    Args:
        model: A run folder (its best model), a model folder, or a checkpoint.
        source: Sentences, one a line; with target.
        target: Their translations, line by line.
        pairs: Instead of both, a table of two columns without a header, or .jsonl with "source" and "target".
        output: A file, which appears when it is complete; - is the standard output.
        json: Write one JSON object per pair, which holds the texts too; scores of minus infinity are null.
    """
    from pipeline.inference import scoring, translator  # slow to import: not for --help

    read = scoring.read_pairs(source, target, pairs)
    trained = translator.Translator.load(model)
    scoring.write_scores(trained, read, replace(trained.search, **search), output, json)


if __name__ == "__main__":
    main(score)
