"""CLOC: 39 million photos in the order they were taken, to predict where (Cai, Sener, Koltun 2021).

The official metadata comes in two forms, both taken as they are, and never unpickled in a way that could run code:

* text without a header, a line for each photo, with commas: `class,time,user,path`, or of five or more fields with the
  date before the time and the path last (class and time are whole numbers);
* a folder with `train_labels.torchSave`, `train_time.torchSave`, `train_userID.torchSave`, `train_store_loc.torchSave`.

A .npz file with the arrays `label`, `time`, `user`, `path` will do as well. On first use it is turned into arrays on
disk (`convert_metadata`) that are opened in no time and take no memory. Around 5 % of the photos can no longer be had:
those that are missing or cannot be decoded are skipped and counted. So that positions stay what they are, `ClocStream`
tries all photos once before it starts and keeps a list of the good ones; an interrupted try goes on where it was.

The list belongs to one metadata (all of its content) and one folder of photos (where it lies). Photos that come later
are left out as before, until the list is made again: with `recheck=True`, or by deleting the file that
`ClocStream.good` names. Photos that vanish later are an error: when the stream is opened if one of 1024 spread over it
is gone, else when it is read.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np

from prequential.errors import BadInput, BadSetting
from prequential.storage.files import write_atomically
from prequential.streams.datasets.cloc_metadata import (
    COLUMNS,
    convert_metadata,
    converted_metadata,
    open_column,
    read_index,
    whole_hash,
)
from prequential.streams.formats.image_decoding import Decoder
from prequential.streams.limits import reading
from prequential.streams.stream import Chunk, Stream

__all__ = ["ClocRecords", "ClocStream", "convert_metadata"]

LOOKED_AT = 1024  # photos whose sizes are looked at when the stream is opened
TRIED_AT_ONCE = 1024  # an interruption loses the trial of at most so many photos

Progress = Callable[[int, int, int], None]  # photos done, photos in all, photos skipped


class ClocRecords:
    """The official metadata with the photos on disk, bad ones included.

    Parameters
    ----------
    metadata
        The text file, the .npz file, the folder of .torchSave files, or a folder made by `convert_metadata`.
    images
        The folder that the paths in the metadata start from.
    size
        Height and width to which photos are scaled, cut at the middle.
    workers
        How many threads decode; by default one for each processor, at most 8.
    converted
        Where the arrays made from the metadata are kept; by default in the cache folder.
    max_pixels
        As in `ImageStream`.
    """

    def __init__(
        self,
        metadata: str | Path,
        images: str | Path,
        *,
        size: int = 160,
        workers: int | None = None,
        converted: str | Path | None = None,
        max_pixels: int | None = None,
    ) -> None:
        if size < 1:
            raise BadSetting(f"size ({size}) must be at least 1")
        self.images, self.size = Path(images), size
        if not self.images.is_dir():
            raise BadInput(f"{self.images} is not a folder; expected the one that the paths in the metadata start from")
        self.folder = converted_metadata(Path(metadata), converted)
        self.index = read_index(self.folder)
        self._columns = {
            name: open_column(self.folder / name, dtype, self.index["rows"]) for name, dtype in COLUMNS.items()
        }
        with reading(self.folder / "paths"):
            self._paths = np.memmap(self.folder / "paths", np.uint8, "r")
        self.classes: int = self.index["classes"]
        self.decoder = Decoder(workers, max_pixels)

    def __len__(self) -> int:
        return int(self.index["rows"])

    def column(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        """Labels ("label"), times ("time") or users ("user", a hash each) of some rows."""
        return np.array(self._columns[name][rows])

    def paths(self, rows: slice | np.ndarray) -> list[Path]:
        """Where the photos of some rows are."""
        with reading(self.folder):
            return self._files(rows)

    def _files(self, rows: slice | np.ndarray) -> list[Path]:
        begins, sizes = self.column("begin", rows).tolist(), self.column("size", rows).tolist()
        return [
            self.images / bytes(self._paths[begin : begin + size]).decode()
            for begin, size in zip(begins, sizes, strict=True)
        ]

    def decode(self, rows: slice | np.ndarray) -> list[np.ndarray | str]:
        """The photos of some rows, (size, size, 3) bytes each, or what is wrong with them."""
        return list(self.decoder(self.paths(rows), (self.size, self.size), False))

    def attempt(self, start: int, stop: int) -> tuple[np.ndarray, list[int], dict[int, str]]:
        """The photos of rows start..stop-1 that can be decoded, their labels, and what is wrong with the others."""
        rows = slice(start, min(stop, len(self)))
        found = self.decode(rows)
        bad = {start + i: image for i, image in enumerate(found) if isinstance(image, str)}
        paths = self.paths(rows) if bad else []
        good = [i for i in range(len(found)) if start + i not in bad]
        images = np.stack([found[i] for i in good]) if good else np.empty((0, self.size, self.size, 3), np.uint8)
        reasons = {i: f"{paths[i - start]} cannot be decoded ({reason})" for i, reason in bad.items()}
        return images, self.column("label", rows)[good].tolist(), reasons

    def columns(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """When the photos of rows start..stop-1 were taken, and by whom, as hashes."""
        return {name: self.column(name, slice(start, stop)) for name in ("time", "user")}

    def fingerprint(self) -> str:
        """A hash of all rows of the metadata (class, time, user, path) and of the size; photos are not read."""
        return hashlib.sha256(f"cloc 1 {self.index['sha256']} {self.size}".encode()).hexdigest()[:32]


class ClocStream(Stream):
    """CLOC as a stream of photos, those left out that are missing or cannot be decoded; `skipped` says how many.

    Parameters
    ----------
    metadata, images, size, workers, converted, max_pixels
        As in `ClocRecords`.
    classes
        How many places there can be; by default as many as the metadata has, which is 713 for CLOC.
    progress
        Called with how many photos were tried, how many there are, and how many were skipped, while they are tried
        for the first time. By default a bar is shown where standard error is a terminal.
    recheck
        True tries all photos again, for when some were added or changed. Interrupted, it goes on when it is asked for
        again.
    """

    def __init__(
        self,
        metadata: str | Path,
        images: str | Path,
        *,
        size: int = 160,
        classes: int | None = None,
        workers: int | None = None,
        converted: str | Path | None = None,
        progress: Progress | None = None,
        recheck: bool = False,
        max_pixels: int | None = None,
    ) -> None:
        self.records = ClocRecords(
            metadata, images, size=size, workers=workers, converted=converted, max_pixels=max_pixels
        )
        self.classes = classes or self.records.classes
        belongs_to = f"{self.records.index['sha256']} {self.records.images.resolve()}"
        self.good = self.records.folder / f"good-{hashlib.sha256(belongs_to.encode()).hexdigest()[:12]}"
        if recheck:
            self.good.unlink(missing_ok=True)
        if not self.good.exists():
            with nullcontext(progress) if progress else _bar() as told:
                _try_all(self.records, self.good, told)
        self._good = _read_good(self.good, len(self.records))
        self.skipped = len(self.records) - len(self._good)
        if not len(self._good):
            self.good.unlink()  # with the right folder it would be there before the photos
            raise BadInput(
                f"none of the {len(self.records)} photos can be decoded; the first should be {self._first()}"
            )
        content = f"{self.records.fingerprint()} {whole_hash(self.good)} {self._look()}"
        self._hash = hashlib.sha256(content.encode()).hexdigest()[:32]

    def __len__(self) -> int:
        return len(self._good)

    def fingerprint(self) -> str:
        """A hash of what the stream is made of.

        It covers all rows of the metadata (class, time, user, path), the size to which photos are scaled, the list of
        the photos that are good, and how many bytes 1024 of these, evenly spread, have on disk. It does not cover what
        is on the photos: one that is replaced by another good one is noticed if it is among the 1024 and has another
        number of bytes.
        """
        return self._hash

    def times(self, start: int, stop: int) -> np.ndarray:
        """When the photos were taken, as the metadata has it."""
        return self.records.column("time", np.array(self._good[start:stop]))

    def users(self, start: int, stop: int) -> np.ndarray:
        """Whose photos they are, as a hash of what the metadata has."""
        return self.records.column("user", np.array(self._good[start:stop]))

    def columns(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Times and users by name, to be kept with extracted features."""
        return {"time": self.times(start, stop), "user": self.users(start, stop)}

    def _read(self, start: int, stop: int) -> Chunk:
        rows = np.array(self._good[start:stop])
        images: list[np.ndarray] = []
        for i, image in enumerate(self.records.decode(rows)):
            if isinstance(image, str):
                raise self._vanished(start + i, image)
            images.append(image)
        return Chunk(np.stack(images), self.records.column("label", rows).tolist())

    def _look(self) -> str:
        """A hash of the sizes in bytes of photos spread over the stream; all of them must be there."""
        positions = np.unique(np.linspace(0, len(self._good) - 1, LOOKED_AT).astype(np.int64))
        sizes = []
        for position, path in zip(positions.tolist(), self.records.paths(self._good[positions]), strict=True):
            try:
                sizes.append(path.stat().st_size)
            except OSError as error:
                raise self._vanished(position, error.strerror or str(error)) from None
        return hashlib.sha256(repr(sizes).encode()).hexdigest()

    def _vanished(self, position: int, why: str) -> BadInput:
        path = self.records.paths(self._good[position : position + 1])[0]
        return BadInput(
            f"example {position}: {path} could be decoded before and cannot now ({why}); bring it back, or delete "
            f"{self.good}"
        )

    def _first(self) -> Path:
        return self.records.paths(slice(0, 1))[0]


