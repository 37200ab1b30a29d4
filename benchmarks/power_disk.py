"""A file layer that records what is written below a directory, and makes the disk that a power cut could have left.

While a `Disk` is in use, everything that Python does to files below its root is done as usual and recorded: what was
written, what was synced, which names were made, moved and removed. `Disk.cut` then builds, in another directory, what a
power cut after any of these operations could leave. It takes the sides that a file system may take:

- What `fsync` of a file has returned for is there. Data written since is there, gone, or there in parts: each sector of
  512 bytes on its own, in any order between files. Where a file has grown, its new size may be there without its data,
  which then is zeros.
- A name that was made, moved or removed is so for sure only after an `fsync` of its directory. Until then it may be or not,
  in the order of the operations (as journaling file systems do it) or in any other. A rename is one step.

Files written by other means than `os.open`, `os.write` and their kin are recorded as well, and named in `violations`, as
is content that came to be without being seen. The simulation knows nothing of disks that lie about `fsync`.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

SECTOR = 512
MODES = ("dropped", "names", "data", "ordered", "any", "kept")
_WRAPPED = (
    "open", "close", "dup", "write", "pwrite", "writev", "pwritev", "sendfile", "copy_file_range", "posix_fallocate",
    "ftruncate", "truncate", "fsync", "fdatasync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "link",
    "symlink",
)  # fmt: skip


@dataclass
class Node:
    """A file or directory: what is on the disk for sure, and what was done since."""

    is_folder: bool = False
    link: str | None = None  # where a symbolic link points
    data: bytes = b""
    names: dict[str, int] = field(default_factory=dict)  # of a directory
    pending: list[tuple[Any, ...]] = field(default_factory=list)


class Disk:
    """Records what happens below a directory, between `with` and its end.

    Parameters
    ----------
    root
        The directory; what is in it at the beginning counts as synced.
    ours
        Says of a path, relative to the root, whether it must be written through `os.open` and its kin.
    """

    def __init__(self, root: Path, ours: Callable[[str], bool] = lambda name: True) -> None:
        self.root = root.resolve()
        self.ours = ours
        self.events: list[tuple[Any, ...]] = []  # what was done, in order
        self.violations: list[str] = []
        self._count = 0
        self._begin: list[tuple[Any, ...]] = []  # makes what was there before
        self._live: dict[str, int] = {"": self._new()}  # the nodes by their paths, as the running program sees them
        self._handles: dict[int, tuple[int, int]] = {}  # node and flags of open files
        self._lock = threading.RLock()
        self._before: dict[str, Any] = {}

    # Recording.

    def __enter__(self) -> Disk:
        self._scan("")
        self._begin, self.events = self.events, []
        self._before = {name: getattr(os, name) for name in _WRAPPED}
        self._opens = builtins.open, io.open
        for name in _WRAPPED:
            setattr(os, name, self._locked(getattr(self, f"_{name}")))
        builtins.open = io.open = self._plain_open
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, original in self._before.items():
            setattr(os, name, original)
        builtins.open, io.open = self._opens
        self._compare()

    def mark(self, **what: Any) -> None:
        """Notes that the program was told something, such as that an example has been learned."""
        with self._lock:
            self.events.append(("mark", what))

    def marks(self, moment: int) -> list[dict[str, Any]]:
        """What was noted before a moment."""
        return [event[1] for event in self.events[:moment] if event[0] == "mark"]

    def moments(self) -> list[int]:
        """The moments between operations at which the power can be cut: those after which something may be different."""
        return [i + 1 for i, event in enumerate(self.events) if event[0] != "mark"]

    def _locked(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                return method(*arguments, **named)

        return call

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def _scan(self, name: str) -> None:
        """Takes what is there as synced."""
        for path in sorted((self.root / name).iterdir()):
            inside = str(path.relative_to(self.root))
            node = self._live[inside] = self._new()
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                self.events.append(("symlink", inside, node, os.readlink(path)))
            elif stat.S_ISDIR(mode):
                self.events.append(("mkdir", inside, node))
                self._scan(inside)
            else:
                self.events.append(("create", inside, node))
                self.events.append(("write", node, 0, path.read_bytes(), True))
                self.events.append(("sync", node))
        self.events.append(("sync", self._live[name]))

    def _inside(self, path: Any, dir_fd: int | None = None) -> str | None:
        """A path relative to the root; None where it is not below it."""
        if isinstance(path, int):
            return None
        path = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(path):
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        folder, name = os.path.split(os.path.abspath(path))
        whole = os.path.join(os.path.realpath(folder), name)
        if whole == str(self.root):
            return ""
        return os.path.relpath(whole, self.root) if whole.startswith(f"{self.root}/") else None

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        inside = self._inside(path, dir_fd)
        handle: int = self._before["open"](path, flags, mode, dir_fd=dir_fd)
        if inside is None or flags & getattr(os, "O_TMPFILE", 0) == getattr(os, "O_TMPFILE", -1):
            return handle
        if inside not in self._live:
            if not flags & os.O_CREAT:  # made by something that was not seen, such as SQLite
                return handle
            node = self._live[inside] = self._new()
            self.events.append(("create", inside, node))
        node = self._live[inside]
        self._handles[handle] = (node, flags)
        if flags & os.O_TRUNC and flags & (os.O_WRONLY | os.O_RDWR):
            self.events.append(("truncate", node, 0))
        return handle

    def _close(self, handle: int) -> None:
        self._handles.pop(handle, None)
        self._before["close"](handle)

    def _dup(self, handle: int) -> int:
        new: int = self._before["dup"](handle)
        if handle in self._handles:
            self._handles[new] = self._handles[handle]
        return new

    def _wrote(self, handle: int, offset: int, data: bytes) -> None:
        node, flags = self._handles[handle]
        self.events.append(("write", node, offset, data, bool(flags & (os.O_SYNC | os.O_DSYNC))))

    def _place(self, handle: int) -> int:
        """Where the next `write` goes."""
        if self._handles[handle][1] & os.O_APPEND:
            return os.fstat(handle).st_size
        return os.lseek(handle, 0, os.SEEK_CUR)

    def _write(self, handle: int, data: Any) -> int:
        if handle not in self._handles:
            return int(self._before["write"](handle, data))
        offset = self._place(handle)
        written: int = self._before["write"](handle, data)
        self._wrote(handle, offset, bytes(memoryview(data).cast("B")[:written]))
        return written

    def _pwrite(self, handle: int, data: Any, offset: int) -> int:
        written: int = self._before["pwrite"](handle, data, offset)
        if handle in self._handles:
            self._wrote(handle, offset, bytes(memoryview(data).cast("B")[:written]))
        return written

    def _writev(self, handle: int, buffers: Any) -> int:
        return self._write(handle, b"".join(bytes(memoryview(part).cast("B")) for part in buffers))

    def _pwritev(self, handle: int, buffers: Any, offset: int, flags: int = 0) -> int:
        return self._pwrite(handle, b"".join(bytes(memoryview(part).cast("B")) for part in buffers), offset)

    def _sendfile(self, out: int, *rest: Any, **named: Any) -> int:
        if out in self._handles:  # callers have another way
            raise OSError(errno.ENOTSOCK, "not simulated")
        return int(self._before["sendfile"](out, *rest, **named))

    def _copy_file_range(self, source: int, out: int, *rest: Any, **named: Any) -> int:
        if out in self._handles:
            raise OSError(errno.EXDEV, "not simulated")
        return int(self._before["copy_file_range"](source, out, *rest, **named))

    def _posix_fallocate(self, handle: int, offset: int, length: int) -> None:
        size = os.fstat(handle).st_size
        self._before["posix_fallocate"](handle, offset, length)
        if handle in self._handles and offset + length > size:
            self.events.append(("truncate", self._handles[handle][0], offset + length))

    def _ftruncate(self, handle: int, length: int) -> None:
        self._before["ftruncate"](handle, length)
        if handle in self._handles:
            self.events.append(("truncate", self._handles[handle][0], length))

    def _truncate(self, path: Any, length: int) -> None:
        if isinstance(path, int):
            return self._ftruncate(path, length)
        self._before["truncate"](path, length)
        inside = self._inside(path)
        if inside in self._live:
            self.events.append(("truncate", self._live[inside], length))

    def _fsync(self, handle: Any) -> None:
        number = handle if isinstance(handle, int) else handle.fileno()
        if number in self._handles:  # no disk is waited for
            self.events.append(("sync", self._handles[number][0]))
        else:
            self._before["fsync"](handle)

    _fdatasync = _fsync

    def _replace(
        self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        old, new = self._inside(source, src_dir_fd), self._inside(target, dst_dir_fd)
        self._before["replace"](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if old is None and new is None:
            return
        if old is None or new is None or old not in self._live:
            self.violations.append(f"{new or old}: moved across the border of {self.root}, or made unseen before")
            return
        node = self._live[old]
        for name in [name for name in self._live if name == old or name.startswith(f"{old}/")]:
            self._live[new + name[len(old) :]] = self._live.pop(name)
        self.events.append(("rename", old, new, node))

    _rename = _replace

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        inside = self._inside(path, dir_fd)
        self._before["unlink"](path, dir_fd=dir_fd)
        if inside is not None and self._live.pop(inside, None) is not None:
            self.events.append(("remove", inside))

    _remove = _unlink

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        inside = self._inside(path, dir_fd)
        self._before["mkdir"](path, mode, dir_fd=dir_fd)
        if inside is not None:
            node = self._live[inside] = self._new()
            self.events.append(("mkdir", inside, node))

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        inside = self._inside(path, dir_fd)
        self._before["rmdir"](path, dir_fd=dir_fd)
        if inside is not None and self._live.pop(inside, None) is not None:
            self.events.append(("remove", inside))

    def _link(self, source: Any, target: Any, **named: Any) -> None:
        old, new = self._inside(source, named.get("src_dir_fd")), self._inside(target, named.get("dst_dir_fd"))
        self._before["link"](source, target, **named)
        if old in self._live and new is not None:
            self._live[new] = self._live[old]
            self.events.append(("create", new, self._live[old]))

    def _symlink(self, source: Any, target: Any, *rest: Any, dir_fd: int | None = None) -> None:
        inside = self._inside(target, dir_fd)
        self._before["symlink"](source, target, *rest, dir_fd=dir_fd)
        if inside is not None:
            node = self._live[inside] = self._new()
            self.events.append(("symlink", inside, node, os.fsdecode(source)))

    def _plain_open(self, file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        """`open` of a file to write to: noted, and done by operations that are seen."""
        inside = self._inside(file)
        if inside is None or not any(letter in mode for letter in "wax+"):
            return self._opens[0](file, mode, *rest, **named)
        if self.ours(inside):
            self.violations.append(f"{inside}: written through open()")
        if named.get("opener") is not None:
            raise NotImplementedError(f"{inside}: an opener is not simulated")
        handle = os.open(os.fspath(file), _flags(mode), 0o666)
        if "a" in mode:
            os.lseek(handle, 0, os.SEEK_END)
        raw = _Seen(handle, mode, os.fspath(file))
        buffering = rest[0] if rest else named.get("buffering", -1)
        if "b" in mode and buffering == 0:
            return raw
        if "+" in mode:
            stream: Any = io.BufferedRandom(raw)
        else:
            stream = io.BufferedWriter(raw)
        if "b" in mode:
            return stream
        texts: dict[str, Any] = {name: named.get(name) for name in ("encoding", "errors", "newline")}
        return io.TextIOWrapper(stream, write_through=True, **texts)

    def _compare(self) -> None:
        """Names what is there but was never seen to be written."""
        disk = _replayed(self._begin, self.events)
        for name, node in self._live.items():
            path, kept = self.root / name, disk[node]
            if kept.is_folder or kept.link is not None or not self.ours(name):
                continue
            if not path.is_file() or path.read_bytes() != _content(kept, None, 1.0):
                self.violations.append(f"{name}: its content was written without being seen")
        for path in self.root.rglob("*"):
            name = str(path.relative_to(self.root))
            if name not in self._live and self.ours(name):
                self.violations.append(f"{name}: was made without being seen")

    # Cutting the power.

    def cut(self, moment: int, mode: str, seed: int, target: Path) -> None:
        """Builds in a new directory what a power cut after so many events could have left.

        Parameters
        ----------
        moment
            How many of the events had happened.
        mode
            What becomes of what was not synced: "dropped" loses all of it, "names" keeps names but no data, "data" keeps
            data but no names, "ordered" keeps names up to some moment and data in parts, "any" keeps any part of both,
            and "kept" all of both.
        seed
            Of what is kept.
        target
            Where it is built.
        """
        draws = random.Random(f"{moment} {mode} {seed}")
        disk = _replayed(self._begin, self.events[:moment])
        steps = sorted({step[0] for node in disk.values() if node.is_folder for step in node.pending})
        until = draws.choice([*steps, len(self._begin) + len(self.events)])
        fixed = {"dropped": False, "names": True, "data": False, "kept": True}
        kept = {step: step < until if mode == "ordered" else fixed.get(mode, draws.random() < 0.5) for step in steps}
        share = {"dropped": 0.0, "names": 0.0, "data": 1.0, "kept": 1.0}.get(mode)
        target.mkdir()
        written: dict[int, Path] = {}

        def build(number: int, path: Path) -> None:
            node = disk[number]
            names = dict(node.names)
            for step, old, new, inner in node.pending:
                if kept[step]:
                    if old is not None:
                        names.pop(old, None)
                    if new is not None:
                        names[new] = inner
            for name, inner in sorted(names.items()):
                link = disk[inner].link
                if disk[inner].is_folder:
                    (path / name).mkdir()
                    build(inner, path / name)
                elif link is not None:
                    (path / name).symlink_to(link)
                elif inner in written:
                    os.link(written[inner], path / name)
                else:
                    (path / name).write_bytes(_content(disk[inner], draws, share))
                    written[inner] = path / name

        build(0, target)


def _replayed(begin: list[tuple[Any, ...]], events: list[tuple[Any, ...]]) -> dict[int, Node]:
    """The disk after some events: what is synced, and what is not."""
    disk: dict[int, Node] = {0: Node(is_folder=True)}
    paths = {"": 0}

    def folder(path: str) -> tuple[Node, str]:
        above, _, name = path.rpartition("/")
        return disk[paths[above]], name

    for step, event in enumerate([*begin, *events]):
        kind = event[0]
        if kind in ("create", "mkdir", "symlink"):
            path, number = event[1], event[2]
            if number not in disk:
                disk[number] = Node(is_folder=kind == "mkdir", link=event[3] if kind == "symlink" else None)
            parent, name = folder(path)
            parent.pending.append((step, None, name, number))
            paths[path] = number
        elif kind == "rename":
            old, new, number = event[1:]
            (source, before), (target, after) = folder(old), folder(new)
            if source is target:
                source.pending.append((step, before, after, number))
            else:
                source.pending.append((step, before, None, number))
                target.pending.append((step, None, after, number))
            for name in [name for name in paths if name == old or name.startswith(f"{old}/")]:
                paths[new + name[len(old) :]] = paths.pop(name)
        elif kind == "remove":
            parent, name = folder(event[1])
            parent.pending.append((step, name, None, None))
            paths.pop(event[1], None)
        elif kind == "write":
            _, number, offset, data, synced = event
            disk[number].pending.append(("write", offset, data))
            if synced:
                disk[number].data, disk[number].pending = _content(disk[number], None, 1.0), []
        elif kind == "truncate":
            disk[event[1]].pending.append(("truncate", event[2]))
        elif kind == "sync":
            _sync(disk, disk[event[1]])
    return disk


def _sync(disk: dict[int, Node], node: Node) -> None:
    if not node.is_folder:
        node.data, node.pending = _content(node, None, 1.0), []
        return
    done = set()
    for step, old, new, number in node.pending:
        done.add(step)
        if old is not None:
            node.names.pop(old, None)
        if new is not None:
            node.names[new] = number
    node.pending = []
    for other in disk.values():  # a move between directories is one step: it is done in both
        if other.is_folder and any(step[0] in done for step in other.pending):
            for _, old, new, number in [step for step in other.pending if step[0] in done]:
                if old is not None:
                    other.names.pop(old, None)
                if new is not None:
                    other.names[new] = number
            other.pending = [step for step in other.pending if step[0] not in done]


def _content(node: Node, draws: random.Random | None, share: float | None) -> bytes:
    """What a file may hold: all of what was not synced, none of it, or where no share is given some sectors of it."""
    data = bytearray(node.data)
    size = len(data)
    for kind, *rest in node.pending:
        if kind == "truncate":
            (length,) = rest
            size = length
            if share == 1.0 or (share is None and draws is not None and draws.random() < 0.5):
                del data[length:]
                data.extend(bytes(length - len(data)))
            continue
        offset, new = rest
        size = max(size, offset + len(new))
        start = offset
        while start < offset + len(new):
            stop = min((start // SECTOR + 1) * SECTOR, offset + len(new))
            if share == 1.0 or (share is None and draws is not None and draws.random() < 0.5):
                data.extend(bytes(max(0, stop - len(data))))
                data[start:stop] = new[start - offset : stop - offset]
            start = stop
    if share != 1.0 and draws is not None and size > len(data) and draws.random() < 0.5:
        data.extend(bytes(size - len(data)))  # the size was written, the data was not
    return bytes(data)


def _flags(mode: str) -> int:
    flags = os.O_RDWR if "+" in mode else os.O_WRONLY
    if "w" in mode:
        flags |= os.O_CREAT | os.O_TRUNC
    elif "x" in mode:
        flags |= os.O_CREAT | os.O_EXCL
    elif "a" in mode:
        flags |= os.O_CREAT | os.O_APPEND
    return flags | os.O_CLOEXEC


class _Seen(io.RawIOBase):
    """A raw file whose every operation goes through the functions of `os` as they are now."""

    def __init__(self, handle: int, mode: str, name: Any) -> None:
        self._handle, self.mode, self.name = handle, mode, name

    def fileno(self) -> int:
        return self._handle

    def readable(self) -> bool:
        return "+" in self.mode

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return os.lseek(self._handle, offset, whence)

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        os.ftruncate(self._handle, size)
        return size

    def readinto(self, buffer: Any) -> int:
        data = os.read(self._handle, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        return os.write(self._handle, data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._handle)
