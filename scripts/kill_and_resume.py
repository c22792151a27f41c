"""Kill training again and again, start it again, and compare the end with that of an unbroken run, bit for bit:

python scripts/kill_and_resume.py --config configs/X.yaml [--kills 10]
"""

import random
import subprocess
import sys
import time
from pathlib import Path

from pipeline.cli import main, write_configuration
from pipeline.config import Configuration


def kill_and_resume(configuration: Configuration, kills: int = 10) -> None:
    """Train once unbroken and once with kill -9 at random moments, in the folders whole and broken of output.run.

    Args:
        kills: How often to kill.
    """
    import torch

    from pipeline.checkpoint import checkpoints, read_checkpoint

    folder = Path(configuration.output.run)
    folder.mkdir(parents=True, exist_ok=True)
    write_configuration(configuration, folder / "config.yaml")
    train = [sys.executable, str(Path(__file__).with_name("train.py")), "--config", str(folder / "config.yaml")]
    begun = time.monotonic()
    subprocess.run([*train, "--output.run", str(folder / "whole")], check=True)
    seconds = time.monotonic() - begun
    for kill in range(kills):
        process = subprocess.Popen([*train, "--output.run", str(folder / "broken")])
        time.sleep(random.uniform(0, seconds))
        process.kill()
        print(f"kill {kill + 1}: {'too late' if process.wait() == 0 else 'done'}", file=sys.stderr)
    subprocess.run([*train, "--output.run", str(folder / "broken")], check=True)
    whole, broken = (read_checkpoint(checkpoints(folder / name)[-1]) for name in ("whole", "broken"))
    for part in ("global_step", "state_dict", "optimizer_states"):
        torch.testing.assert_close(broken[part], whole[part], rtol=0, atol=0)
    print(f"update {whole['global_step']}: weights and optimizer are equal, bit for bit")


if __name__ == "__main__":
    main(kill_and_resume)
