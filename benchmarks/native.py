"""The native core against torch and against River, one thread, in CPU time, all in turns.

    python benchmarks/run.py native [--quick]

One at a time: predict and learn the first examples of Electricity (`PREQUENTIAL_DATA`), with River's adaptive random
forest beside both engines. In chunks: the same stream, observed. Two threads over one are measured by the clock, so
they need two idle cores; for a machine that others use, they are reckoned from CPU times as well. Expected on two cores
with AVX2: the targets in the table; about ten minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from limit import of_limit, over_plain_loop
from measuring import Row, compared, in_turns, missing
from peers import RIVER, _drifting, _ours, _rivers, _slices
from workloads import DIGITS, Workload, steady

from prequential.learners.transformer.learner import Learner
from prequential.learners.transformer.trainer import Trainer
from prequential.native import library as native
from prequential.native.build import AVX512_NAME, FOLDER, NAME
from prequential.native.library import library
from prequential.settings import Settings

FOREST = "adaptive random forest, 10 trees"
MODEL = Settings()  # width 128, 4 blocks, window 512


def measure(quick: bool) -> list[Row]:
    """The rows of the suite."""
    if reason := library().reason:
        return [missing("the native core", reason)]
    with threads(1):
        rows = one_at_a_time(*((160, 4) if quick else (4000, 10)))
        rows.append(in_chunks(*((256, 2) if quick else (3200, 10))))
        rows.append(over_plain_loop("paper", *((2, 1) if quick else (12, 10)), time.process_time))
        rows.append(of_limit(DIGITS.changed(num_streams=2) if quick else DIGITS, 2 if quick else 12, time.process_time))
        rows.append(over_classes(2 if quick else 8))
        rows += over_avx2(2 if quick else 30)
    rows += [two_threads(2 if quick else 9), critical_path(2 if quick else 100)]
    return [*rows, predict_beside_steps(100 if quick else 4000)]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, so many threads are used."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


def one_at_a_time(examples: int, slices: int) -> list[Row]:
    """Predict one, learn one: both engines and River's forest, slices of the stream in turns."""
    x, y, said = _drifting(examples)
    turns: dict[str, Callable[[np.ndarray, int], bool]] = {
        engine: _ours(Learner(2, engine=engine)) for engine in ("native", "torch")
    }
    with suppress(ImportError):
        turns[FOREST] = _rivers(*RIVER[FOREST])
    right: dict[str, list[bool]] = {name: [] for name in turns}
    works = {name: _slices(turn, x, y, slices, right[name]) for name, turn in turns.items()}
    steps = {name: lambda work=work: next(work) for name, work in works.items()}
    seconds = in_turns(steps, slices - 1, clock=time.process_time)  # type: ignore[arg-type]
    size = examples // slices
    said_of = {name: f"{size / np.median(seconds[name]):,.0f}/s at {np.mean(right[name]):.1%}" for name in turns}
    rows = [
        compared(
            "one at a time, over torch",
            seconds,
            slow="torch",
            fast="native",
            target=6.0,
            meaning=f"examples a second of CPU time over those of the other, predict and learn {said}",
            note=f"{said_of['native']} against {said_of['torch']} accuracy",
        )
    ]
    title = "one at a time, over River's adaptive random forest, 10 trees"
    if FOREST not in turns:
        return [*rows, missing(title, "not installed: pip install river")]
    more: dict[str, Any] = {"target": 1.5, "holds": bool(np.mean(right["native"]) > np.mean(right[FOREST]))}
    note = f"{said_of['native']} against {said_of[FOREST]} accuracy"
    return [*rows, compared(title, seconds, slow=FOREST, fast="native", meaning=rows[0].meaning, note=note, **more)]


def in_chunks(examples: int, slices: int) -> Row:
    """Observe a table in chunks, both engines in turns."""
    x, y, said = _drifting(examples)
    labels, size = y.tolist(), examples // slices
    learners = {engine: Learner(2, engine=engine) for engine in ("native", "torch")}
    at = dict.fromkeys(learners, 0)

    def observe(engine: str) -> None:
        start = at[engine]
        at[engine] += size
        learners[engine].observe(x[start : start + size], labels[start : start + size])

    works = {engine: lambda engine=engine: observe(engine) for engine in learners}
    seconds = in_turns(works, slices - 1, clock=time.process_time)  # type: ignore[arg-type]
    return compared(
        "in chunks, over torch",
        seconds,
        slow="torch",
        fast="native",
        target=3.3,
        meaning=f"examples a second of CPU time over those of the other, observed {said}",
        note=f"{size / min(seconds['native']):,.0f}/s against {size / min(seconds['torch']):,.0f}/s at best",
    )


