"""CLOC: final accuracy over multiply-accumulates, a cube of settings for each method, and its Pareto front.

Shows: which accuracy can be had for how much compute with pi and with 2-token.

Settings (paper): D 16 to 4096, 1 to 12 blocks, 1 to 16 streams, C 128 to 2048, weight decay 1e-2 to 3e-2, 250 random
runs a method. Small: 16 runs a method, D 32 to 256, 1 to 6 blocks, 1 to 8 streams, C 64 to 512, on the first 10,000 of
`photos`.

Hardware and time: 2 cores; small 25 minutes. The same as a study that many machines work on: `prequential sweep` with
method "random".

Expected: both methods have about the same front; good pi-transformers are wide and shallow (2 to 4 blocks), good
2-token ones deeper.
"""

from __future__ import annotations

import numpy as np

from prequential.experiments.cloc_common import SETTINGS, STREAM, base
from prequential.experiments.experiment import CaptionedFigure, Claim, Outcome, Request, Results, Trial, over_seeds
from prequential.plots.studies import draw_front

__all__ = ["STREAM", "claims", "figures", "trials"]
SMALL = {"width": (32, 64, 128, 256), "depth": (1, 2, 4, 6), "streams": (1, 2, 4, 8), "window": (64, 256, 512)}
CUBE = {
    "width": tuple(2**i for i in range(4, 13)),
    "depth": (1, 2, 4, 6, 8, 10, 12),
    "streams": (1, 2, 4, 8, 16),
    "window": (128, 256, 512, 1024, 2048),
    "weight_decay": (1e-2, 2e-2, 3e-2),
}


def trials(request: Request) -> list[Trial]:
    cube, runs = (SMALL, 16) if request.small else (CUBE, 250)
    rng = np.random.default_rng(0)  # the same points for every method
    points: list[dict[str, float]] = []
    while len(points) < runs:
        point = {name: values[rng.integers(len(values))] for name, values in cube.items()}
        if point not in points:
            points.append(point)
    run = {"examples": 10_000} if request.small else {}
    return [
        trial
        for model in ("pi", "two-token")
        for point in points
        for trial in over_seeds(
            request,
            base(request).changed(
                **{
                    **{SETTINGS.get(tag, tag): value for tag, value in point.items()},
                    "model": model,
                    "window": point["window"] * (2 if model == "two-token" else 1),
                }
            ),
            {"model": model, **point},
            run=run,
        )
    ]


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
    def front(model: str) -> list[Outcome]:
        best, kept = -1.0, []
        for outcome in sorted(results.where(model=model).outcomes, key=lambda o: o.macs or 0.0):
            if outcome.accuracy > best:
                best = outcome.accuracy
                kept.append(outcome)
        return kept

    top = {model: max(o.accuracy for o in results.where(model=model).outcomes) for model in ("pi", "two-token")}
    depth = {model: float(np.mean([o.tags["depth"] for o in front(model)])) for model in ("pi", "two-token")}
    return [
        Claim(
            "Good pi-transformers are shallower than good 2-token ones.",
            f"mean depth on the front {depth['pi']:.1f} (pi) and {depth['two-token']:.1f} (2-token)",
            depth["pi"] < depth["two-token"],
        ),
        Claim(
            "Both methods end up at about the same accuracy.",
            f"best {top['pi']:.1%} (pi) and {top['two-token']:.1%} (2-token)",
            abs(top["pi"] - top["two-token"]) < 0.03,
        ),
    ]
