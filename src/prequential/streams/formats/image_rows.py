"""Where the images of a stream are: rows with an image and a label each. Here, files in folders named after classes."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from prequential.errors import BadInput
from prequential.streams.cache import WHOLE, file_hash
from prequential.streams.stream import in_reading_order

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


class ImageRows(ABC):
    """Where the images of a stream are: rows that each have an image, as a file or as bytes, and a label."""

    name: str  # for messages
    folder: Path | None = None  # where the files are, if they were there when the stream was opened
    order: np.ndarray | None = None  # the rows in the order of time; None: as they are
    classes: int | None = None

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def take(self, rows: np.ndarray) -> tuple[list[Path | bytes], list[Hashable], dict[int, str]]:
        """Images and labels of these rows, and what is wrong with some of them, by place among `rows`."""

    @abstractmethod
    def labels(self, rows: np.ndarray) -> list[Hashable]:
        """The labels of these rows alone."""

    @abstractmethod
    def undecodable(self, example: int, row: int, source: Path | bytes, why: str) -> str:
        """The sentence for an image that cannot be decoded."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the images and labels."""

    def stamp(self) -> str:
        """For the names of copies: changes with every edit, also where the fingerprint only samples."""
        return ""


class FolderRows(ImageRows):
    """The image files in a folder whose folders are named after the classes."""

    def __init__(self, folder: Path, order: str) -> None:
        self.name, self._root = str(folder), folder
        found = []
        classes = sorted(part.name for part in folder.iterdir() if part.is_dir())
        for name in classes:
            for file in (folder / name).rglob("*"):
                if file.suffix.lower() in SUFFIXES and file.is_file():
                    found.append(file.relative_to(folder))
        if not found and any(file.suffix.lower() in SUFFIXES for file in folder.iterdir()):
            raise BadInput(
                f"{folder} holds images, but no folders named after their classes; sort them into such, or "
                "give a manifest"
            )
        found.sort()  # for names that count the same, such as 1.png and 01.png
        if order == "name":
            by_name = in_reading_order(Path(file.name, file) for file in found)
            found = [Path(*file.parts[1:]) for file in by_name]
        else:
            found = in_reading_order(found)
        if order == "modified":
            found.sort(key=lambda file: (folder / file).stat().st_mtime_ns)
        # Arrow arrays: a million paths take some 50 MB, as Python strings three times that
        self._names = pa.array([str(file) for file in found], pa.large_string())
        self._labels = pa.array([file.parts[0] for file in found], pa.large_string())
        self.classes = len(classes)

    def __len__(self) -> int:
        return len(self._names)

    def take(self, rows: np.ndarray) -> tuple[list[Path | bytes], list[Hashable], dict[int, str]]:
        files = [self._root / str(name) for name in self._names.take(pa.array(rows)).to_pylist()]
        return list(files), self.labels(rows), {}

    def labels(self, rows: np.ndarray) -> list[Hashable]:
        found: list[Hashable] = self._labels.take(pa.array(rows)).to_pylist()
        return found

    def undecodable(self, example: int, row: int, source: Path | bytes, why: str) -> str:
        return f"example {example}: {source!s} cannot be decoded ({why}), expected an image"

    def fingerprint(self) -> str:
        digest = hashlib.sha256(files_hash(self._files).encode())
        for name in self._names:
            digest.update(f"{name.as_py()}\n".encode())
        return digest.hexdigest()

    def _files(self) -> Iterator[Path]:
        return (self._root / str(name.as_py()) for name in self._names)


def files_hash(files: Callable[[], Iterator[Path]]) -> str:
    """A hash of the sizes and the content of image files, those that are not there included.

    Of more than 1 GiB of images, the sizes of all and the content of some 1024 are hashed.
    """
    sizes = array("q")
    for file in files():
        try:
            sizes.append(file.stat().st_size)
        except OSError:
            sizes.append(-1)
    known = np.frombuffer(sizes, np.int64) if len(sizes) else np.zeros(0, np.int64)
    there = np.flatnonzero(known >= 0)
    step = max(1, len(there) // 1024) if known[there].sum() > WHOLE else 1
    chosen = set(there[::step].tolist())
    content = file_hash(*(file for i, file in enumerate(files()) if i in chosen))
    return hashlib.sha256(known.tobytes() + content.encode()).hexdigest()
