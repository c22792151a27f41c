"""Memory that tensors are given."""

import subprocess
import sys
from pathlib import Path

import pytest

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
FAULTS = """
import pipeline, resource, torch
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(1 << 26, dtype=torch.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(), reason="this system has no huge pages to give"
)
def test_large_tensors_are_given_large_pages():
    told = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True)
    assert int(told.stdout) < 8192  # half the pages of 4 KiB in 64 MiB
