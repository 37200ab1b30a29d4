"""Parquet: one file, or a folder of parts in the order of their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prequential.errors import BadInput
from prequential.streams.arrow_files import Batches
from prequential.streams.cache import file_hash, scratch_file
from prequential.streams.encoding import Column
from prequential.streams.stream import in_reading_order
from prequential.streams.tables import BLOCK_BYTES, BLOCK_ROWS, Table

GROUPS = 32  # unpacked row groups that are kept: more than the readers of a run
FILES = 64  # parts that are open at once


class ParquetTable(Table):
    """One or several Parquet files with the same columns.

    A row group can only be decoded from its beginning, and each reader that does so would hold megabytes for every
    column. So the row group that a reader comes to is unpacked into a scratch file in the cache folder, from where
    any row is read by memory map. The 32 used last are kept; their space is free again when the process ends, however
    it ends.

    Parameters
    ----------
    path
        A file, or a folder whose .parquet files are read in the order of their names.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self.paths = (
            [self.path]
            if self.path.is_file()
            else in_reading_order(part for part in self.path.rglob("*") if part.suffix.lower() in (".parquet", ".pq"))
        )
        if not self.paths:
            raise BadInput(f"{self.path} holds no .parquet files")
        self._open = lru_cache(maxsize=FILES)(_open)
        self.schema = self._open(self.paths[0]).schema_arrow
        blocks, starts = [], [0]
        self._rows_a_block = BLOCK_ROWS
        self._first_rows = []  # of each part
        for number, part in enumerate(self.paths):
            file = self._open(part)
            self._check(part, file.schema_arrow)
            self._first_rows.append(starts[-1])
            for group in range(file.metadata.num_row_groups):
                about = file.metadata.row_group(group)
                if number == group == 0 and about.num_rows:
                    size = about.total_byte_size // about.num_rows
                    self._rows_a_block = int(np.clip(BLOCK_BYTES // max(1, size), 16, BLOCK_ROWS))
                for start in range(0, about.num_rows, self._rows_a_block):
                    blocks.append((number, group, start))
                    starts.append(starts[-1] + min(self._rows_a_block, about.num_rows - start))
        self._blocks = np.array(blocks, np.int64).reshape(-1, 3)
        self.starts = np.array(starts)
        self._group = lru_cache(maxsize=GROUPS)(self._unpack)

    def block(self, i: int, columns: Sequence[Column]) -> tuple[pa.Table, dict[int, str]]:
        part, group, start = (int(number) for number in self._blocks[i])
        names = tuple(column.name for column in columns)
        return pa.Table.from_batches([self._group(part, group, names).batch(start // self._rows_a_block)]), {}

    def each(self, columns: Sequence[Column]) -> Iterator[tuple[pa.Table, dict[int, str]]]:
        names = tuple(column.name for column in columns)
        for part in range(len(self.paths)):
            for group in range(self._open(self.paths[part]).metadata.num_row_groups):
                for rows in self._pieces(part, group, names):
                    yield rows, {}

    def fingerprint(self) -> str:
        return f"parquet {file_hash(*self.paths)}"

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
        batches = Batches(path)
        with suppress(OSError):  # Windows keeps a file that is in use
            path.unlink()
        return batches

    def _pieces(self, part: int, group: int, names: tuple[str, ...]) -> Iterator[pa.Table]:
        """The rows of a row group, always equally many at once, the last piece excepted."""
        held: list[pa.RecordBatch] = []
        rows = 0
        file = self._open(self.paths[part])
        for batch in file.iter_batches(self._rows_a_block, row_groups=[group], columns=list(names), use_threads=False):
            held.append(batch)
            rows += batch.num_rows
            while rows >= self._rows_a_block:
                whole = pa.Table.from_batches(held)
                yield whole.slice(0, self._rows_a_block)
                held = whole.slice(self._rows_a_block).to_batches()
                rows -= self._rows_a_block
        if rows:
            yield pa.Table.from_batches(held)

    def _check(self, part: Path, schema: pa.Schema) -> None:
        if schema.names != self.schema.names:
            raise BadInput(
                f"{part} has the columns {', '.join(schema.names)}, but {self.paths[0]} has {', '.join(self.schema.names)}"
            )
        for field, expected in zip(schema, self.schema, strict=True):
            if field.type != expected.type and not pa.types.is_null(expected.type) and not pa.types.is_null(field.type):
                raise BadInput(
                    f"{part}: column {field.name!r} has type {field.type}, but in {self.paths[0]} it has {expected.type}"
                )


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, memory_map=True, pre_buffer=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise BadInput(f"{path} is no Parquet file: {error}") from None
