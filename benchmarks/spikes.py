"""Broken values: whether a learner sees as well after them as it would have without.

    python benchmarks/spikes.py                                   the default learner on synthetic vectors
    python benchmarks/spikes.py --stream electricity covertype    real streams (PREQUENTIAL_DATA, or shared/data)
    python benchmarks/spikes.py --learner kalman acm "sklearn:linear_model.SGDClassifier(loss='log_loss')"
    python benchmarks/spikes.py --kinds "one 1e7" --examples 1500 --out spikes.json

Each kind of broken value is put into a stream, and the accuracy from 300 examples after the first of them on is compared
with that on the same examples of the unbroken stream. Rows that hold a broken value themselves are not compared.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from prequential.registry import make_learner
from prequential.settings import Settings
from prequential.streams.datasets.tabular import covertype, electricity, power_supply

Broken = Callable[[np.ndarray, int], np.ndarray]
"""Breaks values of x (n, features), from a position on, in place; which rows hold a broken value."""

RECOVERY = 300  # examples after the first broken value, from which on accuracy is compared
ALLOWED = 0.02  # accuracy lost
FILES = {
    "electricity": (electricity, "elec2"),
    "covertype": (covertype, "covtype"),
    "powersupply": (power_supply, "powersupply"),
}


def some(value: float, count: int = 1, at: int | None = None) -> Broken:
    """A few values in a row of the first feature, at a position or (none) where all kinds begin."""

    def change(x: np.ndarray, start: int) -> np.ndarray:
        rows = np.arange(count) + (start if at is None else at)
        x[rows, 0] = value
        return rows

    return change


def recurring(value: float, share: float, features: slice = slice(0, 1)) -> Broken:
    """A code in some of the rows, in one feature or in several."""

    def change(x: np.ndarray, start: int) -> np.ndarray:
        there = np.random.default_rng(0).random(x[:, features].shape) < share
        there[:start] = False
        x[:, features][there] = value
        return np.flatnonzero(there.any(1))

    return change


def row_times(factor: float) -> Broken:
    """All features of one example in another unit."""

    def change(x: np.ndarray, start: int) -> np.ndarray:
        x[start] *= factor
        return np.array([start])

    return change


def nothing(x: np.ndarray, start: int) -> np.ndarray:
    return np.empty(0, dtype=np.int64)


def stuck(x: np.ndarray, start: int) -> np.ndarray:
    """The first feature says nothing until here."""
    x[:start, 0] = 0
    return nothing(x, start)


def stuck_then_spike(x: np.ndarray, start: int) -> np.ndarray:
    stuck(x, start)
    return some(1e7)(x, start)


def new_level(x: np.ndarray, start: int) -> np.ndarray:
    """The first feature is somewhere else from here on, for good."""
    x[start:, 0] += 1e4 * x[:, 0].std()
    return nothing(x, start)


# what is broken, and what it is compared with
KINDS: dict[str, tuple[Broken, Broken]] = {
    "one 1e7": (some(1e7), nothing),
    "one 1e12": (some(1e12), nothing),
    "one 1e30": (some(1e30), nothing),
    "largest float32": (some(float(np.finfo(np.float32).max)), nothing),
    "the very first, -1e7": (some(-1e7, at=0), nothing),
    "the fourth, 1e7": (some(1e7, at=3), nothing),
    "five 1e6 in a row": (some(1e6, 5), nothing),
    "-9999 in 8 of 5,000": (recurring(-9999.0, 8 / 5000), nothing),
    "999 in 1 %": (recurring(999.0, 0.01), nothing),
    "1e30 in 1 % of all features": (recurring(1e30, 0.01, slice(None)), nothing),
    "a row times 1e9": (row_times(1e9), nothing),
    "stuck at 0, then 1e7": (stuck_then_spike, stuck),
    "new level, 1e4 deviations off": (new_level, nothing),
}


def synthetic(n: int) -> tuple[np.ndarray, list[Any]]:
    """Normal features, of which the first two decide."""
    random = np.random.default_rng(0)
    x = random.normal(size=(n, 8)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] + 0.1 * random.normal(size=n) > 0).astype(int).tolist()


def examples(stream: str, n: int) -> tuple[np.ndarray, list[Any]]:
    if stream == "synthetic":
        return synthetic(n)
    open_file, name = FILES[stream]
    folder = Path(os.environ.get("PREQUENTIAL_DATA", "shared/data"))
    chunk = open_file(folder / f"{name}.npz").read(0, n)
    x = np.asarray(chunk.x, dtype=np.float32)
    if stream == "electricity":  # what decides first: the price
        x = np.roll(x, -3, axis=1)
    return x, list(chunk.y)


def right(learner: str, x: np.ndarray, y: list[Any], settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Whether each example was predicted, and what it cost."""
    made = make_learner(learner, len(set(y)), settings=settings)
    parts = [made.observe(x[i : i + 512], y[i : i + 512]) for i in range(0, len(y), 512)]
    return np.concatenate([part.correct for part in parts]), np.concatenate([part.log_loss for part in parts])


def measure(
    learner: str, stream: str, kinds: Sequence[str], *, n: int, start: int, settings: Settings | None = None
) -> list[dict[str, Any]]:
    """For each kind the accuracies with and without broken values, on the examples that are compared."""
    settings = settings or Settings()
    x, y = examples(stream, n)
    without: dict[Broken, tuple[np.ndarray, np.ndarray]] = {}
    found = []
    for kind in kinds:
        broken, reference = KINDS[kind]
        if reference not in without:
            clean = x.copy()
            reference(clean, start)
            without[reference] = right(learner, clean, y, settings)
        changed = x.copy()
        rows = broken(changed, start)
        hit, loss = right(learner, changed, y, settings)
        compared = np.arange(n) >= (rows.min() if len(rows) else start) + RECOVERY
        compared[rows] = False
        before, after = float(without[reference][0][compared].mean()), float(hit[compared].mean())
        found.append(
            {
                "learner": learner,
                "stream": stream,
                "kind": kind,
                "examples": n,
                "compared": int(compared.sum()),
                "clean": before,
                "broken": after,
                "lost": before - after,
                "recovered": before - after <= ALLOWED,
                "finite": bool(np.isfinite(loss).all()),
                "clean_nats": float(without[reference][1][compared].mean()),
                "broken_nats": float(loss[compared].mean()),
            }
        )
    return found


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--learner", nargs="+", default=["transformer"], help="names, as `prequential run --learner` takes them"
    )
    parser.add_argument("--stream", nargs="+", choices=["synthetic", *FILES], default=["synthetic"])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), metavar="KIND")
    parser.add_argument("--examples", type=int, default=3000)
    parser.add_argument("--start", type=int, default=1000, help="where most kinds begin")
    parser.add_argument("--out", type=Path, default=None, help="a JSON file for the figures")
    given = parser.parse_args(arguments)
    console = Console()
    found: list[dict[str, Any]] = []
    for stream in given.stream:
        for learner in given.learner:
            rows = measure(learner, stream, given.kinds, n=given.examples, start=given.start)
            table = Table("broken values", "clean", "broken", "lost", "nats", "", title=f"{learner} on {stream}")
            for row in rows:
                figures = [f"{row[name]:.3f}" for name in ("clean", "broken", "lost")]
                nats = f"{row['clean_nats']:.3f} → {row['broken_nats']:.3f}"
                good = row["recovered"] and row["finite"]
                table.add_row(row["kind"], *figures, nats, "" if good else "not recovered")
            console.print(table)
            found += rows
            if given.out is not None:
                given.out.write_text(json.dumps(found, indent=2))
    return found


if __name__ == "__main__":
    main()
