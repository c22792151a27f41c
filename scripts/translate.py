"""python scripts/translate.py --model runs/X [--input F] [--output F] [--search.beam_size 5 ...] [sentence ...]"""

import sys
from dataclasses import replace

from pipeline.cli import Given, main
from pipeline.config import SearchConfig
from pipeline.data.lines import read_lines


def translate(
    sentences: list[str] = [],
    /,
    *,
    model: str,
    input: str = "-",
    output: str = "-",
    nbest: int = 1,
    scores: bool = False,
    search: Given[SearchConfig] = Given(),
):
    """Translate lines of text: one line in, one line out, in order; a blank line stays blank.

    Args:
        sentences: What to translate, instead of an input.
        model: A run folder (its best model), a model folder, or a checkpoint.
        input: A file, plain or gzipped; - is the standard input.
        output: A file, which appears when it is complete; - is the standard output.
        nbest: Translations per line; more than one are written as with scores.
        scores: Write a table of line number, score, "end" or "limit" (what stopped it), text, separated by tabs.
    """
    from pipeline.inference import documents, translator  # slow to import: not for --help

    trained = translator.Translator.load(model)
    chunk = 1 if input == "-" and sys.stdin.isatty() else None  # answer whoever types, line by line
    lines = trained.stream(sentences or read_lines(input), replace(trained.search, **search), nbest, chunk)
    documents.write(lines, output, table=scores or nbest > 1)


if __name__ == "__main__":
    main(translate)
