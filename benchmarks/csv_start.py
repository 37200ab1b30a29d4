"""How long it takes until a large CSV is being learned from, and how fast it is read.

    python benchmarks/csv_start.py

Writes a table of 1,000,000 rows (a time, 10 numbers, 2 texts, a label) to a temporary folder, then opens it and learns its
first chunk: without a time column, with one that the rows are in the order of, with one that they are not (a sorted copy is
made), with that one again (the copy is there), and compressed. Expected: under 5 seconds where the rows are in order. Each
is a process of its own, so that the memory it takes can be told.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from prequential.learners.transformer.learner import Learner
from prequential.streams.formats.tables import TableStream


def write_table(folder: Path, rows: int) -> None:
    random = np.random.default_rng(0)
    columns: dict[str, np.ndarray] = {"when": np.arange(rows), "shuffled": random.permutation(rows)}
    columns |= {f"number{i}": random.normal(size=rows).round(5) for i in range(10)}
    columns |= {f"text{i}": np.array(["red", "green", "blue"])[random.integers(0, 3, rows)] for i in range(2)}
    columns["label"] = random.integers(0, 5, rows)
    pa.csv.write_csv(pa.table(columns), folder / "table.csv")
    with pa.output_stream(str(folder / "table.csv.zst"), compression="zstd") as file:
        pa.csv.write_csv(pa.table(columns), file)


def start(path: Path, time_column: str | None) -> None:
    """Opens the table, learns a chunk and reads on, in this process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun, worked = time.perf_counter(), time.process_time()
    stream = TableStream(path, label="label", time=time_column)
    opened = time.perf_counter() - begun
    learner = Learner(5, missing=stream.missing)
    chunk = stream.read(0, learner.stride)
    learner.observe(chunk.x, chunk.y)
    learned, worked = time.perf_counter() - begun, time.process_time() - worked
    rows = min(len(stream), 200_000)
    begun = time.perf_counter()
    for first in range(0, rows, 64):
        stream.read(first, first + 64)
    speed = rows / (time.perf_counter() - begun)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    print(
        f"opened {opened:.1f} s, chunk learned {learned:.1f} s (work {worked:.1f} s), then {speed:,.0f} rows/s, "
        f"{grown:.0f} MB more memory",
        flush=True,
    )


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        packed = Path(folder) / "table.csv.zst"
        # written by another process: the memory that counts below would begin with what this one has had
        subprocess.run([sys.executable, __file__, "--rows", str(rows), "--write", folder], check=True)
        print(f"{rows:,} rows, {path.stat().st_size / 1e6:.0f} MB")
        environment = {**os.environ, "PREQUENTIAL_CACHE": str(Path(folder) / "cache")}
        for what, source, column in (
            ("no time", path, ""),
            ("in order", path, "when"),
            ("not in order", path, "shuffled"),
            ("sorted before", path, "shuffled"),
            ("compressed", packed, ""),
        ):
            print(f"{what:>14}: ", end="", flush=True)
            subprocess.run([sys.executable, __file__, "--path", source, "--time", column], check=True, env=environment)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--time", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        write_table(given.write, given.rows)
    elif given.path:
        start(given.path, given.time or None)
    else:
        main(given.rows)
