"""Two processes of one thread against one process of one thread: examples/s of the paper's base model with joint updates.

python benchmarks/processes.py [--turns 6] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

CHUNK = 256


def work(turns: int) -> None:
    """Takes some turns in this process, together with the others; the first prints examples/s."""
    import torch

    from prequential import Learner
    from prequential.experiments.experiment import PAPER
    from prequential.learners.transformer import distributed as ranks
    from prequential.streams.datasets.photos import PhotoStream

    torch.set_num_threads(1)
    here = ranks.join("cpu")
    photos = PhotoStream(1_000_000)
    settings = PAPER.changed(
        width=1024, depth=4, window=512, chunk_size=CHUNK, num_streams=8, updates="joint", recent_window=0
    )
    learner = Learner(classes=713, device="cpu", settings=settings)
    learner.replay_from(photos)
    began = 0.0
    for turn in range(turns + 2):
        if turn == 2:  # the first builds the network, the second fills the caches
            began = time.perf_counter()
        piece = photos.read(turn * CHUNK, (turn + 1) * CHUNK)
        learner.observe(piece.x, piece.y)
    if here.first:
        print(turns * CHUNK / (time.perf_counter() - began))
    ranks.leave()


def rate(processes: int, turns: int) -> float:
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [sys.executable, *start, __file__, "--work", "--turns", str(turns)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.turns)
        return
    pairs = [(rate(1, given.turns), rate(2, given.turns)) for _ in range(given.rounds)]
    ratios = sorted(two / one for one, two in pairs)
    for one, two in pairs:
        print(f"one process {one:.1f} examples/s, two {two:.1f}: {two / one:.2f} x")
    print(f"median {statistics.median(ratios):.2f} x, best {ratios[-1]:.2f} x")


if __name__ == "__main__":
    main()
