"""python scripts/export.py --model runs/X --format ctranslate2 [--quantization int8] [--output F] [--verify FILE]"""

from typing import Literal

from pipeline.cli import Given, main
from pipeline.config import SearchConfig
from pipeline.data.lines import read_lines


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
        verify: A file of sentences that model and export translate, to compare them; nothing is written where they
            disagree.
        reference: Translations of that file, for BLEU of both.
        search: What goes with the export in place of the model's own settings.
    """
    from pipeline.inference import export  # slow to import: not for --help

    lines, references = ([*read_lines(file)] if file else [] for file in (verify, reference))
    print(export.export(model, format, quantization, output, lines, references, search))


if __name__ == "__main__":
    main(export)
