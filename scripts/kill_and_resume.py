"""Kill training again and again, and compare its end with that of an unbroken run, bit for bit:

python scripts/kill_and_resume.py --config configs/X.yaml [--kills 10]
"""

import random
import subprocess
import sys
import time
from pathlib import Path

from command_line import main

from pipeline.cli import write_configuration
from pipeline.config import Configuration


def kill_and_resume(configuration: Configuration, kills: int = 10) -> None:
    """Train unbroken, and with kill -9 at random moments, in the folders whole and broken of output.run."""
    import torch

    from pipeline.checkpoint import checkpoints, read_checkpoint, step_of

    whole, broken = (Path(configuration.output.run) / name for name in ("whole", "broken"))
    whole.parent.mkdir(parents=True, exist_ok=True)
    write_configuration(configuration, whole.parent / "config.yaml")
    train = [sys.executable, Path(__file__).with_name("train.py"), "--config", whole.parent / "config.yaml"]
    subprocess.run([*train, "--output.run", whole], check=True)
    updates = step_of(checkpoints(whole)[-1])
    for kill, update in enumerate(sorted(random.uniform(0, 0.9 * updates) for _ in range(kills)), 1):
        with subprocess.Popen([*train, "--output.run", broken]) as process:
            while process.poll() is None and max(map(step_of, checkpoints(broken)), default=0) < update:
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.3))
            process.kill()
        print(f"kill {kill} at {[path.name for path in checkpoints(broken)[-1:]]}", file=sys.stderr)
    subprocess.run([*train, "--output.run", broken], check=True)
    ends = [read_checkpoint(checkpoints(run)[-1]) for run in (whole, broken)]
    for part in ("global_step", "state_dict", "optimizer_states"):
        torch.testing.assert_close(*(end[part] for end in ends), rtol=0, atol=0)
    print(f"update {ends[0]['global_step']}: weights and optimizer are equal, bit for bit")


if __name__ == "__main__":
    main(kill_and_resume)
