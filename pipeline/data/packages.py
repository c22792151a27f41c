"""Corpora from Debian packages: downloaded once, unpacked without root, into the user's cache."""

import os
import subprocess
import tempfile
from pathlib import Path


def fetch(package: str, cache: str, instead: str) -> Path:
    """The folder with the unpacked package, under a cache of that name; whole or not at all.

    Raises ``ValueError``, in one line that ends with what to do ``instead``, where it cannot be had.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dragoman" / cache
    unpacked = folder / package
    if not unpacked.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as new:
            try:
                _download(package, new, folder)
                (archive,) = Path(new).glob("*.deb")
                _run(["dpkg-deb", "-x", str(archive), f"{new}/unpacked"], new)
            except FileNotFoundError as error:
                raise ValueError(
                    f"{error.filename}, which fetches packages, is not here: install it, {instead}"
                ) from None
            except subprocess.SubprocessError as error:
                complaint = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
                raise ValueError(f"package {package} cannot be fetched ({complaint}): try again, {instead}") from None
            try:
                os.rename(f"{new}/unpacked", unpacked)
            except OSError:  # another process was faster
                if not unpacked.exists():
                    raise
    return unpacked


def _download(package: str, folder: str, cache: Path) -> None:
    """``apt-get download``; where the machine's lists do not know the package, with fresh lists of our own."""
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::http::Timeout=30"]
    try:
        _run([*command, "download", package], folder)
    except subprocess.CalledProcessError:
        (cache / "apt" / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        command += ["-o", f"Dir::State::lists={cache}/apt/lists", "-o", f"Dir::Cache={cache}/apt"]
        _run([*command, "update"], folder)
        _run([*command, "download", package], folder)


def _run(command: list[str], folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=600)
