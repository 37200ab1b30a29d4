"""Durable files: written atomically, synced, never through a symbolic link; and locks on directories.

Everything durable goes through `os.open`, `os.write`, `os.pwrite`, `os.ftruncate`, `os.fsync`, `os.replace`,
`os.unlink` and `os.mkdir`, so that the power-loss simulation can see each operation.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from prequential.errors import BadInput, StorageError
from prequential.storage.platforms import (
    BINARY,
    CLOEXEC,
    NOFOLLOW,
    NONBLOCK,
    at_fork,
    is_alive,
    lock,
    pwrite,
    sync_folder,
)

# In a directory of ours nothing is a symbolic link: following one would write into somebody else's files.
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | NOFOLLOW | CLOEXEC | BINARY


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
    """Whether a file is a temporary one, which a killed process may have left."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


def remove_temporaries(directory: Path, *, shared: bool = False, of: str = "") -> None:
    """Deletes the temporary files of killed processes in a directory, or those of one file in it.

    Only its one writer may call it; in a directory shared by several, files of processes that are alive are left.
    """
    if directory.is_dir():
        for path in directory.iterdir():
            if not is_temporary(path) or path.is_dir() or (of and path.name.rsplit(".", 2)[0] != f".{of}"):
                continue
            if not (shared and _alive(path.name.split(".")[-2])):
                path.unlink(missing_ok=True)


def _alive(process: str) -> bool:
    if not process.isdecimal() or int(process) == os.getpid():
        return False
    return is_alive(int(process))


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
        handle = os.open(path, flags | NOFOLLOW | NONBLOCK | CLOEXEC | BINARY, 0o644)
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


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A handle on a file in a directory of ours, as `open_own` gives it, that is closed at the end."""
    handle = open_own(path, flags)
    try:
        yield handle
    finally:
        os.close(handle)


def write_all(handle: int, data: bytes, offset: int | None = None) -> None:
    """Writes all of the data, at an offset or where the handle stands."""
    view = memoryview(data)
    while len(view):
        written = os.write(handle, view) if offset is None else pwrite(handle, view, offset)
        view = view[written:]
        offset = None if offset is None else offset + written


def sync_directory(path: Path) -> None:
    """Makes renames inside a directory durable."""
    sync_folder(path)


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
    with opened(path, os.O_RDWR | os.O_CREAT) as handle:
        lock(handle, wait=True)
        yield


class LockHeld(BadInput):
    """Another process or learner has locked the directory."""


class DirectoryLock:
    """One writer at a time in a directory: an exclusive lock on `.lock`, freed when its process ends, however it ends.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with DirectoryLock(folder):
    ...     DirectoryLock(folder).take()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    prequential.storage.files.LockHeld: another process or learner is working in ...
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._handle: int | None = None

    @property
    def held(self) -> bool:
        return self._handle is not None

    def take(self) -> None:
        """Takes the lock, or raises LockHeld."""
        if self._handle is not None:
            return
        handle = open_own(self.directory / ".lock", os.O_RDWR | os.O_CREAT)
        try:
            lock(handle)
        except OSError:
            os.close(handle)
            raise LockHeld(f"another process or learner is working in {self.directory}") from None
        self._handle = handle

    def wait(self, seconds: float) -> None:
        """Takes the lock as soon as it is free, or raises LockHeld after so many seconds."""
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


@contextlib.contextmanager
def storage(place: Path) -> Iterator[None]:
    """Turns an OSError inside into a StorageError, one sentence that names the path."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{place}: {error.strerror or error}; nothing was changed") from error


HELD = 256  # locks a process holds open at a time


class KeptLock:
    """A lock on a directory for as long as its owner lives, of which a process keeps only some open at a time.

    With thousands of owners in one process, the handles of all their locks would be too many. Beyond `HELD`, the lock
    that was not used for the longest time is released and taken again before its owner's next write; a writer must
    therefore check that nobody else has written in between. In the same process, a second owner is always refused.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> first = KeptLock(folder)
    >>> KeptLock(folder)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    prequential.errors.BadInput: another learner of this process is working in ...
    >>> first.free()
    >>> KeptLock(folder).free()
    """

    _guard = threading.RLock()  # what is collected as garbage may free its lock at any moment
    _held: ClassVar[OrderedDict[int, KeptLock]] = OrderedDict()
    _owners: ClassVar[weakref.WeakValueDictionary[str, KeptLock]] = weakref.WeakValueDictionary()

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: DirectoryLock | None = DirectoryLock(directory)
        self._place = str(directory.resolve())
        self._process = os.getpid()
        with KeptLock._guard:
            if self._place in KeptLock._owners:
                self._lock = None
                raise BadInput(f"another learner of this process is working in {directory}")
            KeptLock._owners[self._place] = self
        try:
            self.ensure()
        except BaseException:
            self.free()
            raise

    def ensure(self) -> None:
        """Takes the lock again if it was released."""
        with KeptLock._guard:
            if os.getpid() != self._process:
                raise BadInput(
                    f"this process was forked from the one that writes to {self.directory}: it may read, but not write"
                )
            if self._lock is None:
                raise BadInput(f"the lock on {self.directory} was given up")
            self._lock.take()
            KeptLock._held[id(self)] = self
            KeptLock._held.move_to_end(id(self))
            while len(KeptLock._held) > HELD:
                _, oldest = KeptLock._held.popitem(last=False)
                if oldest._lock is not None:
                    oldest._lock.free()

    def free(self) -> None:
        """Releases the lock for good."""
        with KeptLock._guard:
            lock, self._lock = self._lock, None
            KeptLock._held.pop(id(self), None)
            if KeptLock._owners.get(self._place) is self:
                del KeptLock._owners[self._place]
            if lock is not None:
                lock.free()


def _forget_locks() -> None:
    """In a forked process: the locks are the parent's, and stay its own when the handles here are closed."""
    KeptLock._guard = threading.RLock()
    for kept in list(KeptLock._held.values()):
        if kept._lock is not None:
            kept._lock.free()
            kept._lock = None
    KeptLock._held.clear()
    KeptLock._owners.clear()


at_fork(after_in_child=_forget_locks)
