"""What README.md and the comments in configs/ tell a user to type can be typed: files exist, options are known."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from pipeline import cli

ROOT = Path(__file__).parents[1]
TEXTS = [ROOT / "README.md", ROOT / "tests/README.md", *sorted(ROOT.glob("configs/*.yaml"))]
PLACEHOLDER = re.compile(r"(?:^|/)[A-Z]+(?:\.\w+)?$|[*<>{}…]")
"""``configs/X.yaml``, ``configs/*.yaml``: stands for a file that the reader chooses."""


def commands(text: str) -> list[list[str]]:
    """The words of every ``python scripts/…`` command up to a pipe or redirection, brackets of usage taken off."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        # A command begins a line (in code, perhaps a comment or after a prompt or pipe) or a stretch of code in text.
        for start in re.finditer(r"(?:^[#$ ]*|`|\| *)(python scripts/[^`]*)", line):
            words = shlex.split(start[1].replace("[--", "--").replace(" ...]", "]"), comments=True)
            end = next((i for i, word in enumerate(words) if word in ("|", "<", ">", ">>", "&&", ";", "#")), len(words))
            kept = [word for word in words[:end] if word != "..."]
            found.append([word.removesuffix("]") if not word.startswith("[") else word for word in kept])
    return found


def command_of(script: str, monkeypatch):
    """The function that a script makes a command line of."""
    given = []
    monkeypatch.setattr("command_line.main", given.append)
    runpy.run_path(str(ROOT / script), run_name="__main__")
    return given[0]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_parses(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    for _, script, *arguments in commands(path.read_text("utf-8")):
        arguments = [
            "configs/quickstart.yaml" if PLACEHOLDER.search(word) and word.endswith(".yaml") else word
            for word in arguments
        ]
        command, _ = cli._parse(command_of(script, monkeypatch), script, arguments)
        assert callable(command)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_of_the_repository_that_is_named_exists(path):
    named = re.findall(r"(?<![\w/.])(?:configs|models|pipeline|scripts|tests)/[\w./*-]*\w", path.read_text("utf-8"))
    assert not [name for name in named if not PLACEHOLDER.search(name) and not (ROOT / name).exists()]


def test_every_test_that_stands_against_a_fault_is_there():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "tests/README.md").read_text("utf-8"))
    assert len(named) > 80
    assert not [test for file, test in named if f"\ndef {test}(" not in (ROOT / file).read_text("utf-8")]


def test_the_readme_gives_the_two_commands_that_start_everything_and_ci_runs_them():
    readme, ci = (ROOT / "README.md").read_text("utf-8"), (ROOT / ".ci/run").read_text("utf-8")
    for command in ("bash scripts/quickstart.sh", "bash scripts/test.sh"):
        assert command in readme and command in ci


def test_wrong_commands_would_be_found(monkeypatch):
    text = (
        "`python scripts/evaluate.py --modle runs/X`\n\n    python scripts/evaluate.py --model runs/X [--json F] > F\n"
    )
    wrong, right = commands(text)
    assert right == ["python", "scripts/evaluate.py", "--model", "runs/X", "--json", "F"]
    evaluate = command_of("scripts/evaluate.py", monkeypatch)
    cli._parse(evaluate, "evaluate.py", right[2:])
    with pytest.raises(ValueError, match="unknown option modle: did you mean model"):
        cli._parse(evaluate, "evaluate.py", wrong[2:])
