import os

import pytest

from pipeline.data.packages import fetch


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A PATH with nothing but what the test writes to it, and a cache of our own."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()

    def write(name: str, script: str) -> None:
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    write("dpkg-deb", 'mkdir -p "$3/usr/share"')
    return write


def test_a_package_is_fetched_once(tools, tmp_path):
    tools("apt-get", f"echo $@ >> {tmp_path}/calls; touch bible.deb")
    folder = fetch("bible", "books", "or name files")
    assert folder == fetch("bible", "books", "or name files") == tmp_path / "cache/dragoman/books/bible"
    assert (folder / "usr/share").is_dir()
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


def test_lists_that_do_not_know_the_package_are_renewed_in_a_folder_of_ours(tools, tmp_path):
    tools("apt-get", f'case "$*" in *{tmp_path}/cache*download*) touch bible.deb;; *update*) ;; *) exit 100;; esac')
    assert (fetch("bible", "books", "or name files") / "usr/share").is_dir()


def test_an_unknown_package_is_one_line_with_alternatives_and_leaves_nothing(tools, tmp_path):
    tools("apt-get", "echo 'E: Unable to locate package bible' >&2; exit 100")
    with pytest.raises(ValueError, match=r"package bible cannot be fetched \(E: Unable.*try again, or name files"):
        fetch("bible", "books", "or name files")
    assert os.listdir(tmp_path / "cache/dragoman/books") == ["apt"]


def test_a_broken_archive_leaves_nothing(tools, tmp_path):
    tools("apt-get", "touch bible.deb")
    tools("dpkg-deb", 'mkdir -p "$3"; echo "dpkg-deb: error: short read" >&2; exit 2')
    with pytest.raises(ValueError, match="package bible cannot be fetched .dpkg-deb: error: short read"):
        fetch("bible", "books", "or name files")
    assert os.listdir(tmp_path / "cache/dragoman/books") == []


def test_a_machine_without_packages_is_told_the_alternatives(tools):
    with pytest.raises(ValueError, match="apt-get, which fetches packages, is not here: install it, or name files"):
        fetch("bible", "books", "or name files")
