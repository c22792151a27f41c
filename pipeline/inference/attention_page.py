"""All attention of one translation as one HTML page, which needs no network and no server."""

import json
from pathlib import Path

from pipeline.checkpoint import written_whole
from pipeline.inference.attention import Attended

TEMPLATE = Path(__file__).with_suffix(".html")


def write_page(shown: Attended, path: Path, model: str, layer: int = 0) -> None:
    """Write the page, with ``model`` as its title; ``layer`` is that of ``Attended.alignment``."""
    with written_whole(path) as new:
        new.write_text(page(shown, model, layer), encoding="utf-8")


def page(shown: Attended, model: str, layer: int = 0) -> str:
    """The page as text, with the weights in thousandths.

    All that changes is one piece of JSON without ``<``, so that nobody's text can become the page's code.
    """
    data = {
        "model": model,
        "sentence": shown.sentence,
        "translation": shown.translation,
        "words": [shown.sentence.split(), shown.translation.split()],
        "layer": shown.layer(layer),
        "links": shown.alignment(layer),
        "kinds": [
            {
                "name": name,
                "title": kind.title,
                "queries": kind.queries,
                "keys": kind.keys,
                "weights": (kind.weights * 1000).round().int().tolist(),
            }
            for name, kind in shown.kinds.items()
        ],
    }
    inert = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace(">DATA<", f">{inert}<")
