"""Every call into ``models`` has the shapes and types of its jaxtyping signature checked while the tests run.

What all tests share: scripts can be called without a process of their own; tests for a GPU are skipped without one.
"""

import io
import runpy
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook

install_import_hook("models", "beartype.beartype")

# Tiny tensors: handing them to other threads costs more than it saves.
torch.set_num_threads(1)


def pytest_report_header() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU"
    return f"torch {torch.__version__} on {device}"


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture
def call(monkeypatch, capsys):
    """``call("translate.py", "--model", ...)`` runs a script in this process, which has its imports behind it, and
    returns its status, output and complaints."""

    def call(script: str, *arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"text\n")))
        status = 0
        try:
            runpy.run_path(str(Path(__file__).parents[1] / "scripts" / script), run_name="__main__")
        except SystemExit as ended:
            status = ended.code
        return status, *capsys.readouterr()

    return call
