"""Who may import whom: the mathematics knows nothing of the run, and the run's stages meet only where they must."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("models", "pipeline", "scripts", "tests")
LIGHTNING = ("pytorch_lightning", "lightning", "lightning_fabric", "lightning_utilities")


def modules():
    """All modules that ship, by dotted name."""
    files = [path for package in OURS[:-1] for path in sorted((ROOT / package).rglob("*.py"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text(encoding="utf-8") for path in files}


def imports(source, name):
    """Every module that this source imports, anywhere in it, by its absolute dotted name; ``from a import b`` counts
    as a.b, since b may be a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = name.split(".")[: -node.level] if node.level else []
            base = ".".join([*package, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def within(name, *packages):
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def violation(name, imported):
    """Why module ``name`` may not import ``imported``, or None."""
    if within(imported, "scripts"):
        return "nothing imports scripts"
    if within(imported, "tests"):
        return "nothing that ships imports tests"
    if within(name, "models") and within(imported, "pipeline"):
        return "models import nothing of ours but models"
    if within(name, "pipeline.data") and within(imported, "models"):
        return "pipeline.data does not import models"
    if within(name, "pipeline.data") and within(imported, "pipeline.training", "pipeline.inference"):
        return "pipeline.data is the first stage"
    if within(name, "pipeline.inference") and within(imported, "pipeline.training"):
        return "pipeline.inference does not import pipeline.training"
    if within(name, "pipeline.training") and within(imported, "pipeline.inference"):
        uses = ("engine", "translator", "evaluation", "attention", "attention_pictures")
        allowed = within(imported, *(f"pipeline.inference.{use}" for use in uses))
        reason = "only the validation callback uses inference, to translate, to score and to draw"
        return None if allowed and name == "pipeline.training.validation" else reason
    if within(imported, *LIGHTNING) and not within(name, "pipeline.data.datamodule", "pipeline.training"):
        return "Lightning lives in pipeline.training and the datamodule"
    if within(imported, "torch") and within(name, "models.config", "pipeline.config"):
        return "configuration imports no torch, so that --help is instant"
    return None


def test_imports_run_in_one_direction():
    wrong = [
        f"{name} imports {imported}: {why}"
        for name, source in modules().items()
        for imported in imports(source, name)
        if (why := violation(name, imported))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_modules_that_are_judged_are_the_modules_that_are_there():
    assert {"models.transformer", "models.config", "pipeline.config"} <= set(modules())


@pytest.mark.parametrize(
    "name, source",
    [
        ("models.search", "def f():\n    from pipeline.data import tokenizer"),
        ("pipeline.data.batching", "import models.masks"),
        ("pipeline.data.batching", "from pipeline import training"),
        ("pipeline.data.batching", "from ..training.fit import fit"),
        ("pipeline.data.batching", "from pytorch_lightning import LightningDataModule"),
        ("pipeline.inference.translator", "import lightning as L"),
        ("pipeline.inference.translator", "from ..training import module"),
        ("pipeline.training.module", "from pipeline.inference.translator import Translator"),
        ("pipeline.training.validation", "from pipeline.inference.serving import serve"),
        ("scripts.train", "from pytorch_lightning import Trainer"),
        ("scripts.train", "import scripts.prepare"),
        ("pipeline.config", "from torch import nn"),
    ],
)
def test_a_wrong_import_is_seen(name, source):
    assert any(violation(name, imported) for imported in imports(source, name))


@pytest.mark.parametrize(
    "name, source",
    [
        ("models.search", "from models.masks import Mask\nfrom . import loss"),
        ("pipeline.data.datamodule", "import pytorch_lightning"),
        ("pipeline.training.fit", "from pytorch_lightning import Trainer\nfrom models.transformer import Transformer"),
        ("pipeline.training.validation", "from pipeline.inference.translator import Translator"),
        ("pipeline.inference.translator", "from pipeline import checkpoint\nimport torch"),
        ("scripts.train", "from pipeline.training.fit import fit"),
    ],
)
def test_a_right_import_passes(name, source):
    assert not any(violation(name, imported) for imported in imports(source, name))
