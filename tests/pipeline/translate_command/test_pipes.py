"""What comes in slowly is answered as it comes, and whoever leaves ends the work quietly."""

import re
import signal
import subprocess
import sys

import pytest

from pipeline.inference.records import Form
from tests.pipeline.translate_command.command import ROOT, SLOWLY, WAIT, here, living, run, start, until
from tests.pipeline.translate_command.conftest import sentence


def test_who_types_is_answered_line_by_line_until_ctrl_c(model, translator):
    with start(model) as process:
        for number in range(1, 4):
            process.stdin.write(f"{sentence(number)}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode() == f"{translator.translate([sentence(number)])[0]}\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_a_fast_pipe_is_read_in_few_chunks(model, many, monkeypatch, capsys):
    sizes = []
    answer = Form.answer
    monkeypatch.setattr(
        Form, "answer", lambda self, *rest, **more: sizes.append(len(rest[1].rows)) or answer(self, *rest, **more)
    )
    monkeypatch.setattr(sys, "stdin", open(many, encoding="utf-8"))  # noqa: SIM115
    here(model, "-", "-", beam_size=1)
    assert capsys.readouterr().out == many.with_name("out.txt").read_text("utf-8")
    assert sizes == [700]


def test_lines_before_one_that_is_not_utf_8_are_answered_or_nothing_is_left(model, tmp_path, translator):
    stdin = b"the cat\na mat\nM\xfcll\nseen\n"
    complaint = r"translate.py: error: the standard input, line 3: byte 0xfc at position 2 is not utf-8: .*\n"
    status, out, err = run(model, stdin=stdin)
    assert status == 1 and out.decode().splitlines() == translator.translate(["the cat", "a mat"])
    assert re.fullmatch(complaint, err)
    (tmp_path / "in").write_bytes(stdin)
    with pytest.raises(ValueError, match=r"in, line 3: byte 0xfc"):
        here(model, str(tmp_path / "in"), tmp_path / "out")
    assert [*tmp_path.iterdir()] == [tmp_path / "in"]


def test_a_closed_standard_input_is_an_error_of_one_line(model):
    command = f"{sys.executable} scripts/translate.py --model {model} <&-"
    found = subprocess.run(command, shell=True, capture_output=True, cwd=ROOT, text=True)
    assert found.returncode == 1 and found.stdout == ""
    assert found.stderr == (
        "translate.py: error: the standard input is closed: give it something to read, or name a file\n"
    )


def test_a_reader_that_leaves_ends_it_quietly(model):
    with start(model, "--devices", 2, *SLOWLY, start_new_session=True) as process:
        process.stdin.write(b"the cat sat\n\n" * 3000)
        assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(WAIT) in (0, 141)
    until(lambda: not living(process.pid))
