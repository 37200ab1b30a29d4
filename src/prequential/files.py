"""Writing files that survive: whole or not at all, synced, never through a symbolic link; and locks on directories.

Everything durable goes through `os.open`, `os.write`, `os.pwrite`, `os.ftruncate`, `os.fsync`, `os.replace`,
`os.unlink` and `os.mkdir`, so that the power-loss simulation can see each operation.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from prequential.errors import BadInput

# In a directory of ours nothing is a symbolic link: following one would write into somebody else's files.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that at every moment either the old content or the new one is there, whole and synced."""
    make_directory(path.parent)
    with new_file(path) as handle:
        write_all(handle, data)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[int]:
    """A handle on a new file that takes its place, synced, at the end; where something is raised, nothing is left.

    A symbolic link at `path` is replaced, not followed.
    """
    temporary = temporary_name(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # of a killed process that had the same number
    try:
        handle = os.open(temporary, _NEW, 0o644)
        try:
            yield handle
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(path.parent)


def temporary_name(path: Path) -> Path:
    """The name under which a file is written before it takes its place."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def is_temporary(path: Path) -> bool:
    """Whether a file is what a process that was killed while it wrote may have left."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


def remove_temporaries(directory: Path, *, shared: bool = False) -> None:
    """Deletes what killed processes have left in a directory.

    Only its one writer may call it; in a directory shared by several, files of processes that are alive are left.
    """
    if directory.is_dir():
        for path in directory.iterdir():
            if is_temporary(path) and not path.is_dir() and not (shared and _alive(path.name.split(".")[-2])):
                path.unlink(missing_ok=True)


def _alive(process: str) -> bool:
    if not process.isdecimal() or int(process) == os.getpid():
        return False
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def make_directory(path: Path) -> None:
    """Makes a directory and those above it, each durable."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory)
        sync_directory(directory.parent)


def open_own(path: Path, flags: int) -> int:
    """A handle on a file in a directory of ours: a symbolic link, a folder or a device in its place is refused."""
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadInput(f"{path} is a symbolic link to {os.readlink(path)}, expected a file") from None
        if error.errno == errno.EISDIR:
            raise BadInput(f"{path} is a folder, expected a file") from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BadInput(f"{path} is not a regular file, expected one")
    return handle


def write_all(handle: int, data: bytes, offset: int | None = None) -> None:
    """Writes all of the data, at an offset or where the handle stands."""
    view = memoryview(data)
    while len(view):
        written = os.write(handle, view) if offset is None else os.pwrite(handle, view, offset)
        view = view[written:]
        offset = None if offset is None else offset + written


def sync_directory(path: Path) -> None:
    """Makes renames inside a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def refuse_links(root: Path, *paths: Path) -> None:
    """Refuses paths below a directory of ours that lead through a symbolic link; the directory itself may be one."""
    for path in paths:
        relative = path.relative_to(root)
        place = root
        for part in relative.parts:
            place = place / part
            if place.is_symlink():
                raise BadInput(
                    f"{place} is a symbolic link to {os.readlink(place)}, expected a file or folder of {root}"
                )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for an exclusive lock on a file that is there for nothing else; freed also when the process is killed."""
    handle = open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class LockHeld(BadInput):
    """Somebody else works in the directory."""


class DirectoryLock:
    """One writer at a time in a directory: an exclusive lock on `.lock`, freed when its process ends, however it ends.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with DirectoryLock(folder):
    ...     DirectoryLock(folder).take()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    prequential.files.LockHeld: another process or learner is working in ...
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._handle: int | None = None

    @property
    def held(self) -> bool:
        return self._handle is not None

    def take(self) -> None:
        """Takes the lock, or says that somebody else has it."""
        if self._handle is not None:
            return
        handle = open_own(self.directory / ".lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise LockHeld(f"another process or learner is working in {self.directory}") from None
        self._handle = handle

    def wait(self, seconds: float) -> None:
        """Takes the lock as soon as it is free, or says after so many seconds that somebody else has it."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.take()
            except LockHeld:
                if time.monotonic() >= end:
                    raise
            time.sleep(0.1)

    def free(self) -> None:
        """Frees the lock, if it is held."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __del__(self) -> None:
        self.free()

    def __reduce__(self) -> tuple[type[DirectoryLock], tuple[Path]]:
        return DirectoryLock, (self.directory,)  # a copy holds no lock: the handle is this object's alone

    def __enter__(self) -> DirectoryLock:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()
