"""What a script needs of ``pipeline.cli``, or a line that names the Python which has it."""

import sys
from pathlib import Path

__all__ = ["Given", "main"]

try:
    from pipeline.cli import Given, main
except ModuleNotFoundError as error:
    sys.exit(
        f"{Path(sys.argv[0]).name}: error: {sys.executable} has no package {error.name}: use .venv/bin/python, which "
        "bash scripts/quickstart.sh and bash scripts/test.sh set up"
    )
