"""The translate command as it is lived with, in a process of its own or, quicker, in this one."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from pipeline.inference import documents
from pipeline.inference.records import Form

ROOT = Path(__file__).parents[3]
STOPPED = r"stopped: ([1-9]\d* rows are in .*out.partial, and the same command goes on there|no row was written yet)\n"
SLOWLY = ["--search.beam_size", 1, "--search.tokens_per_batch", 40]  # 5 lines at a time
WAIT = 60  # seconds that a process may take before a test gives it up


def start(model, *arguments, **options):
    command = [sys.executable, str(ROOT / "scripts/translate.py"), "--model", str(model), *map(str, arguments)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    quiet = {"PYTHONWARNINGS": "ignore:the length limit"}  # within which an untrained model seldom ends
    ours = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | quiet
    environment = os.environ | ours | options.pop("environment", {})
    return subprocess.Popen(command, env=environment, **pipes | options)


def run(model, *arguments, stdin=b"", **options):
    with start(model, *arguments, **options) as process:
        out, err = process.communicate(stdin, timeout=WAIT)
    return process.returncode, out, err.decode()


def here(model, source, output, form=None, devices=1, **search):
    """The same command in this process."""
    how = {"engine": "dragoman", "precision": "auto", "document": False, "protect": []}
    documents.translate([str(model)], source, str(output), form or Form(), search, devices, **how)


def until(condition, process=None):
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < WAIT and (process is None or process.poll() is None), process.communicate()
        time.sleep(0.01)


def living(group: int) -> dict[int, str]:
    """The processes of a group that have not ended, and their commands."""
    columns = [word for name in ("pgid", "pid", "stat", "args") for word in ("-o", f"{name}=")]
    rows = subprocess.run(["ps", "-Aww", *columns], capture_output=True, text=True, check=True).stdout.splitlines()
    found = [row.split(None, 3) for row in rows]
    return {int(pid): args for pgid, pid, state, args in found if int(pgid) == group and not state.startswith("Z")}


def rows_done(out: Path) -> int:
    record = out.with_name("out.partial.json")
    return json.loads(record.read_text())["rows"] if record.exists() else 0
