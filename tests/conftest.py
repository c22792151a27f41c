"""Every call into ``models`` has the shapes and types of its jaxtyping signature checked while the tests run."""

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
