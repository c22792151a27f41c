"""python scripts/alternatives.py --model runs/X [--prefix "how it begins"] [--count 5] sentence"""

from command_line import Given, main
from jsonargparse.typing import PositiveInt

from pipeline.config import SearchConfig


def alternatives(
    sentence: list[str] = [],
    /,
    *,
    model: str,
    prefix: str = "",
    to: str = "",
    count: PositiveInt = 5,
    search: Given[SearchConfig] = Given(),
):
    """Show how else a translation could go on.

    Writes a row per alternative, separated by tabs: the probability of its first token after the prefix, the score of
    the best translation that goes on with it, and that translation: the prefix itself, where it may end there.

    Args:
        sentence: What is translated, in quotes.
        model: A run folder (its best model), a model folder, or a checkpoint; no export; several, with commas, are one.
        prefix: How the translation begins.
        to: The language to translate into, of a model of several (corpora.tags).
        count: Alternatives, the most probable first.
    """
    if len(sentence) != 1:
        raise ValueError(f"{len(sentence)} sentences given: give one, in quotes")
    from pipeline.inference import scoring, translator  # slow to import: not for --help

    trained = translator.Translator.load(model.split(","), to=to)
    rows = scoring.alternatives(trained, *sentence, prefix, count, trained.search.changed(search))
    for probability, found in rows:
        print(f"{probability:.4f}\t{found.score:.4f}\t{found.text}")


if __name__ == "__main__":
    main(alternatives)
