"""How close training comes to the limit: the matrix products and convolutions it consists of, run on their own.

The reference is the list of products of one turn of the learner, forward and backward, of the same shapes, layouts and
number format, on as many threads. Both do the same multiply-accumulates, so the ratio of their rates is that of their
times. Beside it: where the time goes, and the default run against a plain loop of the same model (`plain.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from measuring import Row, compared, in_turns, missing
from plain import PlainLoop
from products import Products
from shares import time_shares
from workloads import CLOC, CONVNEXT, DIGITS, EMNIST, TWO_TOKEN, Workload, has_bfloat16, steady

from prequential.learners.transformer.learner import Learner
from prequential.settings import for_digits
from prequential.streams.datasets.digits import digits

TARGETS = {CLOC.name: 0.8, EMNIST.name: 0.65, DIGITS.name: 0.6}
SMALL = {"depth": 1, "window": 32, "chunk_size": 8}  # what --quick makes of the large ones
MEANING = "multiply-accumulates a second of training over those of its products alone"


def measure(quick: bool) -> list[Row]:
    rounds = 2 if quick else 9
    works = [DIGITS, EMNIST, CLOC, TWO_TOKEN, CONVNEXT]
    if quick:
        works = [DIGITS.changed(num_streams=2), EMNIST.changed(**SMALL, num_streams=2)]
        works += [CLOC.changed(**SMALL), TWO_TOKEN.changed(**SMALL), CONVNEXT.changed(depth=1, window=1, chunk_size=1)]
    rows = [of_limit(work, rounds) for work in works]
    for work in (works[1], works[2]):
        half = replace(work.changed(precision="bfloat16"), name=f"{work.name}, bfloat16")
        rows.append(
            of_limit(half, rounds)
            if has_bfloat16()
            else missing(half.name, "not on this processor", unit="%", meaning=MEANING)
        )
    for method in ("paper", "mixed"):
        rows.append(over_plain_loop(method, 2 if quick else 12, turns=2 if quick else 10))
    return rows


def of_limit(work: Workload, rounds: int, clock: Callable[[], float] = time.perf_counter) -> Row:
    """A turn of a learner over its products.

    The list of products, and where the time goes, are those of the torch engine: nobody sees into the native core.
    """
    with steady():
        learner, turn = work.turns()
        by_torch, torch_turn = work.changed(engine="torch").turns()
        products = Products.of(torch_turn)
        seconds = in_turns({"training": turn, "its products": products.runner()}, rounds, clock=clock)
        shares = time_shares(by_torch, torch_turn)
    # the formula counts a gradient of the inputs as well, which nobody computes: more than all of them is all of them
    asked = min(1.0, (learner.macs_per_example() or 0.0) * work.settings.chunk_size / products.macs())
    rate = products.macs() / min(seconds["training"]) / 1e9
    return compared(
        work.name,
        seconds,
        slow="its products",
        fast="training",
        target=TARGETS.get(work.name) if work.settings.precision == "float32" else None,
        unit="%",
        meaning=MEANING,
        note=f"{rate:.1f} G/s at best, {asked:.0%} of which the model asks for, engine {_engine(learner)}",
        shares=shares,
    )


def _engine(learner: Learner) -> str:
    return "" if learner.engine is None else learner.engine.name


def over_plain_loop(
    method: Literal["paper", "mixed"], rounds: int, turns: int, clock: Callable[[], float] = time.perf_counter
) -> Row:
    """The examples a second of the default run over those of the plain loop, which knows the paper's method only."""
    settings = for_digits().changed(method=method)
    stream = digits()
    learner, plain = Learner(10, settings=settings), PlainLoop(settings, 64, 10)
    learner.replay_from(stream)
    position = {"learner": 0, "plain loop": 0}

    def next_chunk(who: str) -> tuple[torch.Tensor, list[int]]:
        start = position[who]
        position[who] += settings.chunk_size
        chunk = stream.read(start, start + settings.chunk_size)
        return torch.from_numpy(chunk.x), [int(label) for label in chunk.y]  # type: ignore[call-overload]

    def fast() -> None:
        for _ in range(turns):
            x, y = next_chunk("learner")
            learner.observe(x.numpy(), y)

    def slow() -> None:
        for _ in range(turns):
            x, y = next_chunk("plain loop")
            plain.turn(x, torch.tensor(y))

    seconds = in_turns({"learner": fast, "plain loop": slow}, rounds, clock=clock)
    rate = turns * settings.chunk_size / min(seconds["learner"])
    return compared(
        "default run over a plain loop" + (", the same model" if method == "paper" else ", with all that mixed adds"),
        seconds,
        slow="plain loop",
        fast="learner",
        target=4.0 if method == "paper" else None,
        meaning="examples a second over those of a plain, readable loop of the paper's method",
        note=f"{rate:,.0f} examples/s at best",
    )
