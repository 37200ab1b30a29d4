"""Streams of images: a folder with one folder for each class, or a CSV file that lists paths and labels."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from prequential.errors import BadInput, BadSetting, MissingExtra
from prequential.streams.cache import WHOLE, file_hash, kept_array
from prequential.streams.stream import Chunk, Stream

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
ORDERS = ("name", "path", "modified", "shuffled", "listed")


class ImageStream(Stream):
    """Image files as examples, decoded when they are read, all of one size.

    Parameters
    ----------
    path
        A folder whose folders are named after the classes, or a CSV manifest with the columns path (relative to the
        manifest), label and, if there is one, time, by which it is then ordered.
    size
        Height and width, or one number for both; by default that of the first image. Others are scaled and
        cut at the middle.
    order
        Of a folder: by file "name" whatever the class (the default), by "path" (class after class), by the time a
        file was "modified", or "shuffled". Of a manifest: as "listed" or "shuffled".
    seed
        Another seed gives another shuffled order.
    grey
        False gives (height, width, 3), True (height, width), both uint8.
    classes
        How many labels there can be, or which; a folder knows.
    on_bad_row
        "stop" raises one sentence when an image that cannot be decoded is reached; "skip" leaves those out, for which
        all images are decoded once and the result is kept in the cache folder; `skipped` says how many there were.
    workers
        How many threads decode; by default one for each processor, at most 8.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        size: int | tuple[int, int] | None = None,
        order: str | None = None,
        seed: int = 0,
        grey: bool = False,
        classes: int | Sequence[Hashable] | None = None,
        on_bad_row: str = "stop",
        workers: int | None = None,
    ) -> None:
        if on_bad_row not in ("stop", "skip"):
            raise BadSetting(f"on_bad_row ({on_bad_row!r}) must be 'stop' or 'skip'")
        self.path = Path(path)
        self.on_bad_row, self.skipped, self.grey = on_bad_row, 0, grey
        self.decoder = Decoder(workers)
        if self.path.is_dir():
            order = _known_order(order or "name", ("name", "path", "modified", "shuffled"))
            self._root = self.path
            names, self._labels, classes_found = _list_folder(self.path, order)
            self.classes = classes if classes is not None else classes_found
        else:
            order = _known_order(order or "listed", ("listed", "shuffled"))
            self._root = self.path.parent
            names, self._labels = _read_manifest(self.path)
            self.classes = classes
        if len(names) == 0:
            raise BadInput(f"{self.path} holds no images; expected files that end in {', '.join(sorted(SUFFIXES))}")
        if order == "shuffled":
            bits = np.random.Philox(key=np.array([seed, len(names)], np.uint64)).random_raw(len(names))
            turn = pa.array(np.argsort(bits, kind="stable"))
            names, self._labels = names.take(turn), self._labels.take(turn)
        self._names = names  # one Arrow array: a million paths take some 50 MB, as Python strings three times that
        self._size = (size, size) if isinstance(size, int) else size
        self.size = self._size or self._first_size()
        self._index: np.ndarray | None = None  # which file each example is; None: the same
        if on_bad_row == "skip":
            bad = kept_array(f"bad-images-{self.fingerprint()}", self._find_bad)
            self.skipped = len(bad)
            self._index = np.delete(np.arange(len(names)), bad) if len(bad) else None
            if len(bad) == len(names):
                raise BadInput(f"{self.path}: none of the {len(names)} images can be decoded")

    def __len__(self) -> int:
        return len(self._names) if self._index is None else len(self._index)

    @cached_property
    def _hash(self) -> str:
        digest = hashlib.sha256(f"images {self.size} {self.grey} {self.on_bad_row} ".encode())
        files = [self._file(i) for i in range(len(self._names))]
        sizes = [file.stat().st_size if file.is_file() else -1 for file in files]
        for i, bytes_ in enumerate(sizes):
            digest.update(f"{self._names[i].as_py()}\x1f{self._labels[i].as_py()!r}\x1f{bytes_}\n".encode())
        there = [file for file, bytes_ in zip(files, sizes, strict=True) if bytes_ >= 0]
        # of more than 1 GiB of images, the names and sizes of all and the content of 1024
        step = max(1, len(there) // 1024) if sum(sizes) > WHOLE else 1
        digest.update(file_hash(*there[::step]).encode())
        return digest.hexdigest()[:32]

    def fingerprint(self) -> str:
        """A hash of the names, labels, sizes and content of the files, and of how they are read."""
        return self._hash

    def _read(self, start: int, stop: int) -> Chunk:
        x, rows = self._take(np.arange(start, stop))
        return Chunk(x, [self._labels[i].as_py() for i in rows])

    def _take(self, positions: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """The images at these positions, and which files they are."""
        rows: list[int] = (positions if self._index is None else self._index[positions]).tolist()
        images: list[np.ndarray] = []
        for i, image in zip(rows, self.decoder([self._file(i) for i in rows], self.size, self.grey), strict=True):
            if isinstance(image, str):
                raise BadInput(f"example {positions[len(images)]}: {self._file(i)} cannot be decoded ({image})")
            images.append(image)
        return np.stack(images), rows

    def pool(self) -> tuple[ImagePool, np.ndarray]:
        """All images by position, decoded when they are asked for, and their labels: what `SplitStream` takes."""
        rows = range(len(self._names)) if self._index is None else self._index.tolist()
        return ImagePool(self), np.array([self._labels[i].as_py() for i in rows])

    def _file(self, i: int) -> Path:
        return self._root / str(self._names[i].as_py())

    def _first_size(self) -> tuple[int, int]:
        for i in range(len(self._names)):
            image = next(iter(self.decoder([self._file(i)], None, self.grey)))
            if not isinstance(image, str):
                return int(image.shape[0]), int(image.shape[1])
            if self.on_bad_row == "stop":
                raise BadInput(f"example {i}: {self._file(i)} cannot be decoded ({image})")
        raise BadInput(f"{self.path}: none of the {len(self._names)} images can be decoded")

    def _find_bad(self) -> np.ndarray:
        files = (self._file(i) for i in range(len(self._names)))
        found = self.decoder(files, self.size, self.grey)
        return np.array([i for i, image in enumerate(found) if isinstance(image, str)], np.int64)


class ImagePool:
    """The images of a stream, indexed by arrays of positions."""

    def __init__(self, stream: ImageStream) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        return self.stream._take(positions)[0]

    def fingerprint(self) -> str:
        return self.stream.fingerprint()


class Decoder:
    """Decodes images in threads (Pillow lets other threads run meanwhile), in order, a few ahead."""

    def __init__(self, workers: int | None = None) -> None:
        try:
            import PIL  # noqa: F401
        except ImportError:
            raise MissingExtra("decoding images", "images") from None
        self.workers = workers or min(8, os.cpu_count() or 1)
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, sources: Any, size: tuple[int, int] | None, grey: bool) -> Iterator[np.ndarray | str]:
        """The images, or in the place of one that cannot be decoded what is wrong with it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, "decode")
        waiting = []
        for source in sources:
            waiting.append(self._pool.submit(decode, source, size, grey))
            if len(waiting) >= 4 * self.workers:
                yield waiting.pop(0).result()
        for image in waiting:
            yield image.result()


def decode(source: Path | bytes, size: tuple[int, int] | None, grey: bool = False) -> np.ndarray | str:
    """An image as (height, width, 3) or (height, width) bytes, or the reason why it cannot be decoded."""
    from PIL import Image, ImageOps

    mode = "L" if grey else "RGB"
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            if size is not None:
                image.draft(mode, size[::-1])  # JPEG can be decoded at half, a quarter or an eighth of its size
            plain = image.convert(mode)
        if size is not None and plain.size != size[::-1]:
            plain = ImageOps.fit(plain, size[::-1], Image.Resampling.BICUBIC)
        return np.asarray(plain)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        return str(error) or type(error).__name__


def _known_order(order: str, known: Sequence[str]) -> str:
    if order not in known:
        raise BadSetting(f"order ({order!r}) must be one of {', '.join(known)}")
    return order


def _list_folder(folder: Path, order: str) -> tuple[pa.Array, pa.Array, int]:
    """The files below the class folders, their classes, and how many classes there are."""
    found = []
    classes = sorted(part.name for part in folder.iterdir() if part.is_dir())
    for name in classes:
        for file in (folder / name).rglob("*"):
            if file.suffix.lower() in SUFFIXES and file.is_file():
                key: Any = file.name
                if order == "modified":
                    key = file.stat().st_mtime_ns
                found.append((key if order in ("name", "modified") else name, str(file.relative_to(folder)), name))
    found.sort()
    if not found and any(file.suffix.lower() in SUFFIXES for file in folder.iterdir()):
        raise BadInput(
            f"{folder} holds images, but no folders named after their classes; sort them into such, or give a manifest"
        )
    names, labels = [path for _, path, _ in found], [label for _, _, label in found]
    return pa.array(names, pa.large_string()), pa.array(labels, pa.large_string()), len(classes)


def _read_manifest(path: Path) -> tuple[pa.Array, pa.Array]:
    try:
        rows = pacsv.read_csv(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise BadInput(f"{path} is no manifest of images: {error}") from None
    for name in ("path", "label"):
        if name not in rows.column_names:
            raise BadInput(
                f"{path} has the columns {', '.join(rows.column_names)}, expected path, label and perhaps time"
            )
        empty = rows.column(name).is_null().to_numpy()
        if empty.any():
            raise BadInput(f"{path}, row {int(np.flatnonzero(empty)[0]) + 1}, column {name!r} is empty")
    if "time" in rows.column_names:
        times = rows.column("time")
        if pa.types.is_string(times.type):
            raise BadInput(
                f"{path}: column 'time' holds text such as {times[0].as_py()!r}, expected numbers or ISO 8601 times"
            )
        if times.null_count:
            raise BadInput(
                f"{path}, row {int(np.flatnonzero(times.is_null().to_numpy())[0]) + 1}, column 'time' is empty"
            )
        rows = rows.take(pa.array(np.argsort(times.to_numpy(), kind="stable")))
    return rows.column("path").cast(pa.large_string()).combine_chunks(), rows.column("label").combine_chunks()
