"""Streams of images that lie inside a table, as Hugging Face data sets keep them."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from prequential.errors import BadInput, BadSetting
from prequential.streams.cache import kept_array
from prequential.streams.encoding import Column, label_column, labels
from prequential.streams.images import Decoder
from prequential.streams.stream import Chunk, Stream
from prequential.streams.tables import LABEL_NAMES, Table, as_table


class ImageTableStream(Stream):
    """A table with a column of encoded images and a column of labels, in the order of its rows.

    Parameters
    ----------
    source
        As in `TableStream`: Parquet, Arrow, a saved Hugging Face data set.
    image
        The column of the images, either bytes or a struct with a field `bytes`; by default the first such column.
    label
        The column of the labels; by default one called label, y, target or class.
    size, grey, on_bad_row, workers
        As in `ImageStream`.
    classes
        How many labels there can be, or which; the file may declare it.
    """

    def __init__(
        self,
        source: Any,
        *,
        image: str | None = None,
        label: str | None = None,
        size: int | tuple[int, int] | None = None,
        grey: bool = False,
        classes: int | Sequence[Hashable] | None = None,
        on_bad_row: str = "stop",
        workers: int | None = None,
    ) -> None:
        if on_bad_row not in ("stop", "skip"):
            raise BadSetting(f"on_bad_row ({on_bad_row!r}) must be 'stop' or 'skip'")
        self.table = as_table(source)
        image = image or image_column(self.table)
        names = self.table.schema.names
        label = label or next((name for name in names if name.lower() in LABEL_NAMES), None)
        for name, what in ((image, "image"), (label, "label")):
            if name not in names:
                raise BadInput(
                    f"{self.table.name} has no column {name!r} for the {what}; its columns are {', '.join(names)}"
                )
        assert image is not None
        assert label is not None
        self._image = Column(image, "image", self.table.schema.field(image).type, 0)
        self._label = label_column(label, self.table.schema.field(label).type)
        self.classes = classes if classes is not None else self.table.declared_classes(label)
        self.grey, self.on_bad_row, self.skipped = grey, on_bad_row, 0
        self.decoder = Decoder(workers)
        self.size = (size, size) if isinstance(size, int) else size or self._first_size()
        self._index: np.ndarray | None = None  # which row each example is; None: the same
        if on_bad_row == "skip":
            bad = kept_array(f"bad-images-{self.fingerprint()}", self._find_bad)
            self.skipped = len(bad)
            self._index = np.delete(np.arange(len(self.table)), bad) if len(bad) else None

    def __len__(self) -> int:
        return len(self.table) if self._index is None else len(self._index)

    def fingerprint(self) -> str:
        """A hash of the file's content and of how it is read."""
        text = f"{self.table.fingerprint()} {self._image} {self._label} {self.size} {self.grey} {self.on_bad_row}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _read(self, start: int, stop: int) -> Chunk:
        rows = np.arange(start, stop) if self._index is None else self._index[start:stop]
        images, ys = [], []
        for first, piece in self._pieces(rows):
            found, bad = labels(self._label, piece.column(self._label.name).combine_chunks())
            for i, image in enumerate(self.decoder(self._bytes(piece), self.size, self.grey)):
                if isinstance(image, str) or i in bad:
                    what = bad.get(i, f"column {self._image.name!r} cannot be decoded ({image})")
                    raise BadInput(f"{self.table.where(int(rows[first + i]))}, {what}")
                images.append(image)
            ys += found
        return Chunk(np.stack(images), ys)

    def _pieces(self, rows: np.ndarray) -> list[tuple[int, pa.Table]]:
        """These rows, one piece for each block they lie in."""
        blocks = np.searchsorted(self.table.starts, rows, side="right") - 1
        pieces = []
        for b in np.unique(blocks):
            here = np.flatnonzero(blocks == b)
            block, _ = self.table.block(int(b), [self._image, self._label])
            pieces.append((int(here[0]), block.take(pa.array(rows[here] - self.table.starts[b]))))
        return pieces

    def _bytes(self, rows: pa.Table) -> list[bytes]:
        column = rows.column(self._image.name).to_pylist()
        return [(value.get("bytes") if isinstance(value, dict) else value) or b"" for value in column]

    def _first_size(self) -> tuple[int, int]:
        what = ""
        for rows, _ in self.table.each([self._image]):
            for image in self.decoder(self._bytes(rows), None, self.grey):
                if not isinstance(image, str):
                    return int(image.shape[0]), int(image.shape[1])
                what = what or image
                if self.on_bad_row == "stop":
                    raise BadInput(f"{self.table.where(0)}, column {self._image.name!r} cannot be decoded ({what})")
        raise BadInput(f"{self.table.name}: none of the {len(self.table)} images can be decoded ({what})")

    def _find_bad(self) -> np.ndarray:
        bad, row = [], 0
        for rows, _ in self.table.each([self._image, self._label]):
            _, unlabelled = labels(self._label, rows.column(self._label.name).combine_chunks())
            found = self.decoder(self._bytes(rows), self.size, self.grey)
            bad += [row + i for i, image in enumerate(found) if isinstance(image, str) or i in unlabelled]
            row += len(rows)
        return np.array(bad, np.int64)


def image_column(table: Table) -> str | None:
    """The first column that holds encoded images, as Hugging Face writes them: a struct of bytes and path."""
    for field in table.schema:
        if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0:
            return str(field.name)
    return None
