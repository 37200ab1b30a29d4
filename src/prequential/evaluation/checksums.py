"""The checksums of the parts of a folder of records, in a file that `sha256sum -c _sha256sums` reads as well.

Behind the line of each part stands the digest of all lines up to it, so that damage to this file is noticed, and one
digest in a checkpoint covers all parts before it, however many there are.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from prequential.storage.files import make_directory, open_own, sync_directory, write_all

NAME = "_sha256sums"  # readers of Parquet folders leave out what begins with "_"
START = hashlib.sha256(b"").hexdigest()  # the digest before the first part
_LINE = re.compile(rb"([0-9a-f]{64})  (part-[0-9]{12,18}\.parquet)\n# ([0-9a-f]{64})\n")
_LONGEST = 64 + 2 + 5 + 18 + 8 + 1 + 2 + 64 + 1


def part_checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def chained(digest: str, checksum: str, name: str) -> str:
    """The digest of all lines up to this one, given that of the lines before."""
    return hashlib.sha256(f"{digest} {checksum} {name}".encode()).hexdigest()


class Checksums:
    """The file of checksums while records are written; memory does not grow with the number of parts.

    Parameters
    ----------
    directory
        The folder of the records.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self.digest = START  # of the lines of all full parts
        self._end = 0  # how many bytes these lines take

    def add(self, name: str, data: bytes, *, full: bool) -> None:
        """Writes the line of a part that was just written; the line of a short part is replaced by the next one."""
        checksum = hashlib.sha256(data).hexdigest()
        digest = chained(self.digest, checksum, name)
        end = self._write(f"{checksum}  {name}\n# {digest}\n".encode())
        if full:
            self.digest, self._end = digest, end

    def drop_short(self) -> None:
        """Forgets the line of a short part, before that part is replaced."""
        if self.path.exists():
            self._write(b"")

    def rewrite(self, parts: list[tuple[str, str]]) -> None:
        """Holds the lines of these parts and no others: names and checksums."""
        lines, self.digest = [], START
        for name, checksum in parts:
            self.digest = chained(self.digest, checksum, name)
            lines.append(f"{checksum}  {name}\n# {self.digest}\n")
        self._end = 0
        self._end = self._write("".join(lines).encode()) if parts or self.path.exists() else 0

    def remove(self) -> None:
        """Deletes the file and starts over."""
        self.path.unlink(missing_ok=True)
        self.digest, self._end = START, 0

    def _write(self, lines: bytes) -> int:
        """Writes lines behind those of the full parts, and nothing behind them; where the file then ends."""
        make_directory(self.path.parent)
        new = not self.path.exists()
        handle = open_own(self.path, os.O_WRONLY | os.O_CREAT)
        try:
            write_all(handle, lines, self._end)
            os.ftruncate(handle, self._end + len(lines))
            os.fsync(handle)
        finally:
            os.close(handle)
        if new:
            sync_directory(self.path.parent)
        return self._end + len(lines)


def read_checksums(directory: Path) -> Iterator[tuple[str, str, str]]:
    """Name, checksum and digest of each part listed in the file, in order, up to the first damaged line."""
    try:
        file = (directory / NAME).open("rb")
    except OSError:
        return
    digest = START
    with file:
        rest = b""
        while piece := file.read(1 << 16):
            rest += piece
            at = 0
            while found := _LINE.match(rest, at):
                checksum, name, after = (text.decode() for text in found.groups())
                digest = chained(digest, checksum, name)
                if after != digest:
                    return
                yield name, checksum, digest
                at = found.end()
            rest = rest[at:]
            if len(rest) > _LONGEST:  # not one of our lines
                return
