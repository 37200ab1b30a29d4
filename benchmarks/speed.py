"""How fast the learner is: against the matrix products it is made of, and against a plain loop of the same model.

    python benchmarks/speed.py

Every figure is a ratio of two things measured in the same run, in turns, so that noise meets both alike. Two cores,
about two minutes. Expected: the paper's base model at 60 % or more of the matmul rate, the default at 1.5 times or
more of the plain loop.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from plain import PlainLoop

from prequential.learners.transformer import Learner
from prequential.settings import Settings, for_digits
from prequential.streams.digits import digits


def in_turns(works: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each work, measured one after the other, several times over."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for round_ in range(rounds + 1):
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            if round_:  # the first one warms up
                seconds[name].append(time.perf_counter() - begun)
    return seconds


def base_model(rounds: int) -> None:
    """A training step of the paper's base model, in multiply-accumulates a second, over those of a plain matmul."""
    s = Settings(width=1024, depth=4, heads=8, window=512, chunk=256, streams=1)
    learner = Learner(713, settings=s)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(256, 2048)).astype(np.float32), random.integers(0, 713, 256).tolist()
    for _ in range(3):  # fills the window
        learner.learn_many(x, y)
    assert learner.model is not None
    macs = 3 * 256 * learner.model.macs_per_example()
    a, b = torch.randn(256, 1024), torch.randn(1024, 4096)
    c, d = torch.randn(2048, 1024), torch.randn(1024, 4096)

    def products(left: torch.Tensor, right: torch.Tensor, times: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(times):
                left @ right

        return work

    seconds = in_turns(
        {"step": lambda: learner.learn_many(x, y), "same shapes": products(a, b, 24), "large": products(c, d, 3)},
        rounds,
    )
    rates = {
        "step": [macs / t for t in seconds["step"]],
        "same shapes": [24 * a.shape[0] * b.numel() / t for t in seconds["same shapes"]],
        "large": [3 * c.shape[0] * d.numel() / t for t in seconds["large"]],
    }
    for name in ("same shapes", "large"):
        ratio = statistics.median(rates["step"]) / statistics.median(rates[name])
        best = max(rates["step"]) / max(rates[name])
        print(f"base model step / matmul ({name:11}): median {ratio:.0%}, best {best:.0%}")


def default_run(rounds: int) -> None:
    """The default run's examples a second over those of the plain loop."""
    s = for_digits()
    stream = digits()
    learner, plain = Learner(10, settings=s), PlainLoop(s, 64, 10)
    learner.replay_from(stream)
    position = {"fast": 0, "plain": 0}
    turns = 10

    def fast() -> None:
        for _ in range(turns):
            chunk = stream.read(position["fast"], position["fast"] + s.chunk)
            learner.observe(chunk.x, chunk.y)
            position["fast"] += s.chunk

    def slow() -> None:
        for _ in range(turns):
            chunk = stream.read(position["plain"], position["plain"] + s.chunk)
            plain.turn(torch.from_numpy(chunk.x), torch.tensor(chunk.y))
            position["plain"] += s.chunk

    seconds = in_turns({"fast": fast, "plain": slow}, rounds)
    ratios = [b / a for a, b in zip(seconds["fast"], seconds["plain"], strict=True)]
    rate = turns * s.chunk / statistics.median(seconds["fast"])
    print(
        f"default run / plain loop: median {statistics.median(ratios):.2f} x, best {max(ratios):.2f} x ({rate:,.0f} examples/s)"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    default_run(arguments.rounds)
    base_model(arguments.rounds)
