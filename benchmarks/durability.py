"""What a home costs: a live learner with each durability beside one without a home, one example after the other.

    python benchmarks/durability.py [--examples 640] [--folder PATH]

PATH says on which disk. The learners take turns, so that what else the machine does falls on all alike; the table gives
the median time of a learn without and with gradient steps after it, and all learns at these medians, also as a ratio to
the learner without a home. About a minute.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from prequential import Learner


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=640)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    random = np.random.default_rng(0)
    x, y = random.normal(size=(given.examples, 16)), random.integers(0, 5, given.examples)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        learners = {"no home": Learner(5, seed=0)}
        for durability in ("save", 1000, 100, 10, "sync"):
            learners[str(durability)] = Learner(5, home=Path(folder) / str(durability), durability=durability, seed=0)
        seconds: dict[str, list[float]] = {name: [] for name in learners}
        for t in range(given.examples):
            for name, learner in learners.items():
                begun = time.perf_counter()
                learner.learn(x[t], int(y[t]))
                seconds[name].append(time.perf_counter() - begun)
        chunk = learners["no home"].stride
        steps = np.arange(1, given.examples + 1) % chunk == 0
        print("durability | learn, ms | learn with steps, ms | all, s | ratio")
        # the first ones build the networks; the median of each kind keeps out what else the machine did
        whole = {}
        for name, taken in seconds.items():
            times = np.array(taken)[2 * chunk :]
            late = steps[2 * chunk :]
            whole[name] = float(np.median(times[~late]) * (~late).sum() + np.median(times[late]) * late.sum())
        for name, taken in seconds.items():
            times = np.array(taken) * 1e3
            print(
                f"{name:10} | {np.median(times[~steps]):9.3f} | {np.median(times[steps]):20.2f} | {whole[name]:6.2f} | "
                f"{whole[name] / whole['no home']:.3f}"
            )
        for learner in learners.values():
            learner.close()


if __name__ == "__main__":
    main()
