"""Several devices do as one, and end together."""

import os
import re
import signal
import time
from functools import partial

import pytest
import torch

from pipeline.inference.sharding import on_devices
from pipeline.inference.translator import Translator
from tests.pipeline.translate_command.command import SLOWLY, STOPPED, WAIT, here, living, rows_done, start, until


def test_a_worker_that_dies_ends_the_job_and_ctrl_c_all_workers(model, many, tmp_path):
    out = tmp_path / "out"
    complaint = (
        r"translate.py: error: process [12] of 2 has ended by SIGKILL, perhaps for want of memory: give fewer "
        r"--devices or a smaller --search.tokens_per_batch\n"
    )
    for end, status, said in ((kill_a_worker, 1, complaint), (interrupt_all, 130, STOPPED)):
        before = rows_done(out)
        command = ["--input", many, "--output", out, "--devices", 2, *SLOWLY]
        with start(model, *command, start_new_session=True) as process:
            until(lambda before=before: rows_done(out) > before, process)
            end(process.pid)
            _, err = process.communicate(timeout=WAIT)
        assert process.returncode == status and re.fullmatch(said, err.decode())
        until(lambda group=process.pid: not living(group))
        assert not out.exists()
    here(model, str(many), out, beam_size=1)
    assert out.read_bytes() == many.with_name("out.txt").read_bytes()


def interrupt_all(group: int):
    os.killpg(group, signal.SIGINT)


def kill_a_worker(group: int):
    [worker, *_] = [pid for pid, args in living(group).items() if "spawn_main" in args]
    os.kill(worker, signal.SIGKILL)


def test_several_devices_do_as_one_and_say_each_warning_once(model, many, tmp_path, recwarn):
    with on_devices(partial(load_with_warning, model), 2) as devices:
        assert devices.search == Translator.load(model).search
        chunks = [*range(20)]
        assert [*devices.map(work_of, chunks)] == [f"row {i}" for i in chunks]
        with pytest.raises(ValueError, match="chunk 3 is wrong"):
            list(devices.map(fail_at_three, chunks))
        typed = []
        answers = devices.map(work_of, (typed.append(i) or i for i in range(1000)))
        assert next(answers) == "row 0"
        time.sleep(0.1)
        assert len(typed) < 20, "only so much is read ahead"
    assert [str(each.message) for each in recwarn if each.category is UserWarning] == ["weights", "chunk 3 is odd"]


def load_with_warning(model, device):
    import warnings

    warnings.warn("weights", stacklevel=1)
    return Translator.load(model, device)


def work_of(translator, number):
    import warnings

    if number == 3:
        warnings.warn("chunk 3 is odd", stacklevel=1)
    time.sleep(0.01 * (number % 3))  # so that later ones are done first
    return f"row {number}"


def fail_at_three(translator, number):
    if number == 3:
        raise ValueError("chunk 3 is wrong")


@pytest.mark.gpu
def test_every_gpu_has_a_model_of_its_own(model):
    with on_devices(partial(Translator.load, model), 0) as devices:
        assert devices.num_devices == torch.cuda.device_count()
        found = {*devices.map(device_of, range(devices.num_devices))}
    assert found == {("cuda", i) for i in range(torch.cuda.device_count())}


def device_of(translator, number):
    time.sleep(1)  # so that each has one part
    device = translator.engine.device
    return device.type, device.index or 0


def test_more_devices_than_there_are_are_refused(model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for devices in (3, -1):
        complaint = rf"devices={devices}: there are 2 GPUs here: give 0 for all"
        with pytest.raises(ValueError, match=complaint), on_devices(partial(Translator.load, model), devices):
            pass
