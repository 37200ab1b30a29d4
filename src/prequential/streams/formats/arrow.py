"""Arrow files (also called Feather), in the file or the stream format, and saved Hugging Face data sets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prequential.errors import BadInput
from prequential.streams.cache import cached_file, file_hash, file_stamp
from prequential.streams.formats.arrow_metadata import (
    BATCH,
    DICTIONARY,
    MAGIC,
    About,
    batches_of_file,
    messages_of_stream,
)
from prequential.streams.formats.encoding import Column, shown
from prequential.streams.formats.table import BLOCK_ROWS, ROW, Table, without_views
from prequential.streams.limits import Limit, reading, reason
from prequential.streams.stream import in_reading_order


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
    max_bytes
        How many bytes a compressed batch may unpack to in memory, and a file on disk; see `prequential.streams.limits`.
    """

    def __init__(self, path: str | Path, *, split: str | None = None, max_bytes: int | None = None) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self._declared: dict[str, Any] = {}
        with reading(self.path):
            self.paths = paths = self._files(split)
            self._pieces = [_open(part, max_bytes) for part in paths]
            self.schema = common_schema(paths, [piece.schema for piece in self._pieces])
        blocks, row = [np.empty((0, 4), np.int64)], 0
        for number, piece in enumerate(self._pieces):
            for batch, rows in enumerate(piece.rows):
                starts = np.arange(0, rows, BLOCK_ROWS)
                ends = row + np.minimum(starts + BLOCK_ROWS, rows)
                blocks.append(np.stack([np.full_like(starts, number), np.full_like(starts, batch), starts, ends], 1))
                row += rows
        self._blocks = np.concatenate(
            blocks
        )  # (blocks, 4): file, batch, first row in it, row of the table after the last
        self.starts = np.concatenate([[0], self._blocks[:, 3]])

    def block(self, i: int, columns: Sequence[Column]) -> tuple[pa.Table, dict[int, str]]:
        piece, batch, start = (int(part) for part in self._blocks[i, :3])
        names = list(dict.fromkeys(column.name for column in columns))
        with reading(self.paths[piece]):
            rows = self._pieces[piece].rows_of(batch, start, int(self.starts[i + 1] - self.starts[i]), names)
            return fitted(pa.Table.from_batches([rows]), [column.name for column in columns], self.schema), {}

    def fingerprint(self) -> str:
        return f"arrow {file_hash(*self.paths)}"

    def declared_classes(self, label: str) -> int | None:
        about = self._declared.get(label)
        names = about.get("names") if isinstance(about, dict) else None
        return len(names) if isinstance(names, list) else None

    def _files(self, split: str | None) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        folder = self.path
        if (parts := _json(folder / "dataset_dict.json").get("splits")) is not None:
            if not (isinstance(parts, list) and parts and all(isinstance(part, str) for part in parts)):
                raise BadInput(
                    f"{folder / 'dataset_dict.json'} has the splits {shown(parts)}, expected a list of names"
                )
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
            declared = _json(folder / "dataset_info.json").get("features")
            self._declared = declared if isinstance(declared, dict) else {}
            return _listed(folder, listed)
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
        self.note, self.is_text, self.written = original.note, original.is_text, original.written
        with reading(path):
            self._batches = Batches(path)
        self.starts = np.cumsum([0, *self._batches.rows])

    def block(self, i: int, columns: Sequence[Column]) -> tuple[pa.Table, dict[int, str]]:
        return self.original.from_stored(self._kept(i), columns)

    def blocks_to_store(
        self, columns: Sequence[Column], read: Sequence[Column]
    ) -> Iterator[tuple[pa.Table, pa.Table, dict[int, str]]]:
        for i in range(len(self._batches.rows)):
            kept = self._kept(i)
            yield kept, *self.original.from_stored(kept, read)

    def from_stored(self, kept: pa.Table, columns: Sequence[Column]) -> tuple[pa.Table, dict[int, str]]:
        return self.original.from_stored(kept, columns)

    def types(self, kept: pa.Table, label: str | None) -> pa.Schema:
        return self.original.types(kept, label)

    def where(self, row: int) -> str:
        i = int(np.searchsorted(self.starts, row, side="right")) - 1
        rows = self._batches.rows_of(i, row - int(self.starts[i]), 1, [ROW])
        return self.original.where(rows.column(0)[0].as_py())

    def fingerprint(self) -> str:
        return self.original.fingerprint()

    def declared_classes(self, label: str) -> int | None:
        return self.original.declared_classes(label)

    def _kept(self, i: int) -> pa.Table:
        return pa.Table.from_batches([self._batches.rows_of(i, 0, self._batches.rows[i])]).drop_columns([ROW])


