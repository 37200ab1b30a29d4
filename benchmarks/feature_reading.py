"""What reading 2048 float16 features a row from disk costs next to training the paper's base model on them.

    python benchmarks/feature_reading.py                       100,000 rows (0.4 GB) in a temporary folder
    python benchmarks/feature_reading.py --rows 1000000        more than the page cache may hold

Eight readers take turns, 256 rows each, as stream 0 and seven replay streams do; once after the page cache was told to
forget the files and once with the files in it. Then the base model (4 blocks, width 1024, window 512, 8 streams) takes a
few turns of 256 examples. Expected on two x86 cores: reading is a thousandth of a turn.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from prequential.learners.transformer.learner import Learner
from prequential.streams.formats.feature_folder import FeatureStream
from prequential.streams.formats.feature_writer import FeatureWriter
from prequential.streams.stream import CausalView

CHUNK, READERS, WIDTH = 256, 8, 2048


def write(directory: Path, rows: int) -> None:
    """Random features of 713 classes."""
    random = np.random.default_rng(0)
    with FeatureWriter(directory, width=WIDTH, classes=713) as writer:
        for _ in range(0, rows, 4096):
            writer.append(random.standard_normal((4096, WIDTH), np.float32), random.integers(0, 713, 4096).tolist())


def forget(directory: Path) -> None:
    """Asks the system to drop the files from its page cache."""
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(stream: FeatureStream, turns: int) -> float:
    """Seconds for a turn of all readers, each somewhere else in the stream."""
    begun = time.perf_counter()
    for turn in range(turns):
        for reader in range(READERS):
            start = (reader * len(stream) // READERS + turn * CHUNK) % (len(stream) - CHUNK)
            stream.read(start, start + CHUNK)
    return (time.perf_counter() - begun) / turns


def train(stream: FeatureStream, turns: int) -> float:
    """Seconds for a turn of the base model, reading included, after a first one that builds it."""
    learner = Learner(713, width=1024, depth=4, window=512, chunk_size=CHUNK, num_streams=READERS, standardize=False)
    watched = CausalView(stream)
    learner.replay_from(watched)
    begun = 0.0
    for turn in range(turns + 1):
        chunk = stream.read(turn * CHUNK, (turn + 1) * CHUNK)
        watched.present = (turn + 1) * CHUNK
        if turn == 1:
            begun = time.perf_counter()
        learner.observe(chunk.x, chunk.y)
    return (time.perf_counter() - begun) / turns


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=3, help="of training")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write(directory, settings.rows)
        begun = time.perf_counter()
        stream = FeatureStream(directory)
        print(f"opening {len(stream):,} rows of {WIDTH}: {1000 * (time.perf_counter() - begun):.1f} ms")
        turns = len(stream) // READERS // CHUNK
        forget(directory)
        cold = read(stream, turns)
        warm = read(stream, turns)
        step = train(stream, settings.turns)
        rows = READERS * CHUNK
        print(f"8 readers, from disk:       {1000 * cold:8.2f} ms a turn, {rows / cold:12,.0f} rows/s")
        print(f"8 readers, from page cache: {1000 * warm:8.2f} ms a turn, {rows / warm:12,.0f} rows/s")
        print(f"base model:                 {1000 * step:8.0f} ms a turn, {CHUNK / step:12,.1f} examples/s")
        print(f"reading is {100 * cold / step:.2f} % of training from disk, {100 * warm / step:.2f} % from page cache")


if __name__ == "__main__":
    main()
