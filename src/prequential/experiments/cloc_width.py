"""CLOC: the width D; the best step size is about the same α₀ over D.

Shows: average accuracy over the learning rate for each width, and the best over all rates by width.

Settings (paper): as `cloc-features`, D 128 to 2048, seven learning rates. Small: the first 20,000 of `photos`, D 32,
64, 128, 256, three rates. Medium: 500,000 of `photos`, the same D, five rates, three seeds.

Hardware and time: 2 cores; small 12 minutes, medium an hour with AVX-512.

Expected: wider is better; the best α₀ stays about the same, so the best step size falls as 1/D.
"""

from __future__ import annotations

from prequential.experiments.cloc_common import STREAM, beside, swept, swept_further, too_short
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial
from prequential.experiments.rate_sweeps import (
    best_of,
    best_rate_by_seed,
    edge_of_loser,
    figures_of_sweep,
    say_rates,
    too_few_rates,
)
from prequential.experiments.verdicts import judge, say_rate

__all__ = ["STREAM", "claims", "figures", "trials", "trials_after"]


def trials(request: Request) -> list[Trial]:
    return swept(request, "width", _values(request))


def trials_after(request: Request, results: Results) -> list[Trial]:
    return swept_further(request, results, "width", _values(request))


def _values(request: Request) -> tuple[int, ...]:
    values: tuple[int, ...] = request.of((32, 64, 128, 256), (32, 64, 128, 256), (128, 256, 512, 1024, 2048))
    return values


def figures(results: Results) -> dict[str, CaptionedFigure]:
    return figures_of_sweep(results, "width", "width D")


def claims(results: Results) -> list[Claim]:
    best = best_of(results, "width")
    widths = list(best)
    unless = too_short(results) or ("" if len(widths) > 1 else "not run: a second width")
    rates = {f"D {width}": best_rate_by_seed(results.where(width=width)) for width in widths}
    at_edge = [f"{width}" for width, of in best.items() if of.at_edge]
    rates_run = min((len(of.rates) for of in best.values()), default=0)
    edge = f"grid edge: the best rate of D {', '.join(at_edge)} is the last of those run" if at_edge else ""
    said = "; ".join(
        part for part in (say_rates(best), beside({f"D {d}": of.results for d, of in best.items()})) if part
    )
    return [
        judge(
            "Wider is better.",
            paper="Larger models are generally better.",
            criterion="at its best rate, the largest D has at least 2 points of average accuracy more than the smallest",
            arms={f"D {width}": of.accuracy for width, of in best.items()},
            effect=lambda *values: values[-1] - values[0],
            least=0.02,
            beside=said,
            unless=unless or too_few_rates(best) or edge_of_loser(best[widths[0]] if widths else None),
        ),
        judge(
            "The best step size is α₀/D with the same α₀ at every width.",
            paper="The optimal (constant) learning rate is typically α ≈ α₀/D, where D is the width of the transformer "
            "architecture.",
            measure="best α₀ by average accuracy, in factors of 3",
            criterion="the best α₀ of all widths lie within one step of the grid (half a factor of 3 more is allowed), "
            "and none of them is at the edge of the grid",
            arms=rates,
            effect=lambda *steps: 1.5 - (max(steps) - min(steps)),
            least=0.0,
            shown=say_rate,
            beside=say_rates(best),
            unless=unless or ("not run: at least three rates" if rates_run < 3 else edge),
        ),
    ]
