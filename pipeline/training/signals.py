"""Requests to stop: Ctrl-C, SIGTERM, and SLURM's signal before a job's time is up."""

import os
import signal
import subprocess
from collections.abc import Callable


class StopSignals:
    """Remembers a signal, so that the update in progress is finished and saved; a second Ctrl-C ends at once."""

    def __init__(self, say: Callable[[str], None]):
        self.say = say
        self.received: signal.Signals | None = None
        self.previous: dict = {}

    def install(self) -> None:
        watched = [signal.SIGINT, signal.SIGTERM]
        if "SLURM_JOB_ID" in os.environ:
            watched.append(signal.SIGUSR1)
        self.previous = {number: signal.signal(number, self.receive) for number in watched}

    def restore(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self.previous = {}

    def receive(self, number: int, frame) -> None:
        if self.received == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        self.say(f"{self.received.name}: stopping after this update")


def requeue_slurm_job() -> None:
    """Ask SLURM to start this job again."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    job = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]
    subprocess.run(["scontrol", "requeue", job], check=False)
