"""Images inside a table, as Hugging Face data sets keep them, or listed by path in one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from prequential.errors import BadInput, BadSetting
from prequential.streams.cache import cached_array, file_stamp
from prequential.streams.formats.encoding import Column, is_number, label_column, reading_type, whole
from prequential.streams.formats.encoding import labels as labels_of
from prequential.streams.formats.image_rows import SUFFIXES, ImageRows, files_hash
from prequential.streams.formats.sorting import look_at, time_keys
from prequential.streams.formats.table import SAMPLE, Table, default_label, index_columns, suffixes_of

PATH_NAMES = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img", "photo")
MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")  # how JPEG, PNG, … files begin
FIRST = 16  # values of a column that are looked at to tell whether it holds images
BLOCKS = 16  # blocks of paths that are kept, each about a megabyte at most


class TableRows(ImageRows):
    """The rows of a table, one column of which holds images and one labels.

    `first` are the first rows of the stream, where neither the table nor a time column orders it.
    """

    def __init__(
        self,
        table: Table,
        image: str | None,
        label: str | None,
        time: str | None,
        kinds: dict[str, str],
        on_bad_row: str,
        first: np.ndarray | None,
    ) -> None:
        self.table, self.name, self.on_bad_row = table, table.name, on_bad_row
        names = table.schema.names
        for name in (image, label, time, *kinds):
            if name is not None and name not in names:
                raise BadInput(f"{table.name} has no column {name!r}; its columns are {', '.join(names)}")
        image = image or image_column(table)
        if image is None:
            raise BadInput(
                f"{table.name} has no column of images that could be found; its columns are {', '.join(names)}; "
                "name it with image"
            )
        found = table.schema.field(image).type
        self._by_path = _is_text(found)
        if not (self._by_path or _is_bytes(found) or _is_struct(found)):
            raise BadInput(f"column {image!r} has type {found}, expected images: bytes, or paths as text")
        if time is None and first is None and self._by_path and "time" in names and image != "time" and label != "time":
            time = "time"
        label = label or default_label(names, {image, time, *index_columns(table.schema)})
        for use, name in (("the image", image), ("the time", time)):
            if label == name:  # x or the order would tell it
                raise BadInput(f"column {label!r} is the label and cannot also be {use}")
        if time == image:
            raise BadInput(f"column {image!r} is the image and cannot also be the time")
        self._image = Column(image, "category" if self._by_path else "image", found, 0)
        for name, kind in kinds.items():
            if name != label:
                raise BadSetting(
                    f"kinds says how column {name!r} is to be read, expected only the label {label!r}: nothing else "
                    "beside an image is read by its kind"
                )
            label_column(name, table.schema.field(name).type, kind)  # before the order is found, which can take long
        self.classes = table.declared_classes(label)
        self._base = _folder_of(table)
        # images are not kept: a block of them may be large, and is mapped from the disk where it can be
        self._block = lru_cache(maxsize=BLOCKS)(self._read_block) if self._by_path else self._read_block
        self._time = None if time is None else _time_column(table, time)
        if self._time is not None:
            text = f"{table.fingerprint()} {self._time} {on_bad_row}"
            name = f"image-order-{hashlib.sha256(text.encode()).hexdigest()[:32]}-{self.stamp()}"
            order = cached_array(name, self._in_time)
            self.order = None if len(order) == 1 and order[0] < 0 else order
            first = None if self.order is None else np.asarray(self.order[:SAMPLE])
        found = _label_type(table, label, first)  # now that it is known which rows come first
        self._label = label_column(label, found, kinds.get(label))
        self.folder = self._common_folder()

    def __len__(self) -> int:
        return len(self.table)

    def take(self, rows: np.ndarray) -> tuple[list[Path | bytes], list[Hashable], dict[int, str]]:
        sources: list[Path | bytes] = [b""] * len(rows)
        labels: list[Hashable] = [None] * len(rows)
        bad: dict[int, str] = {}
        for here, piece, wrong in self._pieces(rows):
            found, empty = labels_of(self._label, whole(piece.column(self._label.name)))
            values = piece.column(self._image.name).to_pylist()
            for i, (value, label) in enumerate(zip(values, found, strict=True)):
                source = self._source(value)
                what = wrong.get(i) or empty.get(i)
                if source is None:
                    what = what or f"column {self._image.name!r} is empty, expected an image"
                if what:
                    bad[int(here[i])] = f"{self.table.where(int(rows[here[i]]))}, {what}"
                sources[int(here[i])], labels[int(here[i])] = source or b"", label
        return sources, labels, bad

    def labels(self, rows: np.ndarray) -> list[Hashable]:
        labels: list[Hashable] = [None] * len(rows)
        for here, piece, wrong in self._pieces(rows):
            found, empty = labels_of(self._label, whole(piece.column(self._label.name)))
            for i in sorted(wrong | empty):
                raise BadInput(f"{self.table.where(int(rows[here[i]]))}, {wrong.get(i) or empty[i]}")
            for i, label in enumerate(found):
                labels[int(here[i])] = label
        return labels

    def undecodable(self, example: int, row: int, source: Path | bytes, why: str) -> str:
        if isinstance(source, bytes):
            return f"{self.table.where(row)}, column {self._image.name!r} cannot be decoded ({why}), expected an image"
        return (
            f"{self.table.where(row)}, column {self._image.name!r} is {str(source)!r}, which cannot be decoded "
            f"({why}), "
            "expected an image"
        )

    @cached_property
    def _hash(self) -> str:
        text = f"{self.table.fingerprint()} {self._image} {self._label} {self._time}"
        # whether images are inside or beside the table, the first rows tell: all of them may be hundreds of gigabytes
        sources, _, _ = self.take(np.arange(min(FIRST, len(self.table))))
        return f"{text} {files_hash(self._files)}" if any(isinstance(one, Path) for one in sources) else text

    def fingerprint(self) -> str:
        return self._hash

    def stamp(self) -> str:
        return file_stamp(*self.table.paths)

    def _files(self) -> Iterator[Path]:
        for rows, _ in self.table.blocks([self._image]):
            for value in rows.column(self._image.name).to_pylist():
                source = self._source(value)
                if isinstance(source, Path):
                    yield source

    def _common_folder(self) -> Path | None:
        """The folder in which the first files are, where there are files, and it."""
        sources, _, _ = self.take(np.arange(min(FIRST, len(self.table))))
        folders = {str(source.parent.absolute()) for source in sources if isinstance(source, Path)}
        common = Path(os.path.commonpath(folders)) if folders else None
        return common if common and common.is_dir() else None

    def _source(self, value: Any) -> Path | bytes | None:
        """A cell as the image it holds or names."""
        if isinstance(value, dict):
            value = value.get("bytes") or value.get("path")
        if isinstance(value, str):
            return self._base / value if value.strip() else None
        if self._by_path and isinstance(value, bytes):
            return self._base / value.decode(errors="replace")
        return value or None

    def _pieces(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, pa.Table, dict[int, str]]]:
        """These rows, one piece for each block: their places in `rows`, the rows, and what is wrong with them."""
        blocks = np.searchsorted(self.table.starts, rows, side="right") - 1
        for b in np.unique(blocks):
            here = np.flatnonzero(blocks == b)
            inside = rows[here] - self.table.starts[b]
            block, unread = self._block(int(b))
            wrong = {i: unread[row] for i, row in enumerate(inside.tolist()) if row in unread}
            yield here, block.take(pa.array(inside)), wrong

    def _read_block(self, b: int) -> tuple[pa.Table, dict[int, str]]:
        return self.table.block(b, [self._image, self._label])

    def _in_time(self) -> np.ndarray:
        """The rows that have a time, in its order; a single -1 where that is the order they are in."""
        assert self._time is not None
        keys, lacking, first = [], [], 0
        for rows, unread in self.table.blocks([self._time]):
            found, empty = time_keys(self._time, whole(rows.column(self._time.name)))
            for i in sorted(empty | unread):
                if self.on_bad_row == "stop":
                    raise BadInput(f"{self.table.where(first + i)}, {(empty | unread)[i]}")
                lacking.append(first + i)
            keys.append(found)
            first += len(rows)
        present = np.delete(np.arange(first), lacking)
        order = present[np.argsort(np.concatenate(keys)[present], kind="stable")]
        return np.array([-1]) if np.array_equal(order, np.arange(first)) else order


def image_column(table: Table) -> str | None:
    """The first column that holds images: as Hugging Face writes them, as bytes, or as paths of image files.

    A column of text holds paths if its first values all end as image files do, and either some of those files are
    there, seen from the table, or it is called path, file, image or the like.
    """
    for field in table.schema:
        if _is_struct(field.type):
            return str(field.name)
    columns = [
        Column(field.name, "category", field.type, 0)
        for field in table.schema
        if _is_text(field.type) or _is_bytes(field.type)
    ]
    rows, _ = next(table.blocks(columns), (None, None)) if columns else (None, None)
    if rows is None:
        return None
    base = _folder_of(table)
    for column in columns:
        values = [value for value in rows.column(column.name).slice(0, 4 * FIRST).to_pylist() if value][:FIRST]
        if values and all(_is_image(value) for value in values):
            texts = [value for value in values if isinstance(value, str)]
            if not texts or column.name.lower() in PATH_NAMES or any((base / text).is_file() for text in texts):
                return column.name
    return None


def _folder_of(table: Table) -> Path:
    """The folder that paths in a table are relative to."""
    place = getattr(table, "path", None)  # a data frame has none
    return Path() if place is None else place if place.is_dir() else place.parent


def table_in(folder: Path) -> bool:
    """Whether a folder holds Parquet or Arrow files and no image files."""
    found = suffixes_of(folder)
    return bool(found & {".parquet", ".pq", ".arrow", ".feather", ".ipc"}) and not found & SUFFIXES


def _label_type(table: Table, label: str, first: np.ndarray | None) -> pa.DataType:
    """The type of the labels; where the file does not say it, the first rows of the stream do."""
    if type(table).types is Table.types:
        return table.schema.field(label).type
    wanted = np.sort(np.arange(min(SAMPLE, len(table))) if first is None else first)
    kept, row = [], 0
    for piece, _, bad in table.blocks_to_store([Column(label, "", None, 0)], []):
        inside = wanted[np.searchsorted(wanted, row) : np.searchsorted(wanted, row + len(piece))] - row
        kept.append(piece.take(pa.array(np.setdiff1d(inside, list(bad)), pa.int64())))
        row += len(piece)
        if not len(wanted) or row > wanted[-1]:
            break
    sample = pa.concat_tables(kept)  # empty where all first rows have too few or too many fields
    return (table.types(sample, label) if len(sample) else table.schema).field(label).type


def _time_column(table: Table, name: str) -> Column:
    found = table.schema.field(name).type
    if pa.types.is_timestamp(found) or pa.types.is_date(found):
        return Column(name, "time", reading_type("time", found), 1)
    if not is_number(found):
        raise BadInput(f"time column {name!r} has type {found}, expected numbers or dates")
    if not pa.types.is_integer(found):
        return Column(name, "number", pa.float64(), 1)
    time = Column(name, "number", found, 1)
    numbers = replace(time, type=pa.float64())  # whole numbers at first, then perhaps others
    unread = look_at(table, time)[1]
    return numbers if unread and look_at(table, numbers)[1] < unread else time


def _is_image(value: Any) -> bool:
    """Whether a cell holds an encoded image, or a path that ends as one."""
    if isinstance(value, bytes):
        return value.startswith(MAGIC)
    return isinstance(value, str) and Path(value).suffix.lower() in SUFFIXES


def _is_struct(found: pa.DataType) -> bool:
    return bool(pa.types.is_struct(found)) and found.get_field_index("bytes") >= 0


def _is_bytes(found: pa.DataType) -> bool:
    return bool(pa.types.is_binary(found) or pa.types.is_large_binary(found) or pa.types.is_binary_view(found))


def _is_text(found: pa.DataType) -> bool:
    if pa.types.is_dictionary(found):
        found = found.value_type
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found))
