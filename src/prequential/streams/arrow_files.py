"""Arrow files (also called Feather), in the file or the stream format, and saved Hugging Face data sets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from prequential.errors import BadInput
from prequential.streams.cache import file_hash, file_stamp, kept_file
from prequential.streams.encoding import Column
from prequential.streams.sorting import ROW
from prequential.streams.stream import in_reading_order
from prequential.streams.tables import BLOCK_ROWS, Table, without_views

MAGIC = b"ARROW1"


class ArrowTable(Table):
    """One or several Arrow files, memory-mapped.

    A folder is either a data set that was saved with Hugging Face's `save_to_disk` or holds .arrow, .feather or
    .ipc files, which are read in the order of their names. Files whose batches are compressed are unpacked once into
    the cache folder, because a compressed batch can only be read whole.

    Parameters
    ----------
    path
        A file or a folder.
    split
        Which part of a Hugging Face data set that has several, such as train.
    """

    def __init__(self, path: str | Path, *, split: str | None = None) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self._declared: dict[str, Any] = {}
        self.paths = paths = self._files(split)
        self._pieces = [_open(part) for part in paths]
        self.schema = common_schema(paths, [piece.schema for piece in self._pieces])
        blocks, starts, row = [], [0], 0
        for number, piece in enumerate(self._pieces):
            for batch, rows in enumerate(piece.rows):
                for start in range(0, rows, BLOCK_ROWS):
                    blocks.append((number, batch, start))
                    starts.append(row + min(start + BLOCK_ROWS, rows))
                row += rows
        self._blocks = np.array(blocks, np.int64).reshape(-1, 3)
        self.starts = np.array(starts)

    def block(self, i: int, columns: Sequence[Column]) -> tuple[pa.Table, dict[int, str]]:
        piece, batch, start = (int(part) for part in self._blocks[i])
        rows = self._pieces[piece].batch(batch).slice(start, int(self.starts[i + 1] - self.starts[i]))
        return fitted(pa.Table.from_batches([rows]), [column.name for column in columns], self.schema), {}

    def fingerprint(self) -> str:
        return f"arrow {file_hash(*self.paths)}"

    def declared_classes(self, label: str) -> int | None:
        names = self._declared.get(label, {}).get("names")
        return len(names) if isinstance(names, list) else None

    def _files(self, split: str | None) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        folder = self.path
        if (parts := _json(folder / "dataset_dict.json").get("splits")) is not None:
            if split is None and len(parts) > 1:
                self.note = (
                    f"of the splits {', '.join(parts)} only {'train' if 'train' in parts else parts[0]} (say split=…)"
                )
            split = split or ("train" if "train" in parts else parts[0])
            if split not in parts:
                raise BadInput(f"{folder} has no split {split!r}; its splits are {', '.join(parts)}")
            folder = folder / split
        elif split is not None:
            raise BadInput(f"{folder} has no splits, but split ({split!r}) was asked for")
        if listed := _json(folder / "state.json").get("_data_files"):
            self._declared = _json(folder / "dataset_info.json").get("features") or {}
            return [folder / entry["filename"] for entry in listed]
        found = in_reading_order(
            part for part in folder.rglob("*") if part.suffix.lower() in (".arrow", ".feather", ".ipc")
        )
        if not found:
            raise BadInput(f"{folder} holds no .arrow, .feather or .ipc files")
        return found


class SortedCopy(Table):
    """A table in another order, from the copy that `sort_rows` wrote; messages name the rows of the original."""

    def __init__(self, original: Table, path: Path) -> None:
        self.original = original
        self.name, self.schema, self.paths = original.name, original.schema, original.paths
        self.note, self.is_text = original.note, original.is_text
        self._batches = Batches(path)
        self.starts = np.cumsum([0, *self._batches.rows])

    def block(self, i: int, columns: Sequence[Column]) -> tuple[pa.Table, dict[int, str]]:
        return self.original.from_kept(self._kept(i), columns)

    def each_kept(
        self, columns: Sequence[Column], read: Sequence[Column]
    ) -> Iterator[tuple[pa.Table, pa.Table, dict[int, str]]]:
        for i in range(len(self._batches.rows)):
            kept = self._kept(i)
            yield kept, *self.original.from_kept(kept, read)

    def from_kept(self, kept: pa.Table, columns: Sequence[Column]) -> tuple[pa.Table, dict[int, str]]:
        return self.original.from_kept(kept, columns)

    def types(self, kept: pa.Table, label: str | None) -> pa.Schema:
        return self.original.types(kept, label)

    def where(self, row: int) -> str:
        i = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.original.where(self._batches.batch(i).column(ROW)[row - int(self.starts[i])].as_py())

    def fingerprint(self) -> str:
        return self.original.fingerprint()

    def declared_classes(self, label: str) -> int | None:
        return self.original.declared_classes(label)

    def _kept(self, i: int) -> pa.Table:
        return pa.Table.from_batches([self._batches.batch(i)]).drop_columns([ROW])


class Batches:
    """The record batches of a file in Arrow's file format, which lists them at its end."""

    def __init__(self, path: Path) -> None:
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self.schema = self._reader.schema
        self.rows = [self.batch(i).num_rows for i in range(self._reader.num_record_batches)]

    def batch(self, i: int) -> pa.RecordBatch:
        return self._reader.get_batch(i)


