"""python scripts/translate.py --model runs/X [--input F] [--output F] [--search.beam_size 5 ...] [sentence ...]"""

from typing import Literal

from command_line import Given, main
from jsonargparse.typing import NonNegativeInt, PositiveInt

from pipeline.config import SearchConfig


def translate(
    sentences: list[str] = [],
    /,
    *,
    model: str,
    to: str = "",
    input: str = "-",
    output: str = "-",
    format: Literal["auto", "text", "jsonl"] = "auto",
    source_column: str = "source",
    json: bool = False,
    nbest: PositiveInt = 1,
    scores: bool = False,
    add: list[Literal["tokens", "alignment", "missing_terms", "missing_prefix"]] = [],
    document: bool = False,
    protect: list[Literal["url", "email", "number", "placeholder", "tag"]] = [],
    engine: Literal["dragoman", "ctranslate2", "huggingface"] = "dragoman",
    precision: Literal["auto", "32", "bf16", "int8"] = "auto",
    devices: NonNegativeInt = 1,
    search: Given[SearchConfig] = Given(),
):
    """Translate line by line: n lines in, n lines out. What is not given of --search is as the model has it.

    Args:
        sentences: What to translate, instead of an input; before the options, or after --.
        model: A run folder (its best model), a model folder, or a checkpoint; several, with commas, translate as one.
        to: The language to translate into, of a model of several (corpora.tags).
        input: A file, plain or gzipped; - is the standard input, answered as it comes.
        output: A file, there when complete; the same command again goes on with what is in FILE.partial. - is stdout.
        format: Of the input; jsonl (auto: where the name ends so) has an object a line, and may have prefix and terms.
        source_column: The field of these objects that is translated; translation.en is one inside another.
        json: Write objects: those of the input, or new ones, with a field translation.
        nbest: Translations per line, at most: as a table, or in objects as a field.
        scores: Write a table of line number, score, "end" or "limit" (what stopped it), text; or fields in objects.
        add: More fields: pieces, word alignment from attention (Pharaoh's format), terms, or the prefix, that it lacks.
        document: Lines are paragraphs, translated sentence by sentence; layout and blank lines stay.
        protect: Kinds of spans that come out unchanged: url (http, https, ftp, www), email, number, placeholder (%s
            %1$d %@ %1 %% %(x)s {x} {{x}} %{x} ${x} $x) and tag (<b>, </0>, <!-- x -->, &amp;).
        engine: What searches; those of others take a folder that scripts/export.py wrote.
        precision: Of products of matrices; auto is bf16 on a GPU that has it; int8 is for CPUs.
        devices: Processes that share the work, on a GPU each, or on a CPU's cores; 0 is all GPUs.
    """
    if sentences and input != "-":
        raise ValueError(f"sentences are given and --input={input} too: give one of both")
    from pipeline.inference import documents, records  # slow to import: not for --help

    form = records.Form.chosen(format, "" if sentences else input, json, source_column, nbest, scores, add)
    how = {"engine": engine, "precision": precision, "document": document, "protect": protect, "to": to}
    documents.translate(model.split(","), sentences or input, output, form, search, devices, **how)


if __name__ == "__main__":
    main(translate)
