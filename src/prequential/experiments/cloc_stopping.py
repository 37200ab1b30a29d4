"""CLOC: gradient steps stopped at several positions, so that only the context adapts from there on.

Shows: average accuracy over the stream when nothing is learnt by gradient from a position on.

Settings (paper): as `cloc-features`, stopped at 0.5, 1, 2, 5, 10 and 20 million. Small: the first 40,000 of `photos`, stopped at 1,
2, 5, 10 and 20 thousand.

Hardware and time: 2 cores; small 8 minutes.

Expected: stopping early costs most; steps still help late in the stream.
"""

from __future__ import annotations

from prequential.experiments.base import Ask, Claim, Drawn, Found, Trial, over_seeds
from prequential.experiments.cloc import STREAM, base, examples
from prequential.plots.comparison import draw_accuracies

__all__ = ["STREAM", "claims", "figures", "trials"]


def trials(ask: Ask) -> list[Trial]:
    at = (1_000, 2_000, 5_000, 10_000, 20_000) if ask.small else tuple(int(m * 1e6) for m in (0.5, 1, 2, 5, 10, 20))
    return [
        trial
        for stop in (*at, None)
        for trial in over_seeds(
            ask, base(ask).changed(freeze_at=stop), {"stopped": "never" if stop is None else stop}, run=examples(ask, 2)
        )
    ]


def figures(found: Found) -> dict[str, Drawn]:
    groups = {_name(stop): found.where(stopped=stop).scores() for stop in found.values("stopped")}
    return {
        "stopping": Drawn(
            draw_accuracies({found.ask.stream: groups}), "Average accuracy when learning stops at several positions."
        )
    }


def claims(found: Found) -> list[Claim]:
    stops = found.values("stopped")
    means = [found.where(stopped=stop).mean() for stop in stops]
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
