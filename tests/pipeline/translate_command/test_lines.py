"""Lines in are lines out, whatever their number and the locale, and whatever they are read from and written to."""

import gzip
import os
import re
import runpy
import sys

import pytest

from pipeline.inference import documents
from pipeline.inference.records import Form
from tests.pipeline.translate_command.command import ROOT, here, run
from tests.pipeline.untrained import WORDS


def test_lines_in_are_lines_out_under_any_locale(model, translator):
    lines = ["", "the cat sat", "\ufeffcafé", "a\u2028mat\x85on\x0ca\x0bgarden\rseen", "", "", "\x00", "garden", ""]
    stdin = "\r\n".join(lines[:-1]).encode()  # the last line has no end
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    found = run(model, stdin=stdin, environment=locale)
    expected = "".join(text + "\n" for text in translator.translate(lines[:-1])).encode()
    assert found == (0, expected, "") and expected.count(b"\n") == 8
    assert [i for i, text in enumerate(expected.split(b"\n")) if not text] == [0, 4, 5, 6, 8]
    typed = run(model, *(line for line in lines[:-1] if "\0" not in line), environment=locale)
    assert typed == (0, b"".join(row for i, row in enumerate(expected.splitlines(keepends=True)) if i != 6), "")


@pytest.mark.parametrize(("text", "expected"), [("", 0), ("\n", 1), ("seen\na mat", 2), ("\n\n\n", 3)])
def test_every_line_has_an_end_and_an_empty_file_has_none(model, tmp_path, capsys, text, expected):
    (tmp_path / "in").write_text(text)
    here(model, str(tmp_path / "in"), "-")
    out = capsys.readouterr().out
    here(model, str(tmp_path / "in"), tmp_path / "out")
    assert out.count("\n") == expected and (not out or out.endswith("\n"))
    assert (tmp_path / "out").read_text("utf-8") == out


def test_no_chunk_or_batch_changes_the_file(model, many, tmp_path):
    whole = many.with_name("out.txt").read_bytes()
    lines = whole.decode().split("\n")
    assert lines.pop() == "" and [i for i, line in enumerate(lines) if not line] == [*range(0, 700, 4)]
    for budget in (150, 1_000_000):
        here(model, str(many), tmp_path / "out", beam_size=1, tokens_per_batch=budget)
        assert (tmp_path / "out").read_bytes() == whole
    rows = many.read_bytes().splitlines(keepends=True)
    for half, part in (("first", rows[:350]), ("second", rows[350:])):
        with gzip.open(tmp_path / f"{half}.gz", "wb") as file:
            file.write(b"".join(part))
        here(model, str(tmp_path / f"{half}.gz"), tmp_path / f"{half}.out.gz", beam_size=1, tokens_per_batch=200)
    halves = [gzip.decompress((tmp_path / f"{half}.out.gz").read_bytes()) for half in ("first", "second")]
    assert b"".join(halves) == whole


def test_a_table_has_rows_for_every_line(model, tmp_path):
    (tmp_path / "in").write_text("\nthe cat\n\n")
    for form, count in ((Form(nbest=2), 2), (Form(scores=True), 1)):
        here(model, str(tmp_path / "in"), tmp_path / "out", form)
        rows = [line.split("\t") for line in (tmp_path / "out").read_text("utf-8").splitlines()]
        assert [row[0] for row in rows] == ["1", *"22"[:count], "3"]
        assert rows[0] == ["1", "0.0000", "end", ""] and rows[-1] == ["3", "0.0000", "end", ""]
        assert all(re.fullmatch(r"-\d+\.\d{4}", row[1]) and row[2] in ("end", "limit") for row in rows[1:-1])


def test_warnings_name_the_file_and_line(model, tmp_path, monkeypatch):
    long = " ".join(WORDS * 3)
    (tmp_path / "in").write_text("seen\n" * 8 + long + "\n", encoding="utf-8")
    with pytest.warns(UserWarning, match="/in, line 9 has 57 source tokens"):
        here(model, str(tmp_path / "in"), tmp_path / "out", tokens_per_batch=6)
    monkeypatch.setattr(sys, "stdin", open(tmp_path / "in", encoding="utf-8"))  # noqa: SIM115
    with pytest.warns(UserWarning, match="the standard input, line 9 has 57 source tokens"):
        here(model, "-", tmp_path / "out", tokens_per_batch=6)
    with pytest.warns(UserWarning, match="sentence 2 has 57 source tokens"):
        here(model, ["seen", long], tmp_path / "out")


def test_settings_come_with_the_model(model, tmp_path, translator):
    """Of cleaning, tokenizer and search: no option repeats what training chose."""
    lines = ["“the” cat\u00a0sat", "cafe\u0301", "THE  CAT", "the\tcat", "gar\u00adden"]
    (tmp_path / "in").write_text("\n".join(lines) + "\n", encoding="utf-8")
    here(model, str(tmp_path / "in"), tmp_path / "out")
    assert (tmp_path / "out").read_text("utf-8").splitlines() == translator.translate(lines)
    assert "▁" not in (tmp_path / "out").read_text("utf-8")


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_what_is_open_already_is_gone_on_with_and_never_replaced(model, tmp_path, translator, name):
    (tmp_path / "in").write_text("the cat\n")
    with open(tmp_path / "log", "w") as log:
        print("before", file=log, flush=True)
        here(model, str(tmp_path / "in"), name.format(log.fileno()))
        print("after", file=log)
    assert (tmp_path / "log").read_text("utf-8") == f"before\n{translator.translate(['the cat'])[0]}\nafter\n"
    assert {path.name for path in tmp_path.iterdir()} == {"in", "log"}


def test_the_standard_streams_have_names_in_dev(capfd):
    for name in ("-", "/dev/stdout", "/dev/stderr", "/dev/null"):
        with documents.written(name) as file:
            print(name, file=file, flush=True)
    assert capfd.readouterr() == ("-\n/dev/stdout\n", "/dev/stderr\n")


def test_an_input_is_not_written_over(model, tmp_path):
    (tmp_path / "in").write_text("the cat\n")
    with pytest.raises(ValueError, match="in is an input itself, which would be lost: name another file"):
        here(model, str(tmp_path / "in"), tmp_path / "." / "in")
    assert (tmp_path / "in").read_text() == "the cat\n"


def test_an_argument_that_is_not_utf_8_is_named(model, tmp_path):
    with pytest.raises(ValueError, match="sentence 2: byte 0xfc is not utf-8: convert it"):
        here(model, ["the cat", os.fsdecode(b"M\xfcll")], tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sentences": ["a"], "input": "in.txt"}, "sentences are given and --input=in.txt too: give one of both"),
        ({"sentences": [], "source_column": "text"}, "--source_column=text is of JSON objects, and the input is text"),
        ({"search": {"ensemble": "log_probability"}}, "search.ensemble=log_probability has no effect on one model"),
        ({"devices": 10_000}, r"--devices=10000: there are \d+ (cores|GPUs) here: give 0 for all GPUs, or 1 to \d+"),
    ],
)
def test_options_that_would_do_nothing_are_refused(model, options, message):
    command = runpy.run_path(str(ROOT / "scripts/translate.py"))["translate"]
    options = {"sentences": ["the cat"]} | options
    with pytest.raises(ValueError, match=message):
        command(options.pop("sentences"), model=str(model), **options)
