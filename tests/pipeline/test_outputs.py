"""Files appear whole or not at all, and never in the place of what they are made from."""

import errno
import gzip
import os
import sys
from pathlib import Path

import pytest

from pipeline.inference.outputs import require_output, written


def test_a_file_takes_its_name_when_it_is_complete(tmp_path, capsys):
    path = tmp_path / "out.txt"
    with pytest.raises(KeyboardInterrupt), written(str(path)) as file:
        file.write("half")
        assert not path.exists()
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    for name, opened in (("out.txt", open), ("out.gz", gzip.open)):
        with written(str(tmp_path / name)) as file:
            file.write("ein\x85s\n\n")
        with opened(tmp_path / name, "rb") as file:
            assert file.read() == "ein\x85s\n\n".encode()
    with written("-") as file:
        file.write("said\n")
    assert capsys.readouterr().out == "said\n"


def test_a_closed_standard_output_is_named(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(ValueError, match="the standard output is closed: name a file with --output"), written("-"):
        pass


def test_a_device_a_link_and_a_folder_keep_what_they_are(tmp_path):
    with written(os.devnull) as file:
        file.write("gone")
    assert not Path(os.devnull).is_file()
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    with written(str(link)) as file:
        file.write("through")
    assert link.is_symlink() and target.read_text() == "through"
    with pytest.raises(IsADirectoryError), written(str(tmp_path)) as file:
        file.write("over")
    assert target.exists()


def test_what_is_read_is_not_written_over(tmp_path):
    (tmp_path / "in").write_text("text\n")
    (tmp_path / "link").symlink_to("in")
    for name in ("in", "./in", "link"):
        with pytest.raises(ValueError, match="--json=.* is an input itself, which would be lost: name another file"):
            require_output("json", f"{tmp_path}/{name}", ["", tmp_path / "in"])
    require_output("json", f"{tmp_path}/out", ["", tmp_path / "in"])


def test_where_nothing_can_be_written_is_known_before_any_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=f"--output={tmp_path} is a folder: name a file in it"):
        require_output("output", str(tmp_path))
    with pytest.raises(ValueError, match="file/new/out: .*file is no folder to write into: name another place"):
        require_output("output", str(tmp_path / "file/new/out"))
    require_output("output", str(tmp_path / "new/out"))
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for name in ("", "-", "/dev/stdout", os.devnull):
        require_output("output", name)
    for name in ("file", "new/out"):
        with pytest.raises(ValueError, match=f"nothing may be written in {tmp_path}: name another place, or"):
            require_output("output", str(tmp_path / name))


def test_a_full_disk_is_told_with_the_file(tmp_path):
    path = str(tmp_path / "out")
    with pytest.raises(OSError, match="No space left on device: make room, and start again") as told, written(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert told.value.filename == path and [*tmp_path.iterdir()] == []
