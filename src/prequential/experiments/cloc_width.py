"""CLOC: the width D; the best step size is about the same α₀ over D.

Shows: average accuracy over the learning rate for each width, and the best over all rates by width.

Settings (paper): as `cloc-features`, D 128 to 2048, seven learning rates. Small: the first 20,000 of `photos`, D 32,
64, 128, 256, three rates.

Hardware and time: 2 cores; small 12 minutes.

Expected: wider is better; the best α₀ stays about the same, so the best step size falls as 1/D.
"""

from __future__ import annotations

from prequential.experiments.cloc_common import STREAM, figures_of_sweep, say_best, swept
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial

__all__ = ["STREAM", "claims", "figures", "trials"]


def trials(request: Request) -> list[Trial]:
    return swept(request, "width", (32, 64, 128, 256) if request.small else (128, 256, 512, 1024, 2048))


def figures(results: Results) -> dict[str, CaptionedFigure]:
    return figures_of_sweep(results, "width", "width D")


def claims(results: Results) -> list[Claim]:
    best = results.best("width", "rate")
    means = [best[value][1] for value in sorted(best)]
    chosen = {value: best[value][0] for value in sorted(best)}
    steps = ", ".join(f"D {value}: α₀ {rate:g}" for value, rate in chosen.items())
    return [
        Claim("Wider is better.", say_best(results, "width"), means[-1] > means[0]),
        Claim(
            "The best step size is α₀/D with the same α₀ at every width.",
            f"best of the swept rates: {steps}",
            max(chosen.values()) <= 3.1 * min(chosen.values()),
        ),
    ]