def over_classes(rounds: int) -> Row:
    """What an example costs where there are many labels."""
    few, many = (Workload(f"{n} classes", MODEL, (8,), n) for n in (10, 1000))
    with steady():
        works: dict[str, Callable[[], object]] = {work.name: work.turns()[1] for work in (few, many)}
        seconds = in_turns(works, rounds, clock=time.process_time)
    return compared(
        "1,000 classes over 10",
        seconds,
        slow=many.name,
        fast=few.name,
        target=1.3,
        lower_is_better=True,
        meaning="CPU time of a turn with many labels over that with few",
    )


def over_avx2(rounds: int) -> list[Row]:
    """The library for AVX-512 against the one for AVX2: what the network takes, as kNN, mixer and trees are shared."""
    libraries = {name: native.load_library(FOLDER / name) for name in (NAME, AVX512_NAME)}
    if reason := libraries[AVX512_NAME].reason:
        return [missing("AVX-512 over AVX2", reason)]
    wide = MODEL.changed(method="paper", width=256, window=256, chunk_size=64, num_streams=2)
    works = [DIGITS, Workload("8 features", MODEL, (8,), 10), Workload("width 256", wide, (64,), 100)]
    rows = []
    for work in works:
        turns: dict[str, Callable[[], object]] = {}
        with steady():
            for name, found in libraries.items():
                with patch.object(native, "_found", found):
                    turns[name] = work.turns()[1]
            seconds = in_turns(turns, rounds, clock=time.process_time)
        rows.append(
            compared(
                f"AVX-512 over AVX2, {work.name}",
                seconds,
                slow=NAME,
                fast=AVX512_NAME,
                target=1.1,
                meaning="turns a second of CPU time over those of the other library",
            )
        )
    return rows


def two_threads(rounds: int) -> Row:
    """Joint updates, whose streams are split over threads."""
    work = Workload("joint", MODEL.changed(updates="joint"), (8,), 2)

    def with_threads(count: int) -> Callable[[], None]:
        turn = work.turns()[1]

        def take() -> None:
            with threads(count):
                turn()

        return take

    with steady():
        seconds = in_turns({"one thread": with_threads(1), "two threads": with_threads(2)}, rounds)
    return compared(
        "two threads over one, joint updates",
        seconds,
        slow="one thread",
        fast="two threads",
        target=1.6,
        meaning="turns a second by the clock",
    )


def critical_path(rounds: int) -> Row:
    """Two threads over one from CPU times: what the first thread does alone, and half of what both share."""
    work = Workload("joint", MODEL.changed(updates="joint"), (8,), 2)
    shared = [0.0]  # CPU time of the first thread while steps run beside it
    beside = Trainer._train_beside

    def timed(*given: Any) -> Any:
        begun = time.thread_time()
        try:
            return beside(*given)
        finally:
            shared[0] = time.thread_time() - begun

    seconds: dict[str, list[float]] = {"one thread": [], "two threads": []}
    with steady(), patch.object(Trainer, "_train_beside", timed):
        turns = {count: work.turns()[1] for count in (1, 2)}
        for _ in range(rounds):
            for count, turn in turns.items():
                begun, first = time.process_time(), time.thread_time()
                with threads(count):
                    turn()
                first, whole = time.thread_time() - first, time.process_time() - begun
                half = max(shared[0], (shared[0] + whole - first) / 2)
                seconds["one thread" if count == 1 else "two threads"].append(
                    whole if count == 1 else first - shared[0] + half
                )
    return compared(
        "two threads over one, joint updates, reckoned",
        seconds,
        slow="one thread",
        fast="two threads",
        target=1.6,
        meaning="CPU time of a turn over its critical path on two cores: the first thread alone, and half of the rest",
    )


def predict_beside_steps(examples: int) -> Row:
    """How long one prediction takes while steps run in another thread."""
    random = np.random.default_rng(0)
    learner = Learner(10, settings=MODEL.changed(async_steps=True))
    x = random.normal(size=(examples, 8)).astype(np.float32)
    y = np.abs(x).argmax(1).tolist()
    learner.learn_many(x[:1], y[:1])
    for _ in range(20):
        learner.learn_many(random.normal(size=(32, 8)).astype(np.float32), random.integers(0, 8, 32).tolist())
    spent = []
    for t in range(examples):
        begun = time.perf_counter()
        learner.predict_proba_one(x[t])
        spent.append(time.perf_counter() - begun)
        learner.learn(x[t], y[t])
    p50, p99 = np.percentile(spent, [50, 99])
    return Row(
        name="predict one while steps run",
        ratio=float(p99 / p50),
        target=2.0,
        holds=bool(p50 <= 2e-4),
        lower_is_better=True,
        meaning="99th percentile over the median, which must be at most 0.2 ms",
        note=f"p50 {1e3 * p50:.3f} ms, p99 {1e3 * p99:.3f} ms",
    )
