"""CLOC: the chunk size S, which is not critical but goes with the learning rate.

Shows: average accuracy over the learning rate for each chunk size, and the best over all rates by chunk size.

Settings (paper): as `cloc-features`, S 32 to 1024, seven learning rates. Small: the first 20,000 of `photos`, S 16, 64,
256, three rates. Medium: 500,000 of `photos`, the same S, five rates, three seeds.

Hardware and time: 2 cores; small 10 minutes.

Expected: S is not critical; larger chunks like higher learning rates.
"""

from __future__ import annotations

from prequential.experiments.cloc_common import STREAM, beside, swept, swept_further, too_short
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial
from prequential.experiments.rate_sweeps import best_of, best_rate_by_seed, figures_of_sweep, say_rates, too_few_rates
from prequential.experiments.verdicts import judge, say_rate

__all__ = ["STREAM", "claims", "figures", "trials", "trials_after"]
CRITICAL = 0.9  # of the best accuracy: a chunk size that has less is critical


def trials(request: Request) -> list[Trial]:
    return swept(request, "chunk", _values(request))


def trials_after(request: Request, results: Results) -> list[Trial]:
    return swept_further(request, results, "chunk", _values(request))


def _values(request: Request) -> tuple[int, ...]:
    values: tuple[int, ...] = request.of((16, 64, 256), (16, 64, 256), (32, 64, 128, 256, 512, 1024))
    return values


def figures(results: Results) -> dict[str, CaptionedFigure]:
    return figures_of_sweep(results, "chunk", "chunk size S")


def claims(results: Results) -> list[Claim]:
    best = best_of(results, "chunk")
    sizes = list(best)
    few = "" if len(sizes) > 1 else "not run: a second chunk size"
    ends = [sizes[0], sizes[-1]] if sizes else []
    rates = {f"S {size}": best_rate_by_seed(results.where(chunk=size)) for size in ends}
    edge = "" if min((len(of.rates) for of in best.values()), default=0) >= 3 else "not run: at least three rates"
    # the best rate of the small chunks may be higher than the grid, or that of the large ones lower
    if (
        ends
        and not edge
        and (best[ends[0]].rate == max(best[ends[0]].rates) or best[ends[1]].rate == min(best[ends[1]].rates))
    ):
        edge = "grid edge: the best rate of one of them is the last of those run"
    return [
        judge(
            "The chunk size is not critical.",
            paper="The choice of the chunk-size is not critical to obtain good results.",
            criterion=f"at its best rate, the worst S has at least {CRITICAL:.0%} of the accuracy of the best S",
            arms={f"S {size}": of.accuracy for size, of in best.items()},
            effect=lambda *values: min(values) - CRITICAL * max(values),
            least=0.0,
            beside="; ".join(
                part for part in (say_rates(best), beside({f"S {s}": o.results for s, o in best.items()})) if part
            ),
            unless=too_short(results) or few or too_few_rates(best),
        ),
        judge(
            "Larger chunks like higher learning rates.",
            paper="It does correlate with the optimal learning rate, just like batch-sizes do for regular iid. training.",
            measure="best learning rate by average accuracy, in factors of 3",
            criterion="the best rate of the largest S is at least one step of the grid (half a factor of 3 counts) above "
            "that of the smallest, and neither could move past the other beyond the grid",
            arms=rates,
            effect=lambda small, large: large - small,
            least=0.5,
            shown=say_rate,
            beside=say_rates(best),
            unless=too_short(results) or few or edge,
        ),
    ]
