"""How time per example and memory grow: over the length of the stream, and over each size of the learner.

Over each axis an exponent is fitted in log-log: 0 does not grow, 1 grows linearly. The sizes of an axis take turns. Memory
is what the process holds more than before the learner was made, buffers of its steps included.

    python benchmarks/run.py growth --longest 10000000     as far as 10^7 examples, however long it takes
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from measuring import Row, in_turns
from workloads import Workload, steady

from prequential.learners.transformer.learner import Learner
from prequential.settings import Settings

BUDGET = 300.0  # seconds that the longest stream may take where nobody says how long it shall be
CHEAP = Settings(method="paper", width=16, depth=1, num_query_heads=2, window=64, chunk_size=64, num_streams=2)
MIDDLE = Workload("growth", Settings(width=128, depth=2, window=256, chunk_size=32, num_streams=1), (32,), 10)
SMALL = MIDDLE.changed(width=32, depth=1, window=32, chunk_size=8)


@dataclass(frozen=True)
class Axis:
    """Something that can be large."""

    name: str
    sizes: Sequence[int]
    work: Callable[[Workload, int], Workload]
    most: float
    """The exponent that the time per example may have."""


def _setting(name: str, work: Workload, size: int) -> Workload:
    return work.changed(**{name: size})


def _classes(work: Workload, size: int) -> Workload:
    return Workload(work.name, work.settings, work.shape, size)


def _features(work: Workload, size: int) -> Workload:
    return Workload(work.name, work.settings, (size,), work.classes)


AXES = [
    Axis("window C", (128, 256, 512, 1024, 2048), partial(_setting, "window"), 1.0),
    Axis("chunk S", (8, 16, 32, 64, 128, 256), partial(_setting, "chunk"), 0.1),
    Axis("width D", (64, 128, 256, 512, 1024), partial(_setting, "width"), 2.0),
    Axis("streams E", (1, 2, 4, 8, 16), partial(_setting, "streams"), 1.0),
    Axis("classes", (10, 100, 1000, 10_000), _classes, 1.0),
    Axis("features", (16, 64, 256, 1024, 4096), _features, 1.0),
]


def measure(quick: bool, longest: int | None = None) -> list[Row]:
    """The rows of this part; `longest` is the length of the longest stream."""
    if quick:
        return [over_length(longest or 10_000, seconds=20), *(over(axis, quick=True) for axis in AXES)]
    return [
        over_length(longest or 10_000_000, seconds=float("inf") if longest else BUDGET),
        *(over(axis, quick=False) for axis in AXES),
    ]


def over_length(longest: int, seconds: float) -> Row:
    """A learner that keeps its examples in a journal, over a stream that is long; it stops when the time is over."""
    learner = Learner(4, settings=CHEAP)
    random = np.random.default_rng(0)
    centers = random.normal(size=(4, 8)).astype(np.float32)
    begun, base = time.perf_counter(), 0
    curve: list[dict[str, float]] = []
    pieces: list[float] = []  # seconds per example, of 16 chunks each
    marks = _marks(longest)
    while learner.position < longest and time.perf_counter() - begun < seconds:
        spent = 0.0
        for _ in range(16):
            y = random.integers(4, size=CHEAP.chunk_size)
            x = centers[y] + random.normal(size=(CHEAP.chunk_size, 8)).astype(np.float32)
            start = time.perf_counter()
            learner.observe(x, y.tolist())
            spent += time.perf_counter() - start
        if not base:  # what torch and the network need at once is not growth, neither in time nor in memory
            base = resident()
            continue
        pieces.append(spent / (16 * CHEAP.chunk_size))
        if marks and learner.position >= marks[0]:
            curve.append(_point(learner.position, float(np.median(pieces)), resident()))
            pieces = []
            del marks[0]
    if not curve:
        curve.append(_point(learner.position, float(np.median(pieces)), resident()))
    more = (resident() - base) / 2**20
    return _row(
        "stream length T",
        curve,
        0.1,
        f"{learner.position:,} examples, {1 / curve[-1]['seconds']:,.0f}/s at last, {more:+.0f} MB since the first thousand",
    )


def over(axis: Axis, quick: bool) -> Row:
    """A learner with each of the sizes of an axis."""
    sizes = axis.sizes[:2] if quick else axis.sizes
    works = {size: axis.work(SMALL if quick else MIDDLE, size) for size in sizes}
    with steady():
        _memory(works[sizes[0]])  # what the first use of anything takes is nobody's
        memory = {size: _memory(work) for size, work in works.items()}
        turns = {str(size): work.turns()[1] for size, work in works.items()}
        seconds = in_turns(dict(turns), 2 if quick else 7)
    curve = [
        _point(size, float(np.median(seconds[str(size)])) / work.settings.chunk_size, memory[size])
        for size, work in works.items()
    ]
    return _row(axis.name, curve, axis.most, "")


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of values over sizes in log-log.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 3)
    2.0
    """
    if len(sizes) < 2:
        return 0.0
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-12)), 1)[0])


def resident() -> int:
    """Bytes of memory the process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _memory(work: Workload) -> int:
    """Bytes that a learner and its steps take."""
    _give_back()
    before = resident()
    learner, turn = work.turns()
    turn()
    taken = resident() - before
    del learner, turn
    _give_back()
    return max(taken, 1)


def _give_back() -> None:
    """Hands free memory back to the system, so that what is held is what is used."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)


def _marks(longest: int) -> list[int]:
    """10,000, 20,000, 50,000, 100,000, ... up to the longest; below 50,000 a few before that."""
    first = 4 if longest >= 50_000 else 3
    marks = [step * 10**power for power in range(first, 10) for step in (1, 2, 5)]
    return [mark for mark in marks if 1000 < mark <= longest]


def _point(size: float, seconds: float, memory: float) -> dict[str, float]:
    return {"size": size, "seconds": seconds, "bytes": memory}


def _row(name: str, curve: list[dict[str, float]], most: float, note: str) -> Row:
    sizes = [point["size"] for point in curve]
    times = [point["seconds"] for point in curve]
    memory = exponent(sizes, [point["bytes"] for point in curve])
    steepest = max((exponent(sizes[i : i + 2], times[i : i + 2]) for i in range(len(sizes) - 1)), default=0.0)
    return Row(
        name=f"growth over {name}",
        ratio=exponent(sizes, times),
        target=most,
        unit="exponent",
        lower_is_better=True,
        meaning=f"exponent of the time per example, {sizes[0]:,.0f} to {sizes[-1]:,.0f}",
        seconds={f"{point['size']:,.0f}": [point["seconds"]] for point in curve},
        note="; ".join(part for part in (note, f"steepest {steepest:+.2f}, memory {memory:+.2f}") if part),
        curve=curve,
    )
