"""A full disk is one line, which names the folder and tells that nothing of what was done is lost."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NO_ROOM = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
"""How the system says it, and all libraries after it, whatever the errors that they raise."""


@contextmanager
def full_disk_told(folder: Path) -> Iterator[None]:
    """Where there is no room to write in ``folder``, say what helps: ``OSError``."""
    try:
        yield
    except OSError as error:
        for words in NO_ROOM:
            if words in str(error):
                told = words if error.errno else error  # Arrow says it twice, with numbers
                place = error.filename or folder
                raise OSError(f"{told}: make room on the disk of {place}, and the same command goes on") from error
        raise
