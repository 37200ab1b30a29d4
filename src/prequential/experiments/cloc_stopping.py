"""CLOC: gradient steps stopped at several positions, so that only the context adapts from there on.

Shows: average accuracy over the stream when nothing is learned by gradient from a position on.

Settings (paper): as `cloc-features`, stopped at 0.5, 1, 2, 5, 10 and 20 million. Small: the first 40,000 of `photos`,
stopped at 1, 2, 5, 10 and 20 thousand.

Hardware and time: 2 cores; small 8 minutes.

Expected: stopping early costs most; steps still help late in the stream.
"""

from __future__ import annotations

from prequential.experiments.cloc_common import STREAM, base, examples
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.plots.comparison import draw_accuracies

__all__ = ["STREAM", "claims", "figures", "trials"]


def trials(request: Request) -> list[Trial]:
    at = (1_000, 2_000, 5_000, 10_000, 20_000) if request.small else tuple(int(m * 1e6) for m in (0.5, 1, 2, 5, 10, 20))
    return [
        trial
        for stop in (*at, None)
        for trial in over_seeds(
            request,
            base(request).changed(freeze_at=stop),
            {"stopped": "never" if stop is None else stop},
            run=examples(request, 2),
        )
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    groups = {_name(stop): results.where(stopped=stop).scores() for stop in results.values("stopped")}
    return {
        "stopping": CaptionedFigure(
            draw_accuracies({results.request.stream: groups}),
            "Average accuracy when learning stops at several positions.",
        )
    }


def claims(results: Results) -> list[Claim]:
    stops = results.values("stopped")
    means = [results.where(stopped=stop).mean() for stop in stops]
    says = ", ".join(f"{_name(stop)}: {mean:.1%}" for stop, mean in zip(stops, means, strict=True))
    return [
        Claim("Freezing early costs most.", says, means == sorted(means)),
        Claim(
            "Gradient steps still contribute late in the stream.",
            f"{means[-2]:.1%} stopped last, {means[-1]:.1%} never",
            means[-1] > means[-2],
        ),
    ]


def _name(stop: int | str) -> str:
    return "never stopped" if stop == "never" else f"stopped at {stop:,}"