class Messages:
    """The record batches of a file in Arrow's stream format, found once by going from one to the next."""

    def __init__(self, path: Path) -> None:
        self._file = pa.memory_map(str(path))
        self.schema = pa.ipc.open_stream(self._file).schema
        self._file.seek(0)
        self._offsets: list[int] = []
        self.rows: list[int] = []
        while True:
            offset = self._file.tell()
            try:
                message = pa.ipc.read_message(self._file)
            except EOFError:
                break
            if message.type == "record batch":
                self._offsets.append(offset)
                self.rows.append(pa.ipc.read_record_batch(message, self.schema).num_rows)

    def batch(self, i: int) -> pa.RecordBatch:
        self._file.seek(self._offsets[i])
        return pa.ipc.read_record_batch(pa.ipc.read_message(self._file), self.schema)


def _open(path: Path) -> Batches | Messages:
    try:
        with path.open("rb") as file:
            is_file_format = file.read(len(MAGIC)) == MAGIC
        if is_file_format:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            if _is_packed(reader):
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
                return Batches(_unpacked(path, batches, reader.schema))
            return Batches(path)
        stream = pa.ipc.open_stream(pa.memory_map(str(path)))
        if any(pa.types.is_dictionary(found) for found in stream.schema.types):
            return Batches(_unpacked(path, iter(stream), stream.schema))
        return Messages(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise BadInput(f"{path} is no Arrow file: {error}") from None


def _is_packed(reader: pa.ipc.RecordBatchFileReader) -> bool:
    """Whether batches are compressed and so large that one cannot be unpacked for every block of rows."""
    if reader.num_record_batches == 0:
        return False
    before = pa.total_allocated_bytes()
    batch = reader.get_batch(0)  # a plain batch stays in the memory map
    return bool(batch.num_rows > 2 * BLOCK_ROWS and pa.total_allocated_bytes() > before)


def _unpacked(path: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Path:
    """A copy in the cache folder that can be read in small pieces: not compressed, and without shared dictionaries."""
    plain = without_dictionaries(schema)

    def write(to: Path) -> None:
        with pa.OSFile(str(to), "wb") as file, pa.ipc.new_file(file, plain) as writer:
            for batch in batches:
                writer.write_table(pa.Table.from_batches([batch]).cast(plain), max_chunksize=BLOCK_ROWS)

    return kept_file(f"unpacked-{file_hash(path)}-{file_stamp(path)}.arrow", write)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text())
    return content if isinstance(content, dict) else {}


def common_schema(paths: Sequence[Path], schemas: Sequence[pa.Schema]) -> pa.Schema:
    """What all parts can be read as: of whole numbers and others the others, of an empty column and another the other."""
    first = schemas[0]
    for path, schema in zip(paths, schemas, strict=True):
        for name in schema.names:
            if schema.names.count(name) > 1:
                raise BadInput(f"{path} has two columns called {name!r}; expected different names")
        if sorted(schema.names) != sorted(first.names):
            raise BadInput(
                f"{path} has the columns {', '.join(schema.names)}, but {paths[0]} has {', '.join(first.names)}"
            )
    if all(schema.names == first.names and schema.types == first.types for schema in schemas):
        return first
    common = without_dictionaries(first)
    for path, schema in zip(paths, schemas, strict=True):
        try:
            common = pa.unify_schemas([common, without_dictionaries(schema)], promote_options="permissive")
        except pa.ArrowTypeError:
            for field in without_dictionaries(schema):
                try:
                    pa.unify_schemas(
                        [pa.schema([common.field(field.name)]), pa.schema([field])], promote_options="permissive"
                    )
                except pa.ArrowTypeError:
                    raise BadInput(
                        f"{path}: column {field.name!r} has type {field.type}, but in the parts before "
                        f"({paths[0].name}, …) it has {common.field(field.name).type}"
                    ) from None
            raise
    return common


def fitted(rows: pa.Table, names: Sequence[str], schema: pa.Schema) -> pa.Table:
    """These columns of a part, as the schema of all parts has them."""
    rows = rows.select(list(names))
    for i, name in enumerate(names):
        wanted = schema.field(name).type
        if rows.column(i).type != wanted:
            rows = rows.set_column(i, name, rows.column(i).cast(wanted, safe=False))
    return without_views(rows)


def without_dictionaries(schema: pa.Schema) -> pa.Schema:
    """The schema with the values of dictionaries in their place."""
    return pa.schema(
        [(field.name, field.type.value_type if pa.types.is_dictionary(field.type) else field.type) for field in schema],
        schema.metadata,
    )
