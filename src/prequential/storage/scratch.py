"""Temporary directories for what need not survive its process."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

from prequential.storage.files import storage


class ScratchDirectory:
    """A temporary directory that is removed with its owner, in the process that made it and in no other.

    >>> scratch = ScratchDirectory()
    >>> path = scratch.path
    >>> path.is_dir()
    True
    >>> del scratch
    >>> path.is_dir()
    False
    """

    def __init__(self) -> None:
        with storage(Path(tempfile.gettempdir())):
            self.path = Path(tempfile.mkdtemp(prefix="prequential-"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # in a forked process the owner is collected too
        shutil.rmtree(path, ignore_errors=True)