class Batches:
    """The record batches of a file in Arrow's file format, which lists them at its end.

    `own`: the file was just written by this process, and nothing in it need be checked.
    """

    def __init__(self, path: Path, *, max_bytes: int | None = None, own: bool = False) -> None:
        file = pa.memory_map(str(path))
        self.unpacked = 0  # bytes of the largest batch
        if own:
            self._reader = pa.ipc.open_file(file)
            self.rows = [self._reader.get_batch(i).num_rows for i in range(self._reader.num_record_batches)]
        else:
            found, coded = batches_of_file(path, memoryview(file.read_buffer()).cast("B"))
            self._reader = pa.ipc.open_file(file)
            self.rows = [about.rows for about in found]
            self.packed = any(about.packed and about.rows > 2 * BLOCK_ROWS for about in found)
            self.unpacked = _largest(found, coded)
        self.schema = self._reader.schema
        self._checked = None if own else _Checked(path, max_bytes)

    def batch(self, i: int) -> pa.RecordBatch:
        return self._reader.get_batch(i)

    def rows_of(self, i: int, start: int, count: int, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """Some rows of a batch, in which nothing points beyond what is there."""
        batch = self.batch(i)
        batch = batch if names is None else batch.select(list(names))
        rows = batch.slice(start, count)
        if self._checked is not None:
            self._checked(i, batch, rows)
        return rows


class Messages(Batches):
    """The record batches of a file in Arrow's stream format, found once by going from one to the next."""

    def __init__(self, path: Path, *, max_bytes: int | None = None) -> None:
        self._file = pa.memory_map(str(path))
        try:
            self.schema = pa.ipc.open_stream(self._file).schema
        except pa.ArrowInvalid as error:
            raise BadInput(f"{path} is no Arrow file: {reason(error)}") from None
        self._file.seek(0)
        every = messages_of_stream(path, memoryview(self._file.read_buffer()).cast("B"))
        found = [about for about in every if about.kind == BATCH]
        self._offsets = [about.offset for about in found]
        self.rows = [about.rows for about in found]
        self.packed = False  # what comes as a stream comes in small batches
        self.unpacked = _largest(found, [about for about in every if about.kind == DICTIONARY])
        self._checked = _Checked(path, max_bytes)

    def batch(self, i: int) -> pa.RecordBatch:
        self._file.seek(self._offsets[i])
        return pa.ipc.read_record_batch(pa.ipc.read_message(self._file), self.schema)


class _Checked:
    """Checks that rows of batches point nowhere beyond them, before anything reads them: Arrow would crash there.

    Of plain columns the rows are checked whenever they are read, which takes a small part of the time of decoding
    them. What lists, structs and dictionaries point to can only be checked as a whole: once for each batch.
    """

    def __init__(self, path: Path, max_bytes: int | None) -> None:
        self._path = path
        self._known: set[tuple[int, str]] = set()  # columns that were checked as a whole, by batch
        self._limit = Limit(path, max_bytes=max_bytes)

    def __call__(self, i: int, batch: pa.RecordBatch, rows: pa.RecordBatch) -> None:
        for place, (name, values) in enumerate(zip(rows.schema.names, rows.columns, strict=True)):
            try:
                if not (pa.types.is_nested(values.type) or pa.types.is_dictionary(values.type)):
                    values.validate(full=True)
                elif (i, name) not in self._known:
                    batch.column(place).validate(full=True)
                    self._known.add((i, name))
            except pa.ArrowInvalid as error:
                raise BadInput(f"{self._path}: column {name!r} of batch {i} is damaged: {reason(error)}") from None
            check_swelling(self._limit, f"{self._path}, column {name!r}", values)


def check_swelling(limit: Limit, name: str, values: pa.Array) -> None:
    """Refuses rows that share a value, in a dictionary or by views, so long that one copy for each does not fit."""
    coded = pa.types.is_dictionary(values.type)
    texts = values.dictionary if coded else values
    is_view = pa.types.is_string_view(texts.type) or pa.types.is_binary_view(texts.type)
    if not (coded or is_view) or len(values) * texts.nbytes <= limit.bytes:
        return
    if is_view:  # the first of the four numbers of a view is its length
        views = np.frombuffer(texts.buffers()[1], np.int32)[::4][texts.offset : texts.offset + len(texts)]
        lengths = pa.array(np.where(texts.is_valid().to_numpy(zero_copy_only=False), views, 0), pa.int64())
    elif is_bytes(texts.type):
        lengths = pc.binary_length(texts).cast(pa.int64())
    else:
        return  # numbers and the like are as small as what points to them
    if coded:
        lengths = lengths.take(values.indices)
    limit.check(name, pc.sum(lengths).as_py() or 0, what="holds")


def is_bytes(found: pa.DataType) -> bool:
    """Whether values of a type are text or bytes, of any length, behind offsets."""
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(is_kind(found) for is_kind in kinds)


def _open(path: Path, max_bytes: int | None) -> Batches:
    with reading(path):
        with path.open("rb") as file:
            is_file_format = file.read(len(MAGIC)) == MAGIC
        batches = (Batches if is_file_format else Messages)(path, max_bytes=max_bytes)
        Limit(path, max_bytes=max_bytes).check(path, batches.unpacked, what="holds a batch that unpacks to")
        coded = any(pa.types.is_dictionary(found) for found in batches.schema.types)
        if is_file_format and batches.packed:
            return Batches(_unpacked(path, _each(batches), batches.schema, max_bytes))
        if not is_file_format and coded:
            stream = pa.ipc.open_stream(pa.memory_map(str(path)))
            return Batches(_unpacked(path, _validated(path, stream, max_bytes), stream.schema, max_bytes))
        return batches


def _each(batches: Batches) -> Iterator[pa.RecordBatch]:
    return (batches.rows_of(i, 0, rows) for i, rows in enumerate(batches.rows))


def _validated(path: Path, stream: Iterable[pa.RecordBatch], max_bytes: int | None) -> Iterator[pa.RecordBatch]:
    check = _Checked(path, max_bytes)
    for i, batch in enumerate(stream):
        check(i, batch, batch)
        yield batch


def _largest(*found: Sequence[About]) -> int:
    return max((about.size for part in found for about in part if about.packed), default=0)


def _unpacked(path: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema, max_bytes: int | None) -> Path:
    """A copy in the cache folder that can be read in small pieces: not compressed, and without shared dictionaries."""
    plain = without_dictionaries(schema)
    limit = Limit(path, max_bytes=max_bytes, on_disk=True)

    def write(to: Path) -> None:
        with pa.OSFile(str(to), "wb") as file, pa.ipc.new_file(file, plain) as writer:
            for batch in batches:
                writer.write_table(pa.Table.from_batches([batch]).cast(plain), max_chunksize=BLOCK_ROWS)
                limit.check(path, file.tell(), at_least=True)

    return cached_file(f"unpacked-{file_hash(path)}-{file_stamp(path)}.arrow", write)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    with reading(path):
        content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def _listed(folder: Path, entries: Any) -> list[Path]:
    """The files that state.json lists; they lie in its folder."""
    names = [entry.get("filename") if isinstance(entry, dict) else entry for entry in entries]
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise BadInput(f"{folder / 'state.json'} lists {shown(name)}, expected the name of a file beside it")
        if not (folder / name).is_file():
            raise BadInput(f"{folder / 'state.json'} lists {shown(name)}, but {folder} holds no such file")
    return [folder / str(name) for name in names]


def common_schema(paths: Sequence[Path], schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The schema that fits all parts: integers give way to other numbers, and empty columns to any type."""
    first = schemas[0]
    for path, schema in zip(paths, schemas, strict=True):
        if twice := [name for name, count in Counter(schema.names).items() if count > 1]:
            raise BadInput(f"{path} has two columns called {twice[0]!r}; expected different names")
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
