"""How many examples a second the Kalman filter and ACM process, and how that falls as they grow.

    python benchmarks/baselines.py                    a short look (20,000 examples)
    python benchmarks/baselines.py --examples 100000  what the documentation states

Wall time and CPU time are both printed: on a machine that does other work too, the second is the honest one.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator

import numpy as np
import torch

from prequential.baselines import ACM, Kalman
from prequential.learners.base import OnlineLearner

CLASSES = 100


def examples(total: int, width: int, chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Gaussian clusters around random centers in a space of 32 dimensions, seen in `width`, in chunks."""
    random = np.random.default_rng(0)
    centers = random.normal(size=(CLASSES, 32)).astype(np.float32)
    spread = random.normal(size=(32, width)).astype(np.float32)
    for _ in range(0, total, chunk):
        y = random.integers(CLASSES, size=chunk)
        inner = centers[y] + 0.7 * random.normal(size=(chunk, 32)).astype(np.float32)
        yield inner @ spread + 0.5 * random.normal(size=(chunk, width)).astype(np.float32), y


def measure(name: str, learner: OnlineLearner, total: int, width: int, pieces: int = 5) -> None:
    """Runs a learner and prints the rate of each fifth of the stream."""
    chunk = learner.stride
    every = max(1, total // pieces // chunk)
    right, wall, cpu = 0, 0.0, 0.0
    for i, (x, y) in enumerate(examples(total, width, chunk), start=1):
        wall_before, cpu_before = time.perf_counter(), time.process_time()
        right += int(learner.observe(x, y.tolist()).correct.sum())
        wall += time.perf_counter() - wall_before
        cpu += time.process_time() - cpu_before
        if i % every == 0:
            rate, cpu_rate = every * chunk / wall, every * chunk / cpu
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{name:24} {i * chunk:>9,} examples  {rate:>8,.0f} /s  {cpu_rate:>8,.0f} /CPU-s  "
                f"accuracy {right / (i * chunk):.3f}  {memory:,.0f} MB",
                flush=True,
            )
            wall = cpu = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["kalman", "acm"], default=None)
    parser.add_argument("--block", type=int, default=None, help="block of the Kalman filter")
    parser.add_argument("--precision", choices=["float64", "float32"], default="float64")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.only != "acm":
        block = {} if given.block is None else {"block": given.block}
        kalman = Kalman(CLASSES, precision=given.precision, **block)
        measure(f"Kalman 2048-d {given.precision}", kalman, given.examples, 2048)
    if given.only != "kalman":
        measure("ACM 256-d", ACM(CLASSES, shards=given.threads), given.examples, 256)


if __name__ == "__main__":
    main()
