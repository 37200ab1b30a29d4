"""Parquet: one file, or a folder of parts in the order of their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prequential.errors import BadInput
from prequential.streams.arrow_files import Batches, common_schema, fitted
from prequential.streams.cache import file_hash, scratch_file
from prequential.streams.encoding import Column
from prequential.streams.stream import in_reading_order
from prequential.streams.tables import BLOCK_BYTES, BLOCK_ROWS, Table

GROUPS = 32  # unpacked row groups that are kept: more than the readers of a run
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
FILES = 64  # parts that are open at once


class ParquetTable(Table):
    """One or several Parquet files with the same columns; a column may be of whole numbers in one and of others in another.

    A row group can only be decoded from its beginning, and each reader that does so would hold megabytes for every
    column. So the row group that a reader comes to is unpacked into a scratch file in the cache folder, from where
    any row is read by memory map. The 32 used last are kept; their space is free again when the process ends, however
    it ends.

    Parameters
    ----------
    path
        A file, or a folder whose .parquet files are read in the order of their names. Folders called year=2024/month=1
        become columns.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self.paths = [self.path] if self.path.is_file() else _parts_of(self.path)
        if not self.paths:
            raise BadInput(f"{self.path} holds no .parquet files")
        self._open = lru_cache(maxsize=FILES)(_open)
        self._files = common_schema(self.paths, [self._open(part).schema_arrow for part in self.paths])
        self._partition = _partition(self.path, self.paths, self._files.names)
        # those first, so that the last column of the files stays the last
        self.schema = pa.schema([(name, values.type) for name, values in self._partition.items()]).with_metadata(
            self._files.metadata
        )
        for field in self._files:
            self.schema = self.schema.append(field)
        blocks, starts = [], [0]
        self._rows_a_block = BLOCK_ROWS
        self._first_rows = []  # of each part
        for number, part in enumerate(self.paths):
            file = self._open(part)
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
        batches = Batches(path)
        with suppress(OSError):  # Windows keeps a file that is in use
            path.unlink()
        return batches

    def _pieces(self, part: int, group: int, names: tuple[str, ...]) -> Iterator[pa.Table]:
        """The rows of a row group, always equally many at once, the last piece excepted."""
        held: list[pa.RecordBatch] = []
        rows = 0
        file = self._open(self.paths[part])
        columns = [name for name in names if name not in self._partition] or self._files.names[:1]
        for batch in file.iter_batches(self._rows_a_block, row_groups=[group], columns=columns, use_threads=False):
            held.append(batch)
            rows += batch.num_rows
            while rows >= self._rows_a_block:
                whole = pa.Table.from_batches(held)
                yield self._fitted(part, whole.slice(0, self._rows_a_block), names)
                held = whole.slice(self._rows_a_block).to_batches()
                rows -= self._rows_a_block
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


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, memory_map=True, pre_buffer=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise BadInput(f"{path} is no Parquet file: {error}") from None
