"""python scripts/translate.py --model runs/X [--input F] [--output F] [--search.beam_size 5 ...] [sentence ...]"""

from typing import Literal

from pipeline.cli import Given, main
from pipeline.config import SearchConfig


def translate(
    sentences: list[str] = [],
    /,
    *,
    model: str,
    input: str = "-",
    output: str = "-",
    format: Literal["auto", "text", "jsonl"] = "auto",
    source_column: str = "source",
    json: bool = False,
    nbest: int = 1,
    scores: bool = False,
    add: list[Literal["tokens", "alignment", "missing_terms"]] = [],
    devices: int = 1,
    search: Given[SearchConfig] = Given(),
):
    """Translate line by line: n lines in, n lines out. What is not given of --search is as the model has it.

    Args:
        sentences: What to translate, instead of an input.
        model: A run folder (its best model), a model folder, or a checkpoint; several, with commas, translate as one.
        input: A file, plain or gzipped; - is the standard input, answered as it comes.
        output: A file, there when complete; the same command again goes on with what is in FILE.partial. - is stdout.
        format: Of the input; jsonl (auto: where the name ends so) has an object a line, and may have prefix and terms.
        source_column: The field of these objects that is translated.
        json: Write objects: those of the input, or new ones, with a field translation.
        nbest: Translations per line: as a table, or in objects as a field.
        scores: Write a table of line number, score, "end" or "limit" (what stopped it), text; or fields in objects.
        add: More fields: pieces, word alignment from attention (Pharaoh's format), terms that were not put in.
        devices: Processes that share the work, on a GPU each; 0 is all GPUs.
    """
    from pipeline.inference import documents, records  # slow to import: not for --help

    form = records.Form.chosen(format, "" if sentences else input, json, source_column, nbest, scores, add)
    documents.translate(model.split(","), sentences or input, output, form, search, devices)


if __name__ == "__main__":
    main(translate)
