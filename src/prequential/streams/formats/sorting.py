"""Sorting tables by time, out of core: sorted runs on disk and a merge."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prequential.errors import BadInput
from prequential.streams.cache import cached_file, file_stamp
from prequential.streams.formats.arrow import SortedCopy
from prequential.streams.formats.csv_rows import DATE
from prequential.streams.formats.encoding import (
    NUMBER,
    Column,
    cast,
    is_number,
    is_plain_text,
    reading_type,
    shown,
    whole,
)
from prequential.streams.formats.table import ROW, Table

SAMPLE = 4096  # rows from which types are decided; with more bad values, a column of whole numbers is none
RUN_BYTES = 128 * 2**20  # how much is sorted in memory at once
BATCH_ROWS = 4096  # rows read and written at once, at most
BATCH_BYTES = 2**20  # and how much they should take
KEY = "__key__"


def time_column(table: Table, name: str) -> Column:
    """A column to order by."""
    found = table.schema.field(name).type
    if is_number(found):
        return Column(name, "number", found if pa.types.is_integer(found) else pa.float64(), 1)
    if pa.types.is_timestamp(found) or pa.types.is_date(found):
        return Column(name, "time", reading_type("time", found), 1)
    if pa.types.is_time(found):
        raise BadInput(f"time column {name!r} holds times of day without a day, expected numbers or dates")
    if pa.types.is_null(found):
        raise BadInput(f"time column {name!r} is empty in the first {SAMPLE} rows, expected numbers or dates")
    column = Column(name, "category", pa.string(), 1)
    at, example = 0, None
    if table.is_text or pa.types.is_string(found) or pa.types.is_large_string(found):
        for rows, _ in table.blocks([column]):
            values = rows.column(name)
            pattern = f"{NUMBER}|{DATE}" if table.is_text else DATE
            strange = pc.fill_null(pc.invert(pc.match_substring_regex(values, pattern)), False)
            if (place := pc.index(strange, True).as_py()) >= 0:
                at, example = at + place, values[place].as_py()
                break
            at += len(values)
    if example is None and at:  # text that is dates in every row
        return Column(name, "time", pa.timestamp("us"), 1)
    if example is None:
        raise BadInput(f"time column {name!r} has type {found}, expected numbers or dates")
    remedy = "say how dates are written, such as dates='%d.%m.%Y'" if table.is_text else "convert the column to dates"
    raise BadInput(
        f"{table.where(at)}, time column {name!r} is {shown(example)}, expected numbers or dates (ISO 8601); {remedy}"
    )


def in_order(table: Table, time: Column, names: Sequence[str], on_bad_row: str) -> tuple[Table, Column]:
    """The table in the order of time, and how the times are read."""
    whole_numbers = pa.types.is_integer(time.type)
    is_sorted, unread, complaint = look_at(table, time, most=SAMPLE if whole_numbers else np.inf)
    if unread and whole_numbers:  # at first, and then perhaps others
        floats = replace(time, type=pa.float64())
        looked = look_at(table, floats)
        if looked[1] < unread or unread > SAMPLE:
            time, (is_sorted, unread, complaint) = floats, looked
    if complaint and on_bad_row == "stop":
        raise BadInput(complaint)
    if not is_sorted:
        wanted = [Column(name, "", None, 0) for name in dict.fromkeys([*names, time.name])]
        table = table.sorted_by(time.name) or _sorted_copy(table, time, wanted, on_bad_row)
    return table, time


def _sorted_copy(table: Table, time: Column, columns: Sequence[Column], on_bad_row: str) -> Table:
    what = f"{table.fingerprint()} {time} {[column.name for column in columns]} {on_bad_row}"
    name = f"sorted-{hashlib.sha256(what.encode()).hexdigest()[:32]}-{file_stamp(*table.paths)}.arrow"
    try:
        path = cached_file(name, lambda path: sort_rows(rows_with_times(table, time, columns), path))
    except OSError as error:
        raise BadInput(
            f"{table.name} is not in the order of {time.name!r}, and a sorted copy cannot be written ({error}); "
            "set PREQUENTIAL_CACHE to a folder that can be"
        ) from None
    return SortedCopy(table, path)


def look_at(table: Table, time: Column, most: float = np.inf) -> tuple[bool, int, str]:
    """Whether the rows are in the order of time, how many cannot be read, and the first complaint.

    Ends early where more than `most` cannot be read: each of those takes long.
    """
    last, is_sorted, unread, complaint, row = None, True, 0, "", 0
    for rows, bad in table.blocks([time]):
        keys, empty = time_keys(time, whole(rows.column(time.name)))
        unread += len(bad)
        bad = empty | bad
        if bad:
            complaint = complaint or f"{table.where(row + min(bad))}, {bad[min(bad)]}"
            keys = np.delete(keys, list(bad))
        if len(keys) and ((last is not None and keys[0] < last) or (keys[1:] < keys[:-1]).any()):
            is_sorted = False
        last = keys[-1] if len(keys) else last
        row += len(rows)
        if unread > most:
            break
    return is_sorted, unread, complaint


def rows_with_times(table: Table, time: Column, columns: Sequence[Column]) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """The rows that have a time, as a copy keeps them, and their times, block by block."""
    row = 0
    for kept, rows, bad in table.blocks_to_store(columns, [time]):
        keys, empty = time_keys(time, whole(rows.column(time.name)))
        good = np.setdiff1d(np.arange(len(keys)), [*bad, *empty])
        yield keys[good], kept.take(pa.array(good)).append_column(ROW, pa.array(row + good))
        row += len(kept)


def time_keys(time: Column, values: pa.Array) -> tuple[np.ndarray, dict[int, str]]:
    """The times as numbers that can be compared, and the rows that have none."""
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    unread: dict[int, str] = {}
    if is_plain_text(values.type):
        values, unread = cast(time, values, time.type)
    known = values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(values.type):
        keys = values.to_numpy(zero_copy_only=False)
        known = known & ~np.isnan(keys)
    else:
        if pa.types.is_date32(values.type):
            values = values.cast(pa.int32())
        if not pa.types.is_uint64(values.type):
            values = values.cast(pa.int64())
        keys = pc.fill_null(values, pa.scalar(0, values.type)).to_numpy(zero_copy_only=False)
    empty = {int(i): f"column {time.name!r} is missing, expected a time to order by" for i in np.flatnonzero(~known)}
    return keys, empty | unread


def sort_rows(blocks: Iterator[tuple[np.ndarray, pa.Table]], path: Path) -> None:
    """Writes the rows of these blocks, sorted by their keys, to an Arrow file; rows with equal keys keep their order.

    Memory: one run of rows, and one batch of each run during the merge.
    """
    folder = path.with_name(f".{path.name}.{os.getpid()}.runs")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        runs, batch = _write_runs(blocks, folder)
        if not runs:
            raise BadInput("there are no rows to sort: none of them can be used")
        temporary = folder / "merged"
        _merge(runs, temporary, batch)
        temporary.replace(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_runs(blocks: Iterator[tuple[np.ndarray, pa.Table]], folder: Path) -> tuple[list[Path], int]:
    """The runs, and how many rows a batch has: fewer where rows are wide."""
    runs: list[Path] = []
    held: list[pa.Table] = []
    size, batch = 0, BATCH_ROWS

    def write() -> None:
        nonlocal batch
        run = pa.concat_tables(held)
        if not runs:
            batch = max(min(16, BATCH_ROWS), min(BATCH_ROWS, BATCH_BYTES * len(run) // max(1, run.nbytes)))
        order = np.argsort(run.column(KEY).to_numpy(), kind="stable")
        runs.append(folder / f"{len(runs)}")
        _write(runs[-1], iter([run.take(pa.array(order))]), run.schema, batch)
        held.clear()

    for keys, block in blocks:
        held.append(block.append_column(KEY, pa.array(keys)))
        size += held[-1].nbytes
        if size >= RUN_BYTES:
            write()
            size = 0
    if any(len(block) for block in held):
        write()
    return runs, batch


def _merge(runs: list[Path], path: Path, batch: int) -> None:
    files = [pa.memory_map(str(run)) for run in runs]
    readers = [pa.ipc.open_file(file) for file in files]
    _write(path, _merged(readers), readers[0].schema.remove(readers[0].schema.get_field_index(KEY)), batch)
    for file in files:
        file.close()


def _merged(readers: list[pa.ipc.RecordBatchFileReader]) -> Iterator[pa.Table]:
    """The rows of all runs in order, in pieces of about a batch."""
    schema = readers[0].schema
    position = [0] * len(readers)  # the next batch of each run
    held = [schema.empty_table() for _ in readers]
    while True:
        more = []  # runs that have rows beyond those held
        for run, reader in enumerate(readers):
            if len(held[run]) == 0 and position[run] < reader.num_record_batches:
                held[run] = pa.Table.from_batches([reader.get_batch(position[run])])
                position[run] += 1
            if position[run] < reader.num_record_batches:
                more.append(run)
        if not any(len(rows) for rows in held):
            return
        keys = [rows.column(KEY).to_numpy() for rows in held]
        # Up to the smallest key at which some run may go on, everything is known. Of rows with that very key, only
        # those of runs up to that one can go out: the later ones must wait for its next batch.
        cut, first = min(((keys[run][-1], run) for run in more), default=(None, len(readers)))
        out = []
        for run, rows in enumerate(held):
            if cut is None:
                taken = len(rows)
            else:
                taken = int(np.searchsorted(keys[run], cut, side="right" if run <= first else "left"))
            out.append(rows.slice(0, taken))
            held[run] = rows.slice(taken)
        piece = pa.concat_tables(out)
        order = np.argsort(piece.column(KEY).to_numpy(), kind="stable")
        yield piece.take(pa.array(order)).drop_columns([KEY])


def _write(path: Path, pieces: Iterator[pa.Table], schema: pa.Schema, batch: int) -> None:
    """An Arrow file with batches of equal size, the last one excepted."""
    rest = schema.empty_table()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for piece in pieces:
            rest = pa.concat_tables([rest, piece])
            full = len(rest) // batch * batch
            if full:
                # combined, so that each batch is one piece of memory and not a slice that is written with its whole
                for start in range(0, full, batch):
                    writer.write_table(rest.slice(start, batch).combine_chunks(), max_chunksize=batch)
                rest = rest.slice(full)
        if len(rest):
            writer.write_table(rest.combine_chunks(), max_chunksize=batch)
