"""How long it takes until a large CSV is being learnt from, and how fast it is read.

    python benchmarks/csv_start.py

Writes a table of 1,000,000 rows (10 numbers, 2 texts, a label) to a temporary folder, then opens it and learns its first
chunk. Expected: under 5 seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from prequential.learners.transformer import Learner
from prequential.streams.open import open_stream


def write_table(path: Path, rows: int) -> None:
    random = np.random.default_rng(0)
    columns = {f"number{i}": random.normal(size=rows).round(5) for i in range(10)}
    columns |= {f"text{i}": np.array(["red", "green", "blue"])[random.integers(0, 3, rows)] for i in range(2)}
    columns["label"] = random.integers(0, 5, rows)
    pa.csv.write_csv(pa.table(columns), path)


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write_table(path, rows)
        begun = time.perf_counter()
        stream = open_stream(str(path), label="label")
        learner = Learner(5, missing=stream.missing)
        chunk = stream.read(0, learner.stride)
        learner.observe(chunk.x, chunk.y)
        print(
            f"{rows:,} rows, {path.stat().st_size / 1e6:.0f} MB: first chunk learnt after {time.perf_counter() - begun:.1f} s"
        )
        begun = time.perf_counter()
        for start in range(0, min(rows, 200_000), 64):
            stream.read(start, start + 64)
        print(f"read in order: {min(rows, 200_000) / (time.perf_counter() - begun):,.0f} rows/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    main(parser.parse_args().rows)
