"""What a live learner costs beside its predictions: snapshots, and predictions that wait for their labels by id.

    python benchmarks/live.py [--examples 600] [--waiting 0 10 100 1000]

The default learner with 16 features and a home. Times are medians; what is printed is also said as a ratio to a
prediction without an id, as the machine may be busy. About a minute.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from prequential import Learner


def median(call: Callable[[int], Any], count: int) -> float:
    """The median time of some calls, in milliseconds."""
    taken = []
    for i in range(count):
        begun = time.perf_counter()
        call(i)
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken)) * 1e3


def memory() -> int:
    """The bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=600)
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 10, 100, 1000])
    given = parser.parse_args()
    random = np.random.default_rng(0)
    x, y = random.normal(size=(4096, 16)), random.integers(0, 5, 4096).tolist()
    with tempfile.TemporaryDirectory() as folder:
        learner = Learner(5, home=Path(folder) / "home")
        learner.learn_many(x[: given.examples], y[: given.examples])
        alone = median(lambda i: learner.predict_proba(x[i]), 30)
        print(f"predict: {alone:.1f} ms")
        kept = [learner.snapshot()]
        before = memory()
        taken = median(lambda i: kept.append(learner.snapshot()), 10)
        print(f"snapshot: {taken:.1f} ms ({taken / alone:.1f} predictions), {(memory() - before) / 1e7:.1f} MB")
        copies: list[Learner] = []
        before = memory()
        copied = median(lambda i: copies.append(copy.deepcopy(learner)), 5)
        print(f"deepcopy: {copied:.1f} ms ({copied / alone:.1f} predictions), {(memory() - before) / 5e6:.1f} MB")
        asked = 0
        for waiting in given.waiting:
            while len(learner.asked) < waiting:
                learner.predict(x[asked % 4096], id=asked)
                asked += 1
            name = f"late {waiting}"
            late = median(lambda i, name=name: learner.predict_proba(x[i], id=f"{name} {i}"), 20)  # type: ignore[misc]
            print(f"predict by id, {waiting:,} waiting: {late:.1f} ms ({late / alone:.1f} predictions)")
            for i in range(20):
                learner.learn(id=f"{name} {i}", y=y[i])
        size = sum(path.stat().st_size for path in (Path(folder) / "home" / "asked").iterdir())
        print(f"log of what was asked: {size / 1e3:.0f} kB for {len(learner.asked):,} waiting, {asked:,} asked in all")
        learner.close()


if __name__ == "__main__":
    main()
