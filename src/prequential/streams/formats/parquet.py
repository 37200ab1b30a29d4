"""Parquet: one file, or a folder of parts in the order of their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prequential.errors import BadInput
from prequential.streams.cache import file_hash, scratch_file
from prequential.streams.formats.arrow import Batches, check_swelling, common_schema, fitted
from prequential.streams.formats.encoding import Column
from prequential.streams.formats.parquet_pages import Pages
from prequential.streams.formats.table import BLOCK_BYTES, BLOCK_ROWS, Table
from prequential.streams.limits import Limit, reading, reason
from prequential.streams.stream import in_reading_order

GROUPS = 32  # unpacked row groups that are kept: more than the readers of a run
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
FILES = 64  # parts that are open at once


class ParquetTable(Table):
    """One or several Parquet files with the same columns; integers and floating-point numbers may be mixed.

    A row group can only be decoded from its beginning, and each reader that does so would hold megabytes for every
    column. So the row group that a reader comes to is unpacked into a scratch file in the cache folder, from where
    any row is read by memory map. The 32 used last are kept; their space is free again when the process ends, however
    it ends.

    Parameters
    ----------
    path
        A file, or a folder whose .parquet files are read in the order of their names. Folders called year=2024/month=1
        become columns.
    max_bytes
        How many bytes a page, or a block of rows, may unpack to in memory, and a row group on disk; see
        `prequential.streams.limits`.
    """

    def __init__(self, path: str | Path, *, max_bytes: int | None = None) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self.paths = [self.path] if self.path.is_file() else _parts_of(self.path)
        if not self.paths:
            raise BadInput(f"{self.path} holds no .parquet files")
        self._open = lru_cache(maxsize=FILES)(_open)
        self._max_bytes = max_bytes
        self._limits = [Limit(part, max_bytes=max_bytes) for part in self.paths]
        with reading(self.path):
            self._files = common_schema(self.paths, [self._open(part)[0].schema_arrow for part in self.paths])
            self._partition = _partition(self.path, self.paths, self._files.names)
            # those first, so that the last column of the files stays the last
            fields = [pa.field(name, values.type) for name, values in self._partition.items()]
            self.schema = pa.schema([*fields, *self._files], self._files.metadata)
            self._find_blocks()
        self._group = lru_cache(maxsize=GROUPS)(self._unpack)

    def _find_blocks(self) -> None:
        blocks, starts = [np.empty((0, 3), np.int64)], [np.zeros(1, np.int64)]
        self._rows_a_block = BLOCK_ROWS
        self._first_rows = []  # of each part
        row = 0
        for number, part in enumerate(self.paths):
            file, _ = self._open(part)
            self._first_rows.append(row)
            for group in range(file.metadata.num_row_groups):
                about = file.metadata.row_group(group)
                rows = _checked_rows(part, about, file.schema_arrow, self._max_bytes)
                if number == group == 0 and rows:
                    size = about.total_byte_size // rows
                    self._rows_a_block = int(np.clip(BLOCK_BYTES // max(1, size), 16, BLOCK_ROWS))
                firsts = np.arange(0, rows, self._rows_a_block)
                blocks.append(np.stack([np.full_like(firsts, number), np.full_like(firsts, group), firsts], 1))
                starts.append(row + np.minimum(firsts + self._rows_a_block, rows))
                row += rows
        self._blocks = np.concatenate(blocks)  # (blocks, 3): file, row group, first row in it
        self.starts = np.concatenate(starts)

    def block(self, i: int, columns: Sequence[Column]) -> tuple[pa.Table, dict[int, str]]:
        part, group, start = (int(number) for number in self._blocks[i])
        names = tuple(column.name for column in columns)
        with reading(self.paths[part]):
            return pa.Table.from_batches([self._group(part, group, names).batch(start // self._rows_a_block)]), {}

    def blocks(self, columns: Sequence[Column]) -> Iterator[tuple[pa.Table, dict[int, str]]]:
        names = tuple(column.name for column in columns)
        for part, path in enumerate(self.paths):
            for group in range(self._open(path)[0].metadata.num_row_groups):
                pieces = self._pieces(part, group, names)
                while True:
                    with reading(path):
                        rows = next(pieces, None)
                    if rows is None:
                        break
                    yield rows, {}

    def fingerprint(self) -> str:
        folders = "".join(f" {name} {values.to_pylist()}" for name, values in self._partition.items())
        return f"parquet {file_hash(*self.paths)}{folders}"

    def where(self, row: int) -> str:
        part = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        return f"{self.paths[part].name}, row {row - self._first_rows[part] + 1}"

    def _unpack(self, part: int, group: int, names: tuple[str, ...]) -> Batches:
        path = scratch_file()
        with pa.OSFile(str(path), "wb") as file:
            writer = None
            for rows in self._pieces(part, group, names):
                writer = writer or pa.ipc.new_file(file, rows.schema)
                writer.write_batch(rows.combine_chunks().to_batches()[0])
            if writer is not None:
                writer.close()
        batches = Batches(path, own=True)
        with suppress(OSError):  # Windows keeps a file that is in use
            path.unlink()
        return batches

    def _pieces(self, part: int, group: int, names: tuple[str, ...]) -> Iterator[pa.Table]:
        """The rows of a row group, always equally many at once, the last piece excepted."""
        held: list[pa.RecordBatch] = []
        path, limit = self.paths[part], self._limits[part]
        file, pages = self._open(path)
        columns = [name for name in names if name not in self._partition] or self._files.names[:1]
        size = pages.rows_at_once(file, group, columns, self._rows_a_block, limit)
        rows, found, expected = 0, 0, file.metadata.row_group(group).num_rows
        for batch in file.iter_batches(size, row_groups=[group], columns=columns, use_threads=False):
            batch.validate(full=True)
            for name, values in zip(batch.schema.names, batch.columns, strict=True):
                check_swelling(limit, f"{path}, column {name!r}", values)
            held.append(batch)
            limit.check(path, sum(part.nbytes for part in held), what="holds rows that unpack to")
            rows, found = rows + batch.num_rows, found + batch.num_rows
            while rows >= self._rows_a_block:
                whole = pa.Table.from_batches(held)
                yield self._fitted(part, whole.slice(0, self._rows_a_block), names)
                held = whole.slice(self._rows_a_block).to_batches()
                rows -= self._rows_a_block
        if found != expected:
            raise BadInput(f"{path}, row group {group} holds {found} rows, expected {expected}")
        if rows:
            yield self._fitted(part, pa.Table.from_batches(held), names)

    def _fitted(self, part: int, rows: pa.Table, names: tuple[str, ...]) -> pa.Table:
        for name in names:
            if name in self._partition:
                rows = rows.append_column(name, pa.repeat(self._partition[name][part], len(rows)))
        return fitted(rows, names, self.schema)


def _parts_of(folder: Path) -> list[Path]:
    """The parts below a folder; names with a dot or underscore in front are the notes of who wrote them."""
    found = (part for part in folder.rglob("*") if part.suffix.lower() in (".parquet", ".pq"))
    return in_reading_order(
        part for part in found if not any(piece.startswith((".", "_")) for piece in part.relative_to(folder).parts)
    )


def _partition(folder: Path, parts: Sequence[Path], names: Sequence[str]) -> dict[str, pa.Array]:
    """What the folders year=2024/month=1 say, by column: a value for each part, whole numbers or text."""
    if folder.is_file():
        return {}
    said = []
    for part in parts:
        pieces = [piece.split("=", 1) for piece in part.relative_to(folder).parts[:-1] if "=" in piece]
        said.append({unquote(name): unquote(value) for name, value in pieces})
        if said[-1].keys() != said[0].keys():
            raise BadInput(
                f"{part} lies in folders for {', '.join(said[-1]) or 'no column'}, but {parts[0]} for "
                f"{', '.join(said[0]) or 'no column'}; expected the same for all parts"
            )
    columns = {}
    for name in said[0]:
        if name in names:
            continue  # the files say it themselves
        texts = [None if values[name] == NO_VALUE else values[name] for values in said]
        numbers = all(text is None or re.fullmatch(r"-?\d{1,18}", text) for text in texts)
        columns[name] = pa.array([int(text) if numbers and text is not None else text for text in texts])
    return columns


def _checked_rows(path: Path, about: Any, schema: pa.Schema, max_bytes: int | None) -> int:
    """The rows of a row group, if what they take as plain columns is not far more than the file."""
    rows = int(about.num_rows)
    if rows < 0 or about.total_byte_size < 0:
        raise BadInput(f"{path}: a row group is said to have {rows} rows in {about.total_byte_size} bytes")
    plain = sum(found.bit_width for found in schema.types if pa.types.is_primitive(found))
    size = max(rows * max(plain, 8) // 8, int(about.total_byte_size))
    Limit(path, max_bytes=max_bytes, on_disk=True).check(path, size, what="holds a row group that unpacks to")
    return rows


def _open(path: Path) -> tuple[pq.ParquetFile, Pages]:
    try:
        file = pq.ParquetFile(path, memory_map=True, pre_buffer=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise BadInput(f"{path} is no Parquet file: {reason(error)}") from None
    return file, Pages(path)
