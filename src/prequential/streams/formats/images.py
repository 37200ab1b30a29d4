"""Streams of images: a folder with one folder for each class, or a table that holds images or lists their paths."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput, BadSetting
from prequential.streams.cache import cached_array
from prequential.streams.formats.image_decoding import Decoder
from prequential.streams.formats.image_rows import SUFFIXES, FolderRows, ImageRows
from prequential.streams.formats.image_tables import TableRows, table_in
from prequential.streams.formats.table import SAMPLE
from prequential.streams.formats.tables import as_table
from prequential.streams.limits import reading
from prequential.streams.stream import Chunk, Stream
from prequential.streams.tasks import Pool

LOOK = 256  # images checked at a time when all of them are
MAX_SIZE = 2**22  # pixels of the first image up to which it says the size of all


class ImageStream(Stream):
    """Image files as examples, decoded when they are read, all of one size.

    Parameters
    ----------
    source
        A folder whose folders are named after the classes, or a table with a column of images and a column of labels,
        as in `TableStream`: CSV, Parquet, Arrow, a saved Hugging Face data set, a data frame.
    image
        Of a table, the column of the images: encoded bytes, a struct with the fields `bytes` and `path`, or paths
        (relative to the table); by default the first column that holds such.
    label
        Of a table, the column of the labels; by default one called label, y, target or class, else the last.
    time
        Of a table, the column to order by; by default, where the images are listed by path, one called time if there
        is one.
    group
        Not possible: an image has no features beside it that could say whose it is.
    size
        Height and width, or one number for both; by default that of the first image. Others are scaled and
        cut at the middle.
    order
        Of a folder: by file "name" whatever the class (the default), by "path" (class after class), by the time a
        file was "modified", or "shuffled". Names are counted as a person does, 2 before 10. Of a table: as
        "listed" (or in the order of time), or "shuffled".
    seed
        Another seed gives another shuffled order.
    gray
        False gives (height, width, 3), True (height, width), both uint8.
    classes
        How many labels there can be, or which; a folder knows, a table may declare it.
    kinds
        Of a table, how the labels are to be read where the first 4096 in the order of the stream mislead:
        {"label": "category"} reads them as text.
    on_bad_row
        "stop" raises one sentence when an image that cannot be decoded is reached; "skip" leaves those out, for which
        all images are decoded once and the result is kept in the cache folder; `skipped` says how many there were.
    workers
        How many threads decode, at most 256; by default one for each processor, at most 8.
    max_pixels
        How many pixels an image may have as it is decoded, 2**25 by default: a small file can hold any number. A JPEG
        is decoded near the size that is wanted, and that counts.
    """

    def __init__(
        self,
        source: Any,
        *,
        image: str | None = None,
        label: str | None = None,
        time: str | None = None,
        group: str | None = None,
        size: int | tuple[int, int] | None = None,
        order: str | None = None,
        seed: int = 0,
        gray: bool = False,
        classes: int | Sequence[Hashable] | None = None,
        kinds: Mapping[str, str] | None = None,
        on_bad_row: str = "stop",
        workers: int | None = None,
        max_pixels: int | None = None,
    ) -> None:
        if on_bad_row not in ("stop", "skip"):
            raise BadSetting(f"on_bad_row ({on_bad_row!r}) must be 'stop' or 'skip'")
        self.path = Path(source) if isinstance(source, (str, Path)) else None
        columns = {"image": image, "label": label, "time": time, "group": group, "kinds": kinds}
        if self.path is not None and self.path.is_dir() and not table_in(self.path):
            rows, order = _folder_rows(self.path, columns, order)
        else:
            rows, order = _table_rows(source, columns, order, seed, on_bad_row)
        if len(rows) == 0:
            raise BadInput(f"{rows.name} holds no images; expected files that end in {', '.join(sorted(SUFFIXES))}")
        self.rows, self.images = rows, rows.folder
        self.classes = classes if classes is not None else rows.classes
        self.on_bad_row, self.gray = on_bad_row, gray
        self.decoder = Decoder(workers, max_pixels)
        self._index = rows.order  # which row each example is; None: the same
        self._order = order
        if order == "shuffled":
            self._index = shuffled(len(rows), seed)
            self._order = f"shuffled {seed}"
        self.size = _known_size(size) or self._first_size()
        if on_bad_row == "skip":
            bad = cached_array(f"bad-images-{self.fingerprint()}-{rows.stamp()}", self._find_bad)
            if len(bad):
                index = np.arange(len(rows)) if self._index is None else self._index
                self._index = index[~np.isin(index, bad)]
        self.skipped = len(rows) - len(self)
        if len(self) == 0:
            raise BadInput(f"{rows.name}: none of the {len(rows)} images can be used")

    def __len__(self) -> int:
        return len(self.rows) if self._index is None else len(self._index)

    @cached_property
    def _hash(self) -> str:
        text = f"images {self.rows.fingerprint()} {self.size} {self.gray} {self.on_bad_row} {self._order}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def fingerprint(self) -> str:
        """A hash of the names, labels, sizes and content of the images, and of how they are read."""
        return self._hash

    def pool(self) -> tuple[Pool, np.ndarray]:
        """All images by position, decoded on demand, and their labels: what `SplitStream` takes."""
        labels = self.rows.labels(np.arange(len(self)) if self._index is None else np.asarray(self._index))
        return Pool(self, lambda positions: self._take(positions)[0]), np.array(labels)

    def _read(self, start: int, stop: int) -> Chunk:
        return Chunk(*self._take(np.arange(start, stop)))

    def _take(self, positions: np.ndarray) -> tuple[np.ndarray, list[Hashable]]:
        """The images and labels at these positions."""
        images, labels, bad = self._try(positions)
        for sentence in bad.values():
            raise BadInput(sentence)
        return images, labels

    def attempt(self, start: int, stop: int) -> tuple[np.ndarray, list[Hashable], dict[int, str]]:
        """The good images of start..stop-1, their labels, and what is wrong with each bad one, by position."""
        return self._try(np.arange(start, min(stop, len(self))))

    def _try(self, positions: np.ndarray) -> tuple[np.ndarray, list[Hashable], dict[int, str]]:
        rows = positions if self._index is None else np.asarray(self._index[positions])
        with reading(self.rows.name):
            sources, labels, wrong = self.rows.take(rows)
        images: list[np.ndarray] = []
        good: list[Hashable] = []
        bad: dict[int, str] = {}
        for i, image in enumerate(self.decoder(sources, self.size, self.gray)):
            position = int(positions[i])
            if i in wrong:
                bad[position] = wrong[i]
            elif isinstance(image, str):
                bad[position] = self.rows.undecodable(position, int(rows[i]), sources[i], image)
            else:
                images.append(image)
                good.append(labels[i])
        return np.stack(images) if images else np.empty((0,), np.uint8), good, bad

    def _first_size(self) -> tuple[int, int]:
        """The size of the first image; of the first that can be decoded, where others are left out."""
        total = len(self)
        for i in range(total):
            row = np.array([i if self._index is None else self._index[i]])
            sources, _, bad = self.rows.take(row)
            image = next(iter(self.decoder(sources, None, self.gray)))
            if not isinstance(image, str):
                height, width = (int(length) for length in image.shape[:2])
                if height * width > MAX_SIZE:
                    raise BadInput(
                        f"{self.rows.name}: the first image has {height}×{width} pixels, too many for a size of all "
                        "images; say which they should have, such as size=224"
                    )
                return height, width
            if self.on_bad_row == "stop":
                raise BadInput(bad[0] if bad else self.rows.undecodable(i, int(row[0]), sources[0], image))
        raise BadInput(f"{self.rows.name}: none of the {len(self.rows)} images can be decoded")

    def _find_bad(self) -> np.ndarray:
        found = []
        for start in range(0, len(self.rows), LOOK):
            sources, _, bad = self.rows.take(np.arange(start, min(start + LOOK, len(self.rows))))
            images = self.decoder(sources, self.size, self.gray)
            found += [start + i for i, image in enumerate(images) if i in bad or isinstance(image, str)]
        return np.array(found, np.int64)


def _folder_rows(folder: Path, columns: dict[str, Any], order: str | None) -> tuple[ImageRows, str]:
    """The rows of a folder, and the order in which they come."""
    order = _known_order(order or "name", ("name", "path", "modified", "shuffled"))
    for name, value in columns.items():
        if value is not None:
            raise BadSetting(
                f"{folder} is a folder of images, labeled by the names of its folders, so {name} ({value!r}) cannot be "
                "chosen; give a manifest"
            )
    return FolderRows(folder, order), order


def _table_rows(
    source: Any, columns: dict[str, Any], order: str | None, seed: int, on_bad_row: str
) -> tuple[ImageRows, str]:
    """The rows of a table with images, and the order in which they come."""
    order = _known_order(order or "listed", ("listed", "shuffled"))
    time, group = columns["time"], columns["group"]
    if order == "shuffled" and time is not None:
        raise BadSetting(f"order ('shuffled') and time ({time!r}) cannot be given together; leave one out")
    table = as_table(source)
    if len(table) == 0:
        raise BadInput(f"{table.name} has no rows")
    if group is not None:
        raise BadSetting(
            f"{table.name} holds images, and the group ({group!r}) cannot become a feature beside an image; leave it "
            "out, or name columns with features to read the table without its images"
        )
    first = shuffled(len(table), seed)[:SAMPLE] if order == "shuffled" else None
    kinds = dict(columns["kinds"] or {})
    return TableRows(table, columns["image"], columns["label"], time, kinds, on_bad_row, first), order


def _known_order(order: str, known: Sequence[str]) -> str:
    if order not in known:
        raise BadSetting(f"order ({order!r}) must be one of {', '.join(known)}")
    return order


def _known_size(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    """Height and width, of which one number may stand for both."""
    if size is None:
        return None
    both = (size, size) if isinstance(size, int) else tuple(size)
    if len(both) != 2 or min(both) < 1:
        raise BadSetting(f"size ({size}) must be at least 1: one number, or two for height and width")
    return both[0], both[1]


def shuffled(count: int, seed: int) -> np.ndarray:
    """The numbers 0..count-1 in an order that depends on the seed and the count alone."""
    if not 0 <= seed < 2**64:
        raise BadSetting(f"seed ({seed}) must be in 0..2**64-1")
    bits = np.random.Philox(key=np.array([seed, count], np.uint64)).random_raw(count)
    return np.argsort(bits, kind="stable")
