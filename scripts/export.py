"""python scripts/export.py --model runs/X --format ctranslate2 [--quantization int8] [--output F] [--verify FILE]"""

from typing import Literal

from command_line import Given, main

from pipeline.config import SearchConfig
from pipeline.data.lines import read_lines
from pipeline.inference.translation import sentences_of


def export(
    model: str,
    format: Literal["ctranslate2", "huggingface", "safetensors"],
    quantization: str = "float32",
    output: str = "",
    verify: str = "",
    reference: str = "",
    search: Given[SearchConfig] = Given(),
):
    """Write a model in the format of another engine, into a folder that holds all that is needed to translate.

    Before the folder appears it is loaded, and the scores of a few translations are compared with the model's own.

    Args:
        model: A run folder (its best model), a model folder, or a checkpoint.
        format: CTranslate2, for fast translation; Hugging Face's transformers; or plain weights with their description.
        quantization: Type of the weights: float32, float16, bfloat16; for ctranslate2 also int16, int8, int8_float16 or
            int8_bfloat16.
        output: Folder to write; by default FORMAT-QUANTIZATION in the folder of the model.
        verify: A file of sentences that model and export translate, to compare them. Nothing is written where greedy
            translations in 32 bits differ by more than ties, or rounded weights do more than is usual: scores off by
            0.01 (float16), 0.05 (bfloat16, int16) or 0.2 (int8) on average, or a chrF against the model's own below
            97, 95 (bfloat16) or 90 (int8).
        reference: Translations of that file, for BLEU of both.
        search: What goes with the export in place of the model's own settings.
    """
    if reference and not verify:
        raise ValueError("--reference is of the sentences of --verify: give both, or neither")
    lines = sentences_of(verify) if verify else []
    references = [*read_lines(reference)] if reference else []
    if verify and not lines:
        raise ValueError(f"--verify={verify} has no sentences: name another file")
    if reference and len(lines) != len(references):
        raise ValueError(f"{verify} has {len(lines)} lines and {reference} {len(references)}: they must be as many")
    from pipeline.inference import export  # slow to import: not for --help

    print(export.export(model, format, quantization, output, lines, references, search))


if __name__ == "__main__":
    main(export)
