"""CLOC: the number of replay streams E; more of them help, and forgive a low learning rate.

Shows: average accuracy over the learning rate for each number of streams, and the best over all rates by number of
streams, for pi and 2-token.

Settings (paper): as `cloc-features`, E 1 to 16, seven learning rates. Small: the first 20,000 of `photos`, E 1, 2, 4,
8, three rates, pi alone. Medium: 500,000 of `photos`, the same E, five rates, three seeds.

Hardware and time: 2 cores; small 10 minutes.

Expected: more streams help and make the learning rate matter less; one stream is decent already.
"""

from __future__ import annotations

from prequential.experiments.cloc_common import STREAM, beside, swept, swept_further, too_short
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial
from prequential.experiments.rate_sweeps import best_of, edge_of_loser, figures_of_sweep, say_rates, too_few_rates
from prequential.experiments.verdicts import BySeed, judge, paired

__all__ = ["STREAM", "claims", "figures", "trials", "trials_after"]
DECENT = 2 / 3  # of the accuracy with the most streams


def trials(request: Request) -> list[Trial]:
    return swept(request, "streams", _values(request), both=True)


def trials_after(request: Request, results: Results) -> list[Trial]:
    return swept_further(request, results, "streams", _values(request), both=True)


def _values(request: Request) -> tuple[int, ...]:
    values: tuple[int, ...] = request.of((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8, 16))
    return values


def figures(results: Results) -> dict[str, CaptionedFigure]:
    return figures_of_sweep(results, "streams", "replay streams E")


def claims(results: Results) -> list[Claim]:
    return [*_claims_on(results, None), *(_claims_on(results, "two-token")[:1] if not results.request.small else [])]


def _claims_on(results: Results, model: str | None) -> list[Claim]:
    best = best_of(results, "streams", model)
    numbers = list(best)
    few = best[numbers[0]] if len(numbers) > 1 else None
    arms = {f"E {number}": of.accuracy for number, of in best.items()}
    ends = dict([*arms.items()][:: max(1, len(arms) - 1)])
    unless = too_short(results) or ("" if few else "not run: a second number of streams")
    whose = "2-token: more streams help." if model else "More streams help."
    low = _at_low_rate(results, model, [numbers[0], numbers[-1]]) if few else {}
    rates = 0 if few is None else len(few.rates)
    said = "; ".join(
        part for part in (say_rates(best), beside({f"E {n}": of.results for n, of in best.items()})) if part
    )
    return [
        judge(
            whose,
            paper="Performing more replay gradient steps improves performance.",
            criterion="at its best rate, the largest E has at least 5 points of average accuracy more than E = 1",
            arms=arms,
            effect=lambda *values: values[-1] - values[0],
            least=0.05,
            beside=said,
            unless=unless or too_few_rates(best) or edge_of_loser(few),
        ),
        judge(
            "More streams make it robust against low learning rates.",
            paper="... and makes the model more robust to lower learning-rates.",
            measure="average accuracy at the lowest rate as a share of that at the best rate",
            criterion="that share is at least 5 points higher with the largest E than with E = 1",
            arms=low,
            effect=lambda small, large: large - small,
            least=0.05,
            unless=unless or ("not run: at least three rates" if rates < 3 else ""),
        ),
        judge(
            "Without replay it is decent already.",
            paper="While more replay generally improves the predictive performance, we obtain already decent results "
            "completely without replay.",
            criterion="at its best rate, E = 1 has at least two thirds of the average accuracy of the largest E",
            arms=ends,
            effect=lambda small, large: small - DECENT * large,
            least=0.0,
            unless=unless or too_few_rates(best) or edge_of_loser(few),
        ),
    ]


def _at_low_rate(results: Results, model: str | None, numbers: list[int]) -> dict[str, BySeed]:
    """The accuracy at the lowest rate as a share of that at the best one, for these numbers of streams."""
    shares = {}
    for number in numbers:
        of = results.where(model=model, streams=number)
        best = best_of(results, "streams", model)[number]
        lowest = of.where(rate=min(of.values("rate"))).by_seed()
        shares[f"E {number}"] = paired(lambda low, high: low / high, lowest, best.accuracy)
    return shares
