"""A job that is ended anywhere and begun again makes the file that an undisturbed one makes."""

import errno
import gzip
import json
import os
from functools import partial

import pytest

from pipeline.inference.jobs import Job, fingerprint, model_files

PARTS = [("ein\x85s\n", 1), ("\n\n", 2), ("drei\n", 1)]
MADE_FROM = {"input": "abc", "search.beam_size": 4, "add": []}


def go_on(path, parts=PARTS, **made_from):
    """The job as a program does it, which hands over only rows that are missing."""
    job, before = Job(path, MADE_FROM | made_from), 0
    for text, rows in parts:
        if before >= job.rows:
            job.append(text, rows)
        before += rows
    job.finish()


def whole(path):
    return (gzip.decompress if path.suffix == ".gz" else bytes)(path.read_bytes()).decode()


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_a_file_has_its_name_when_it_is_complete_and_nothing_else_is_left(tmp_path, name):
    path = tmp_path / "new folder" / name
    go_on(path)
    assert whole(path) == "ein\x85s\n\n\ndrei\n" and [*path.parent.iterdir()] == [path]
    go_on(path, [])
    assert whole(path) == ""


class Killed(BaseException):
    pass


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_killed_at_any_step_it_goes_on_to_the_same_bytes(tmp_path, name, monkeypatch):
    go_on(tmp_path / "undisturbed" / name)
    for killed_at in range(100):
        path = tmp_path / str(killed_at) / name
        countdown = iter(range(killed_at, -1, -1))

        def step(real, *arguments, countdown=countdown):
            if next(countdown) == 0:
                raise Killed
            return real(*arguments)

        with monkeypatch.context() as patched:
            for name_of_step in ("fsync", "replace", "truncate", "unlink"):
                patched.setattr(os, name_of_step, partial(step, getattr(os, name_of_step)))
            try:
                go_on(path)
                break
            except Killed:
                pass
        assert not path.exists() or path.read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
        go_on(path)
        assert path.read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
        assert [*path.parent.iterdir()] == [path]
    assert killed_at > 9, "there were steps"


def test_what_was_written_and_not_counted_is_made_again(tmp_path):
    path = tmp_path / "out"
    job = Job(path, MADE_FROM)
    job.append(*PARTS[0])
    job.file.close()
    with open(job.partial, "ab") as file:
        file.write(b"half a l")
    go_on(path)
    assert whole(path) == "ein\x85s\n\n\ndrei\n"


@pytest.fixture
def begun(tmp_path):
    job = Job(tmp_path / "out", MADE_FROM)
    job.append(*PARTS[0])
    job.append(*PARTS[1])
    job.file.close()
    return job


@pytest.mark.parametrize(
    ("change", "name"),
    [({"input": "abd"}, "input"), ({"search.beam_size": 5}, "search.beam_size"), ({"nbest": 2}, "nbest")],
)
def test_a_job_from_something_else_is_refused_and_nothing_is_lost(begun, change, name):
    message = (
        rf"out.partial holds 3 rows that were made with another {name}: give that one to go on, or remove .*partial"
    )
    with pytest.raises(ValueError, match=message):
        go_on(begun.path, **change)
    go_on(begun.path)
    assert whole(begun.path) == "ein\x85s\n\n\ndrei\n"


def test_a_job_whose_partial_file_was_removed_starts_anew(begun):
    begun.partial.unlink()
    go_on(begun.path, input="other")
    assert whole(begun.path) == "ein\x85s\n\n\ndrei\n" and not begun.record.exists()


@pytest.mark.parametrize("damage", ["", "{}", "[]", None])
def test_a_partial_file_that_nothing_tells_of_is_not_touched(begun, damage):
    begun.record.unlink() if damage is None else begun.record.write_text(damage)
    with pytest.raises(
        ValueError, match=r"out.partial.json, which tells what is in out.partial, is missing or damaged"
    ):
        go_on(begun.path)
    assert begun.partial.read_text() == "ein\x85s\n\n\n"


def test_a_partial_file_that_was_cut_is_refused(begun):
    os.truncate(begun.partial, 3)
    with pytest.raises(ValueError, match="out.partial has lost some of its 3 rows: remove .*out.partial to start anew"):
        go_on(begun.path)


def test_two_processes_do_not_write_the_same_file(tmp_path):
    one = Job(tmp_path / "out", MADE_FROM)
    other = Job(tmp_path / "out", MADE_FROM)
    one.append(*PARTS[0])
    for write in (lambda: other.append(*PARTS[0]), lambda: Job(tmp_path / "out", MADE_FROM)):
        with pytest.raises(ValueError, match="another process is writing .*out.partial: wait for it, or end it"):
            write()
    assert json.loads(one.record.read_text())["rows"] == 1
    one.finish()


def test_the_files_of_a_model_are_known_by_their_content(tmp_path):
    run, model = tmp_path / "run", tmp_path / "run" / "model"
    (model / "evaluations").mkdir(parents=True)
    for file in (run / "curves.png", model / "weights", model / "config"):
        file.write_text(file.name)
    assert model_files(run) == model_files(model) == [model / "config", model / "weights"]
    assert model_files(model / "weights") == [model / "weights"]
    before = fingerprint(*model_files(run))
    (model / "weights").write_text("weightz")
    assert fingerprint(*model_files(run)) != before


def test_a_full_disk_is_named_and_the_job_goes_on_when_there_is_room(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "out"
    job = Job(path, MADE_FROM)
    job.append(*PARTS[0])
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left on device: 1 rows are done; make room, and the same") as told:
            job.append(*PARTS[1])
    assert told.value.filename == str(job.partial)
    go_on(path)
    assert whole(path) == "ein\x85s\n\n\ndrei\n"
