"""All heads of one kind of attention as one picture: a row of panels per layer, tokens at the edges of the grid."""

import unicodedata
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.checkpoint import written_whole
from pipeline.inference.attention import Heads

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL, LARGEST = 0.12, 40
"""Inches: side of a cell, and of the whole picture, whose many tokens make cells smaller."""


def draw(kinds: dict[str, Heads], folder: Path) -> list[Path]:
    """Draw each kind as ``NAME.png``, and return the files: none, with a warning, where matplotlib is missing."""
    try:
        letters = Letters({token for kind in kinds.values() for token in (*kind.queries, *kind.keys)})
    except ImportError:
        warnings.warn("no PNG: matplotlib is not installed (pip install 'dragoman[plots]')", stacklevel=2)
        return []
    paths = {name: folder / f"{name}.png" for name in kinds}
    for name, path in paths.items():
        with written_whole(path) as new:
            figure(kinds[name], letters).savefig(new, format="png", bbox_inches="tight", pad_inches=0.15)
    return list(paths.values())


def figure(kind: Heads, letters: "Letters") -> "Figure":
    """One kind of attention as matplotlib's figure."""
    from matplotlib.figure import Figure

    layers, heads, high, wide = kind.weights.shape
    cell = min(max(CELL, 1 / wide), LARGEST / (heads * wide), LARGEST / (layers * high))
    width, height, gap = wide * cell, high * cell, 0.3
    style = {"fontsize": min(8, 55 * cell), "family": letters.families, "parse_math": False}  # a dollar is a dollar
    drawn = Figure(figsize=(heads * width + (heads - 1) * gap, layers * height + (layers - 1) * gap), dpi=150)
    drawn.subplots_adjust(0, 0, 1, 1, wspace=gap / width, hspace=gap / height)
    for (layer, head), axes in np.ndenumerate(drawn.subplots(layers, heads, squeeze=False)):
        axes.imshow(kind.weights[layer, head].sqrt().numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=8, pad=3)
        axes.tick_params(length=0, pad=2)
        axes.set(xticks=[], yticks=[])
        if layer == layers - 1:
            axes.set_xticks(range(wide), letters.write(kind.keys), rotation=90, **style)
        if head == 0:
            axes.set_yticks(range(high), letters.write(kind.queries), **style)
    words = f"{kind.title}: rows look at columns; white 0, blue 1, by the square root of the weight"
    drawn.text(0, 1 + 0.35 / drawn.get_figheight(), words, fontsize=9)
    return drawn


class Letters:
    """Installed fonts that together show some texts; a character that none shows is written ``□``, with a warning."""

    def __init__(self, texts: set[str]):
        from matplotlib.font_manager import fontManager
        from matplotlib.ft2font import FT2Font

        fonts = [font for font in fontManager.ttflist if (font.style, font.weight) == ("normal", 400)]
        fonts.sort(key=lambda font: font.name != "DejaVu Sans")  # which matplotlib brings along
        self.families, missing = [], set().union(*texts)
        for font in fonts:
            usable = missing and not font.name.startswith("Last Resort") and Path(font.fname).exists()
            if usable and (found := missing.intersection(map(chr, FT2Font(font.fname).get_charmap()))):
                self.families.append(font.name)
                missing -= found
        # Joiners and the like show nothing themselves.
        self.boxes = {ord(letter): "" if unicodedata.category(letter) == "Cf" else "□" for letter in missing}
        if unknown := "".join(chr(code) for code, box in sorted(self.boxes.items()) if box):
            warnings.warn(f"no installed font shows {unknown}: the PNG have □ instead", stacklevel=3)

    def write(self, texts: list[str]) -> list[str]:
        return [text.translate(self.boxes) for text in texts]
