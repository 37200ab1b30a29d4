"""How much a file from elsewhere may unpack to, and errors of the libraries that read files as one sentence.

A small file can claim, or really unpack to, any amount. What it claims is compared with a limit before anything of
that size is allocated, and what is unpacked piece by piece is counted. The limit grows with the file, because ordinary
data is packed by a factor of 2 to 50; `max_bytes` sets another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from prequential.errors import BadInput, BadSetting, PrequentialError

MEMORY, MEMORY_TIMES = (
    64 * 2**20,
    50,
)  # bytes that may be unpacked in memory: the larger of these many and so many times the file
DISK, DISK_TIMES = 2**30, 200  # and on disk, into the cache folder
MAX_PIXELS = 2**25  # of an image as it is decoded
PIECE = 2**20
LONGEST_PATH = 120


class Limit:
    """How many bytes some files may unpack to.

    Parameters
    ----------
    paths
        The files.
    max_bytes
        What the user says; by default in memory 64 MiB or 50 times the files, on disk 1 GiB or 200 times the files,
        whichever is more.
    on_disk
        Whether it is unpacked on disk.

    Examples
    --------
    >>> limit = Limit(max_bytes=100)
    >>> limit.check("a.npz", 101)
    Traceback (most recent call last):
    prequential.errors.BadInput: a.npz unpacks to 101 bytes, more than max_bytes (100); if it is to be trusted, open it with max_bytes=101
    """

    def __init__(self, *paths: Path, max_bytes: int | None = None, on_disk: bool = False) -> None:
        if max_bytes is not None and max_bytes < 1:
            raise BadSetting(f"max_bytes ({max_bytes}) must be at least 1")
        least, times = (DISK, DISK_TIMES) if on_disk else (MEMORY, MEMORY_TIMES)
        if max_bytes is None:
            max_bytes = max(least, times * sum(path.stat().st_size for path in paths))
        self.bytes = max_bytes

    def check(self, name: str | Path, found: int, *, what: str = "unpacks to", at_least: bool = False) -> None:
        """Refuses what unpacks to more bytes than the limit."""
        if found > self.bytes:
            more = f"{found} bytes or more" if at_least else f"{found} bytes"
            larger = 2 * found if at_least else found
            raise BadInput(
                f"{short_path(name)} {what} {more}, more than max_bytes ({self.bytes}); "
                f"if it is to be trusted, open it with max_bytes={larger}"
            )

    def read(self, name: str | Path, file: IO[bytes]) -> bytes:
        """All of a file that is unpacked while it is read."""
        pieces, size = [], 0
        while piece := file.read(PIECE):
            pieces.append(piece)
            size += len(piece)
            self.check(name, size, at_least=True)
        return b"".join(pieces)


@contextmanager
def reading(name: str | Path, what: str = "cannot be read") -> Iterator[None]:
    """Whatever a library raises while it reads a file becomes one sentence that names the file.

    >>> with reading("a.json"):
    ...     raise EOFError("it ends early")
    Traceback (most recent call last):
    prequential.errors.BadInput: a.json cannot be read: it ends early
    """
    try:
        yield
    except PrequentialError:
        raise
    except MemoryError:
        raise BadInput(f"{short_path(name)} {what}: it takes more memory than there is") from None
    except RecursionError:
        raise BadInput(f"{short_path(name)} {what}: it is nested too deeply") from None
    # Damaged files make libraries raise nearly anything: what is around is reading alone, and the cause stays attached.
    except Exception as error:
        raise BadInput(f"{short_path(name)} {what}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """Why, in a few words: what the system says, or the first line of what a library says."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, KeyError):
        return f"there is no {error}"
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2])
    return text if len(text) <= 160 else f"{text[:159]}…" if text else type(error).__name__


def short_path(path: str | Path) -> str:
    """A path for a message; a long one is cut to its end."""
    text = str(path)
    return text if len(text) <= LONGEST_PATH else f"…{text[-LONGEST_PATH + 1 :]}"
