"""Sorting a table that does not fit in memory: sorted runs on disk, then one merge."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from prequential.errors import BadInput

RUN_BYTES = 128 * 2**20  # how much is sorted in memory at once
BATCH_ROWS = 4096  # rows read and written at once
KEY = "__key__"


def sort_rows(blocks: Iterator[tuple[np.ndarray, pa.Table]], path: Path) -> None:
    """Writes the rows of these blocks, sorted by their keys, to an Arrow file; rows with equal keys keep their order.

    Memory: one run of rows, and one batch of each run during the merge.
    """
    folder = path.with_name(f".{path.name}.{os.getpid()}.runs")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        runs = _write_runs(blocks, folder)
        if not runs:
            raise BadInput("there are no rows to sort: none of them can be used")
        temporary = folder / "merged"
        _merge(runs, temporary)
        temporary.replace(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_runs(blocks: Iterator[tuple[np.ndarray, pa.Table]], folder: Path) -> list[Path]:
    runs: list[Path] = []
    held: list[pa.Table] = []
    size = 0

    def write() -> None:
        run = pa.concat_tables(held)
        order = np.argsort(run.column(KEY).to_numpy(), kind="stable")
        runs.append(folder / f"{len(runs)}")
        _write(runs[-1], iter([run.take(pa.array(order))]), run.schema)
        held.clear()

    for keys, block in blocks:
        held.append(block.append_column(KEY, pa.array(keys)))
        size += held[-1].nbytes
        if size >= RUN_BYTES:
            write()
            size = 0
    if any(len(block) for block in held):
        write()
    return runs


def _merge(runs: list[Path], path: Path) -> None:
    files = [pa.memory_map(str(run)) for run in runs]
    readers = [pa.ipc.open_file(file) for file in files]
    _write(path, _merged(readers), readers[0].schema.remove(readers[0].schema.get_field_index(KEY)))
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


def _write(path: Path, pieces: Iterator[pa.Table], schema: pa.Schema) -> None:
    """An Arrow file with batches of equal size, the last one excepted."""
    rest = schema.empty_table()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for piece in pieces:
            rest = pa.concat_tables([rest, piece])
            full = len(rest) // BATCH_ROWS * BATCH_ROWS
            if full:
                # combined, so that each batch is one piece of memory and not a slice that is written with its whole
                for start in range(0, full, BATCH_ROWS):
                    writer.write_table(rest.slice(start, BATCH_ROWS).combine_chunks(), max_chunksize=BATCH_ROWS)
                rest = rest.slice(full)
        if len(rest):
            writer.write_table(rest.combine_chunks(), max_chunksize=BATCH_ROWS)
