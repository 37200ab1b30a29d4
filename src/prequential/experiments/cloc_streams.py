"""CLOC: the number of replay streams E; more of them help, and forgive a low learning rate.

Shows: average accuracy over the learning rate for each number of streams, and the best over all rates by number of
streams.

Settings (paper): as `cloc-features`, E 1 to 16, seven learning rates. Small: the first 20,000 of `photos`, E 1, 2, 4,
8, three rates.

Hardware and time: 2 cores; small 10 minutes.

Expected: more streams help and make the learning rate matter less; one stream is decent already.
"""

from __future__ import annotations

from prequential.experiments.cloc_common import STREAM, figures_of_sweep, say_best, swept
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial

__all__ = ["STREAM", "claims", "figures", "trials"]


def trials(request: Request) -> list[Trial]:
    return swept(request, "streams", (1, 2, 4, 8) if request.small else (1, 2, 4, 8, 16))


def figures(results: Results) -> dict[str, CaptionedFigure]:
    return figures_of_sweep(results, "streams", "replay streams E")


def claims(results: Results) -> list[Claim]:
    best = results.best("streams", "rate")
    numbers = sorted(best)
    means = [best[value][1] for value in numbers]

    def at_low_rate(number: int) -> float:
        here = results.where(streams=number)
        return here.where(rate=min(here.values("rate"))).mean() / best[number][1]

    few, many = at_low_rate(numbers[0]), at_low_rate(numbers[-1])
    return [
        Claim("More streams help.", say_best(results, "streams"), means[-1] > means[0]),
        Claim(
            "More streams make it robust against low learning rates.",
            f"at the lowest rate {few:.0%} of its best with {numbers[0]} stream, {many:.0%} with {numbers[-1]}",
            many > few,
        ),
    ]
