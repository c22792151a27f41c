"""All heads of one kind of attention as one picture: a row of panels per layer, tokens on both axes."""

import unicodedata
import warnings
from importlib.util import find_spec
from pathlib import Path

from pipeline.checkpoint import written_whole
from pipeline.inference.attention import Heads

CELL, LARGEST = 0.12, 60
"""Inches: side of a cell, and of the whole picture, whose many tokens make cells smaller."""


def draw_all(kinds: dict[str, Heads], folder: Path) -> list[Path]:
    """Draw ``encoder.png`` and the like, as far as there are such kinds; none, with a warning, without matplotlib."""
    if not find_spec("matplotlib"):
        warnings.warn("no PNG: matplotlib is not installed (pip install 'dragoman[plots]')", stacklevel=2)
        return []
    for name, kind in kinds.items():
        draw(kind, folder / f"{name}.png")
    return [folder / f"{name}.png" for name in kinds]


def draw(kind: Heads, path: Path) -> None:
    """Write the picture as PNG; needs matplotlib."""
    from matplotlib.figure import Figure

    layers, heads, high, wide = kind.weights.shape
    cell = min(max(CELL, 1 / wide), LARGEST / (heads * wide), LARGEST / (layers * high))
    width, height, gap = wide * cell, high * cell, 0.3
    labels, families = writable([*kind.queries, *kind.keys])
    text = {"fontsize": min(8, 55 * cell), "family": families, "parse_math": False}  # a dollar is a dollar
    figure = Figure(figsize=(heads * width + (heads - 1) * gap, layers * height + (layers - 1) * gap), dpi=150)
    figure.subplots_adjust(0, 0, 1, 1, wspace=gap / width, hspace=gap / height)
    for layer, row in enumerate(figure.subplots(layers, heads, squeeze=False)):
        for head, axes in enumerate(row):
            axes.imshow(kind.weights[layer, head].sqrt(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=8, pad=3)
            axes.tick_params(length=0, pad=2)
            axes.set_xticks(range(wide), labels[high:] if layer == layers - 1 else [""] * wide, rotation=90, **text)
            axes.set_yticks(range(high), labels[:high] if head == 0 else [""] * high, **text)
    words = f"{kind.title}: rows look at columns; white 0, blue 1, by the square root of the weight"
    figure.text(0, 1 + 0.35 / figure.get_figheight(), words, fontsize=9)
    with written_whole(path) as new:
        figure.savefig(new, format="png", bbox_inches="tight", pad_inches=0.15)


def writable(labels: list[str]) -> tuple[list[str], list[str]]:
    """The labels, and the families of installed fonts that show them; what none shows becomes ``□``, with a warning."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

    families, missing = [], {character for label in labels for character in label}
    for family in ["DejaVu Sans", *sorted(set(fontManager.get_font_names()) - {"DejaVu Sans"})]:
        characters = set(map(chr, get_font(findfont(FontProperties(family=[family]))).get_charmap()))
        if missing & characters and not family.startswith("Last Resort"):
            families.append(family)
            missing -= characters
        if not missing:
            break
    # Joiners and the like are no characters of their own.
    boxes = {ord(character): "" if unicodedata.category(character) == "Cf" else "□" for character in missing}
    if shown := "".join(sorted(character for character in missing if boxes[ord(character)])):
        warnings.warn(f"no installed font shows {shown}, which the pictures write as □", stacklevel=2)
    return [label.translate(boxes) for label in labels], families or ["DejaVu Sans"]
