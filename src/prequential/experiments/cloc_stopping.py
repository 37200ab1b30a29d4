"""CLOC: gradient steps stopped at several positions, so that only the context adapts from there on.

Shows: average accuracy over the stream when nothing is learned by gradient from a position on.

Settings (paper): as `cloc-features`, stopped at 0.5, 1, 2, 5, 10 and 20 million. Small: the first 40,000 of `photos`,
stopped at 1, 2, 5, 10 and 20 thousand. Medium: 500,000, stopped at 31,250 and at twice, four and eight times that.

Hardware and time: 2 cores; small 8 minutes.

Expected: stopping early costs most; steps still help late in the stream.
"""

from __future__ import annotations

from itertools import pairwise

from prequential.experiments.cloc_common import STREAM, base, beside, examples, too_short
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.verdicts import judge
from prequential.plots.comparison import draw_accuracies

__all__ = ["STREAM", "claims", "figures", "trials"]


MILLIONS = tuple(int(m * 1e6) for m in (0.5, 1, 2, 5, 10, 20))


def trials(request: Request) -> list[Trial]:
    at = request.of((1_000, 2_000, 5_000, 10_000, 20_000), (31_250, 62_500, 125_000, 250_000), MILLIONS)
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
    return {
        "stopping": CaptionedFigure(
            draw_accuracies({results.request.stream: results.groups("stopped", _name)}),
            "Average accuracy when learning stops at several positions.",
        )
    }


def claims(results: Results) -> list[Claim]:
    stops = sorted((stop for stop in results.values("stopped") if stop != "never"), key=int)
    arms = {_name(stop): results.where(stopped=stop) for stop in (*stops, "never")}
    accuracy = {name: of.by_seed() for name, of in arms.items()}
    few = "" if len(stops) > 1 else "not run: two positions to stop at"

    def first_step_over_last(*values: float) -> float:
        gains = [later - earlier for earlier, later in pairwise(values)]
        return gains[0] - gains[-1] if len(gains) > 1 else float("nan")

    return [
        judge(
            "Freezing early costs most.",
            paper="Gradient based online-learning is most important at the beginning of the sequence.",
            criterion="learning until the second position instead of the first gains at least 1 point of average "
            "accuracy more than learning to the end instead of until the last position (positions about double)",
            arms=accuracy,
            effect=first_step_over_last,
            least=0.01,
            beside=beside(arms),
            unless=too_short(results) or few,
        ),
        judge(
            "Gradient steps still contribute late in the stream.",
            paper="... however keeps on contributing even after 10M examples.",
            criterion="never stopping has at least 1 point of average accuracy more than stopping last",
            arms=dict([*accuracy.items()][-2:]),
            effect=lambda stopped, never: never - stopped,
            least=0.01,
            unless=too_short(results) or few,
        ),
    ]


def _name(stop: int | str) -> str:
    return "never stopped" if stop == "never" else f"stopped at {stop:,}"
