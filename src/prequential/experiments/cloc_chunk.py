"""CLOC: the chunk size S, which is not critical but goes with the learning rate.

Shows: average accuracy over the learning rate for each chunk size, and the best over all rates by chunk size.

Settings (paper): as `cloc-features`, S 32 to 1024, seven learning rates. Small: the first 20,000 of `photos`, S 16, 64,
256, three rates.

Hardware and time: 2 cores; small 10 minutes.

Expected: S is not critical; larger chunks like higher learning rates.
"""

from __future__ import annotations

from prequential.experiments.cloc_common import STREAM, figures_of_sweep, say_best, swept
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial

__all__ = ["STREAM", "claims", "figures", "trials"]


def trials(request: Request) -> list[Trial]:
    return swept(request, "chunk", (16, 64, 256) if request.small else (32, 64, 128, 256, 512, 1024))


def figures(results: Results) -> dict[str, CaptionedFigure]:
    return figures_of_sweep(results, "chunk", "chunk size S")


def claims(results: Results) -> list[Claim]:
    best = results.best("chunk", "rate")
    means = [mean for _, mean in best.values()]
    chosen = [best[value][0] for value in sorted(best)]
    return [
        Claim("The chunk size is not critical.", say_best(results, "chunk"), min(means) > 0.9 * max(means)),
        Claim(
            "Larger chunks like higher learning rates.",
            ", ".join(f"S {value}: α₀ {best[value][0]:g}" for value in sorted(best)),
            chosen[-1] > chosen[0],
        ),
    ]
