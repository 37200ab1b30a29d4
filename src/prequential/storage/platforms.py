"""What operating systems do differently: flags of files, locks, reading and writing at a place, forks.

The names are those of Linux and macOS; elsewhere each is what comes nearest.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
CLOEXEC: int = getattr(os, "O_CLOEXEC", getattr(os, "O_NOINHERIT", 0))
BINARY: int = getattr(os, "O_BINARY", 0)  # Windows would translate the ends of lines
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
FOLDERS_HAVE_HANDLES = os.name != "nt"  # to sync and to lock them by

_position = threading.Lock()  # of the handles of all files, where there is no pread


def lock(handle: int, *, wait: bool = False) -> None:
    """Locks a file exclusively until its handle is closed or its process ends; raises OSError where another holds it."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    import msvcrt  # what Windows has: it locks bytes, which need not exist

    windows: Any = msvcrt
    os.lseek(handle, 0, os.SEEK_SET)
    while True:
        try:
            windows.locking(handle, windows.LK_LOCK if wait else windows.LK_NBLCK, 1)
            return
        except OSError:
            if not wait:  # LK_LOCK itself gives up after ten seconds
                raise


def pread(handle: int, size: int, offset: int) -> bytes:
    """Reads at a place of a file."""
    if hasattr(os, "pread"):
        return os.pread(handle, size, offset)
    with _position:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.read(handle, size)


def pwrite(handle: int, data: memoryview | bytes, offset: int) -> int:
    """Writes at a place of a file; how many bytes."""
    if hasattr(os, "pwrite"):
        return os.pwrite(handle, data, offset)
    with _position:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.write(handle, data)


def sync_data(handle: int) -> None:
    """Makes what was written to a file durable, its times aside."""
    getattr(os, "fdatasync", os.fsync)(handle)


def sync_folder(path: Path) -> None:
    """Makes renames inside a folder durable. Windows has nothing for it: there they are as durable as its own journal."""
    if not FOLDERS_HAVE_HANDLES:
        return
    handle = os.open(path, os.O_RDONLY | CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_alive(process: int) -> bool:
    """Whether there is a process with this number; where one cannot ask without harm, it is believed."""
    if os.name == "nt":  # there, os.kill with 0 is Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def at_fork(*, before: Callable[[], None] | None = None, after_in_child: Callable[[], None] | None = None) -> None:
    """Calls these where a process is forked; on systems without forks, never."""
    given = {"before": before, "after_in_child": after_in_child}
    with contextlib.suppress(AttributeError):
        os.register_at_fork(**{name: act for name, act in given.items() if act is not None})
