"""python scripts/attention.py --model runs/X "sentence" [--translation "..."] [--output FOLDER]"""

import sys
from pathlib import Path

from command_line import Given, main

from pipeline.config import SearchConfig


def attention(
    sentence: list[str] = [],
    /,
    *,
    model: str,
    translation: str = "",
    to: str = "",
    output: str = "attention",
    layer: int = 0,
    search: Given[SearchConfig] = Given(),
):
    """Draw what a model looks at while it translates a sentence, and print the word alignment in Pharaoh's format.

    That is pairs of word numbers, from 0; blanks divide the words.

    Args:
        sentence: What is translated, in quotes.
        model: A run folder (its best model), a model folder, or a checkpoint; one, and no export.
        translation: Its translation; if it is not given, the model's own.
        to: The language to translate into, of a model of several (corpora.tags).
        output: Folder of attention.html, and of encoder.png, decoder.png and cross.png, which need matplotlib.
        layer: Of cross-attention, for the alignment: from 1; 0 is the last but one, or the only one.
    """
    if len(sentence) != 1:
        raise ValueError(f"{len(sentence)} sentences given: give one, in quotes")
    from pipeline.inference import attention, attention_page, attention_pictures, outputs, translator  # slow to import

    outputs.require_place(f"--output={output}", Path(output, "attention.html"))
    trained = translator.Translator.load(model.split(","), to=to)
    shown = attention.attended(trained, *sentence, translation or None, trained.search.changed(search))
    html, links = Path(output, "attention.html"), shown.alignment(layer)
    attention_page.write_page(shown, html, model, layer)
    pictures = attention_pictures.draw(shown.kinds, Path(output))
    print("wrote", *[html, *pictures], file=sys.stderr)
    print(*(f"{source}-{target}" for source, target in links))


if __name__ == "__main__":
    main(attention)
