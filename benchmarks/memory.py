"""Memory over a long stream: of a live learner after 1,000,000 examples of 64 features against after 100,000, and of
reading 2,000,000 examples of the CLOC-like stream against 200,000.

    python benchmarks/memory.py
    python benchmarks/memory.py --photos

The learner is fed as a user would feed it, so its examples go to a journal on disk. A few minutes on two cores.
Expected: within 5 %.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from prequential.learners.transformer.learner import Learner
from prequential.streams.datasets.photos import PhotoStream


def resident() -> float:
    """Resident memory of this process, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system does not tell the memory of a process in /proc/self/status")


def main(examples: int) -> None:
    learner = Learner(10, width=32, num_query_heads=2, depth=2, window=128, chunk_size=500, num_streams=2)
    random = np.random.default_rng(0)
    early, begun = 0.0, time.perf_counter()
    while learner.position < examples:
        x = random.normal(size=(500, 64))
        learner.observe(x, (np.abs(x[:, 0]) * 4).astype(int).clip(0, 9).tolist())
        if learner.position == examples // 10:
            early = resident()
            print(f"after {learner.position:>9,} examples: {early:.1f} MB", flush=True)
    late, seconds = resident(), time.perf_counter() - begun
    print(
        f"after {learner.position:>9,} examples: {late:.1f} MB, ratio {late / early:.3f} ({learner.position / seconds:,.0f} examples/s)"
    )


def photos(examples: int) -> None:
    """Reads the stream from start to end in the process of a learner (torch loaded)."""
    stream = PhotoStream(examples)
    early = 0.0
    for start in range(0, examples, 256):
        stream.read(start, start + 256)
        if start // 256 == examples // 10 // 256:
            early = resident()
            print(f"after {start:>9,} examples of photos: {early:.1f} MB", flush=True)
    late = resident()
    print(f"after {examples:>9,} examples of photos: {late:.1f} MB, ratio {late / early:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--photos", action="store_true", help="read the CLOC-like stream instead, 2,000,000 examples")
    arguments = parser.parse_args()
    if arguments.photos:
        photos(2_000_000)
    else:
        main(arguments.examples)