def _read_good(path: Path, rows: int) -> np.ndarray:
    """The rows of the good photos, in order."""
    if not path.stat().st_size:
        return np.empty(0, np.int32)
    with reading(path):
        good = np.memmap(path, "<i4", "r")
    if good[0] < 0 or good[-1] >= rows or (np.diff(good) <= 0).any():
        raise BadInput(f"{path} does not list photos of {rows} in order; delete it to have all photos tried again")
    return good


@contextmanager
def _bar() -> Iterator[Progress | None]:
    """A bar on standard error where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("trying all photos once"), BarColumn(None), MofNCompleteColumn())
    counts = (TextColumn("{task.description}"), TimeRemainingColumn())
    with Bar(*columns, *counts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, skipped: bar.update(
            task, completed=done, total=total, description=f"{skipped:,} skipped"
        )


def _try_all(records: ClocRecords, good: Path, progress: Progress | None) -> None:
    """Decodes every photo once and writes the rows of the good ones; a file with a byte a row keeps the progress."""
    notes = good.with_name(good.name + ".part")
    if not notes.exists():
        write_atomically(notes, bytes(len(records)))
    tried = np.memmap(notes, np.uint8, "r+", shape=(len(records),))  # 0 not tried, 1 good, 2 bad
    skipped = 0
    for start in range(0, len(records), TRIED_AT_ONCE):
        rows = slice(start, min(start + TRIED_AT_ONCE, len(records)))
        if not tried[rows].all():
            found = [2 if isinstance(image, str) else 1 for image in _one_by_one(records, rows)]
            if 1 not in found and not (records.images.is_dir() and any(records.images.iterdir())):
                raise BadInput(
                    f"{records.images} is gone or empty; open the stream again when it is back, and it goes on"
                )
            tried[rows] = found
            tried.flush()
        skipped += int(np.count_nonzero(tried[rows] == 2))
        if progress:
            progress(rows.stop, len(records), skipped)
    write_atomically(good, np.flatnonzero(tried == 1).astype("<i4").tobytes())
    notes.unlink(missing_ok=True)  # another process may have done the same


def _one_by_one(records: ClocRecords, rows: slice) -> Iterator[np.ndarray | str]:
    """The photos without keeping them all in memory."""
    return records.decoder(records.paths(rows), (records.size, records.size), False)
