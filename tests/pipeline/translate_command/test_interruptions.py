"""A job from file to file that is ended goes on where it was, from the same input and model only."""

import re
import signal

import pytest

from pipeline.inference import documents
from pipeline.inference.records import Form
from tests.pipeline.translate_command.command import SLOWLY, STOPPED, WAIT, here, rows_done, start, until


def test_a_job_ended_in_any_way_goes_on_and_makes_the_same_file(model, many, tmp_path):
    out = tmp_path / "out"
    ends = ((signal.SIGKILL, -9, ""), (signal.SIGTERM, 143, STOPPED), (signal.SIGINT, 130, STOPPED))
    for number, status, said in ends:
        before = rows_done(out)
        with start(model, "--input", many, "--output", out, *SLOWLY) as process:
            until(lambda before=before: rows_done(out) > before, process)
            process.send_signal(number)
            out_text, err = process.communicate(timeout=WAIT)
        assert out_text == b"" and re.fullmatch(said, err.decode()) and process.returncode == status
        assert not out.exists() and rows_done(out) < 700
        done = out.with_name("out.partial").read_bytes()
        assert many.with_name("out.txt").read_bytes().startswith(done)
    with pytest.raises(ValueError, match="were made with another search.beam_size"):
        here(model, str(many), out)
    here(model, str(many), out, beam_size=1)  # with other batches, which make no other translations
    assert out.read_bytes() == many.with_name("out.txt").read_bytes() and [*tmp_path.iterdir()] == [out]


def test_an_input_or_model_changed_since_is_refused(model, many, tmp_path, monkeypatch):
    source, copy = tmp_path / "in", tmp_path / "model"
    source.write_bytes(many.read_bytes())
    copy.mkdir()
    for file in model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(documents.Job, "finish", interrupt)
        here(copy, str(source), tmp_path / "out")
    with open(source, "a") as file:
        file.write("one more\n")
    with pytest.raises(ValueError, match="out.partial holds 700 rows that were made with another input"):
        here(copy, str(source), tmp_path / "out")
    source.write_bytes(many.read_bytes())
    (copy / "metrics.json").write_text("{}\n\n")
    with pytest.raises(ValueError, match="out.partial holds 700 rows that were made with another model"):
        here(copy, str(source), tmp_path / "out")


def interrupt(*_):
    raise KeyboardInterrupt


def test_what_cannot_be_begun_leaves_nothing(model, many, tmp_path):
    with pytest.raises(ValueError, match="no such file or folder"):
        here("runs/nowhere", str(many), tmp_path / "out")
    with pytest.raises(ValueError, match="--nbest=5 cannot come of search.beam_size=2: raise that, or lower it"):
        here(model, str(many), tmp_path / "out", Form(nbest=5))
    with pytest.raises(FileNotFoundError):
        here(model, str(tmp_path / "nowhere"), tmp_path / "out")
    with pytest.raises(ValueError, match="is a folder: name a file in it"):
        here(model, str(many), tmp_path)
    assert [*tmp_path.iterdir()] == []
