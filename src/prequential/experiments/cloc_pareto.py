"""CLOC: final accuracy over multiply-accumulates, a cube of settings for each method, and its Pareto front.

Shows: which accuracy can be had for how much compute with pi and with 2-token.

Settings (paper): D 16 to 4096, 1 to 12 blocks, 1 to 16 streams, C 128 to 2048, weight decay 1e-2 to 3e-2, 250 random
runs a method. Small: 16 runs a method, D 32 to 256, 1 to 6 blocks, 1 to 8 streams, C 64 to 512, on the first 10,000 of
`photos`. Medium: 60 runs a method on the first 200,000 (the context is used from about 80,000 on), weight decay and a
falling learning rate among the settings. Claims have an interval over the settings, by 2,000 bootstrap samples of them;
both methods have the same settings, which are drawn together.

Hardware and time: 2 cores; small 25 minutes, medium three hours of a core.

Medium with AVX-512, a third of it for the first 20 settings of a method (tier 1), which are enough for an interval. The
same as a study that many machines work on: `prequential sweep` with method "random".

Expected: both methods have about the same front; good pi-transformers are wide and shallow (2 to 4 blocks), good
2-token ones deeper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from prequential.experiments.cloc_common import SETTINGS, STREAM, base, too_short
from prequential.experiments.experiment import CaptionedFigure, Claim, Outcome, Request, Results, Trial, over_seeds
from prequential.experiments.verdicts import BySeed, Interval, judge, say_number
from prequential.plots.studies import draw_front

__all__ = ["STREAM", "claims", "figures", "trials"]
SMALL = {"width": (32, 64, 128, 256), "depth": (1, 2, 4, 6), "streams": (1, 2, 4, 8), "window": (64, 256, 512)}
MEDIUM = {**SMALL, "weight_decay": (1e-2, 2e-2, 3e-2), "lr_decay": ("none", "cosine")}
LEAST_SETTINGS = 20  # for an interval
SAMPLES = 2000
CUBE = {
    "width": tuple(2**i for i in range(4, 13)),
    "depth": (1, 2, 4, 6, 8, 10, 12),
    "streams": (1, 2, 4, 8, 16),
    "window": (128, 256, 512, 1024, 2048),
    "weight_decay": (1e-2, 2e-2, 3e-2),
}


def trials(request: Request) -> list[Trial]:
    cube, runs, length = request.of((SMALL, 16, 10_000), (MEDIUM, 60, 200_000), (CUBE, 250, None))
    rng = np.random.default_rng(0)  # the same points for every method
    points: list[dict[str, Any]] = []
    while len(points) < runs:
        point = {name: values[rng.integers(len(values))] for name, values in cube.items()}
        if point not in points:
            points.append(point)
    run = {"examples": length} if length else {}
    found = []
    for model in ("pi", "two-token"):
        for i, point in enumerate(points):
            changes = {SETTINGS.get(tag, tag): value for tag, value in point.items()}
            changes |= {"model": model, "window": point["window"] * (2 if model == "two-token" else 1)}
            if "lr_decay" in point and length:
                changes["lr_decay_examples"] = length
            settings = base(request).changed(**changes)
            found += over_seeds(request, settings, {"model": model, **point}, run=run, tier=1 + i // 20)
    return sorted(found, key=lambda trial: (trial.tier, trial.tags["seed"])) if request.scale == "medium" else found


def figures(results: Results) -> dict[str, CaptionedFigure]:
    points = {
        model: [(o.macs or 0.0, o.accuracy) for o in results.where(model=model).outcomes]
        for model in results.values("model")
    }
    return {
        "pareto": CaptionedFigure(
            draw_front(points), "Average accuracy over multiply-accumulates; the line is the best for the money."
        )
    }


def claims(results: Results) -> list[Claim]:
    arms = {name: results.where(model=tag) for name, tag in (("pi", "pi"), ("2-token", "two-token"))}
    unless = too_short(results)
    return [
        judge(
            "Good pi-transformers are shallower than good 2-token ones.",
            paper="Well performing pi-transformers were often relatively shallow (2 to 4 blocks) and wide, while well "
            "performing 2-token models preferred more depth (8 blocks).",
            measure="mean depth on the front of average accuracy over multiply-accumulates",
            criterion="at least one block less",
            arms={name: _by_seed(of, _depth) for name, of in arms.items()},
            effect=lambda pi, two: two - pi,
            least=1.0,
            interval=_over_settings(arms, _depth, lambda pi, two: two - pi),
            shown=say_number,
            unless=unless,
        ),
        judge(
            "Both methods end up at about the same accuracy.",
            paper="The final average performance of the 2-token approach and the pi-transformer are very similar.",
            criterion="the best runs of the two differ by less than 2 points of average accuracy",
            arms={name: _by_seed(of, _best) for name, of in arms.items()},
            effect=lambda pi, two: 0.02 - abs(pi - two),
            least=0.0,
            interval=_over_settings(arms, _best, lambda pi, two: 0.02 - abs(pi - two)),
            unless=unless,
        ),
    ]


def _by_seed(results: Results, number: Callable[[Sequence[Outcome]], float]) -> BySeed:
    return {seed: number(results.where(seed=seed).outcomes) for seed in results.values("seed")}


def _over_settings(
    arms: dict[str, Results], number: Callable[[Sequence[Outcome]], float], effect: Callable[[float, float], float]
) -> Callable[[Sequence[float]], Interval]:
    """The interval of an effect over the settings that both methods have; there is none with few of them."""
    pi, two = ({_point(o): o for o in of.outcomes} for of in arms.values())
    shared = [point for point in pi if point in two]

    def interval(values: Sequence[float]) -> Interval:
        mean, count = float(np.mean(values)), len(shared)
        if count < LEAST_SETTINGS:
            return Interval(mean, None, None, len(values))
        rng, drawn = np.random.default_rng(0), []
        for _ in range(SAMPLES):
            some = [shared[i] for i in rng.integers(count, size=count)]
            drawn.append(effect(number([pi[point] for point in some]), number([two[point] for point in some])))
        low, high = np.quantile(drawn, (0.025, 0.975))
        return Interval(mean, float(low), float(high), count, of="settings")

    return interval


def _point(outcome: Outcome) -> tuple[tuple[str, Any], ...]:
    """The setting of an outcome, and its seed."""
    return tuple(sorted((tag, value) for tag, value in outcome.tags.items() if tag != "model"))


def _best(outcomes: Sequence[Outcome]) -> float:
    return max(o.accuracy for o in outcomes)


def _depth(outcomes: Sequence[Outcome]) -> float:
    """The mean depth on the front."""
    best, depths = -1.0, []
    for outcome in sorted(outcomes, key=lambda o: o.macs or 0.0):
        if outcome.accuracy > best:
            best = outcome.accuracy
            depths.append(outcome.tags["depth"])
    return float(np.mean(depths))
