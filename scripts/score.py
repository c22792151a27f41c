"""python scripts/score.py --model runs/X --source F --target G [--json] [--output F]"""

from command_line import Given, main

from pipeline.config import ScoreConfig


def score(
    *,
    model: str,
    source: str = "",
    target: str = "",
    pairs: str = "",
    to: str = "",
    output: str = "-",
    json: bool = False,
    search: Given[ScoreConfig] = Given(),
):
    """Tell what a model thinks of given translations, without translating.

    Writes a row per pair, separated by tabs: its number, its score, the log-probability of its tokens and its end, and
    their number. A search gives the same score to what it finds in these tokens and to its end; a penalty on coverage
    is a search's alone.

    Args:
        model: A run folder (its best model), a model folder, or a checkpoint; no export; several, with commas, are one.
        source: Sentences, one a line; with target.
        target: Their translations, line by line.
        pairs: Instead of both, a table of two columns with a tab between and no header, or .jsonl with "source" and
            "target".
        to: The language of the translations, of a model of several (corpora.tags).
        output: A file, which appears when it is complete; - is the standard output.
        json: Write one JSON object per pair, which holds the texts too; scores of minus infinity are null.
    """
    from pipeline.inference import outputs, scoring, translator  # slow to import: not for --help

    outputs.require_output("output", output, [source, target, pairs, model])
    read = scoring.read_pairs(source, target, pairs)
    trained = translator.Translator.load(model.split(","), to=to)
    scoring.write_scores(trained, read, trained.search.changed(search), output, json)


if __name__ == "__main__":
    main(score)
