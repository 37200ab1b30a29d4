"""Sweeps of a setting in which every value has several learning rates, and is judged at the best of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from prequential.experiments.experiment import CaptionedFigure, Results
from prequential.experiments.verdicts import BySeed, t_interval
from prequential.plots.studies import Line, draw_lines

STEP = math.log(3)  # between neighboring rates
LEAST_RATES = 3  # with fewer, nobody knows which rate is best
RISING = 0.01  # a rate at the edge of the grid that is this much better than its neighbor leaves the best one open


@dataclass(frozen=True)
class AtBestRate:
    """One value of a setting at the rate that is best for it, chosen on the seeds that all its rates have."""

    rate: float
    results: Results
    """All seeds at this rate."""
    rates: tuple[float, ...]
    """All that were tried."""
    rising: bool
    """Whether the best rate is at the edge of the grid, and clearly better than its neighbor."""

    @property
    def at_edge(self) -> bool:
        return self.rate in (min(self.rates), max(self.rates))

    @property
    def accuracy(self) -> BySeed:
        return self.results.by_seed()


def at_best_rate(results: Results, tag: str = "rate") -> AtBestRate | None:
    """The best rate of these outcomes, which differ in rate and seed alone; None if there are none."""
    by_rate = {rate: results.where(**{tag: rate}).by_seed() for rate in sorted(results.values(tag))}
    by_rate = {rate: of for rate, of in by_rate.items() if of}
    if not by_rate:
        return None
    common = set.intersection(*(set(of) for of in by_rate.values()))
    if not common:  # some rate has no seed in common with the others: those with the most seeds are compared
        most = max(len(of) for of in by_rate.values())
        by_rate = {rate: of for rate, of in by_rate.items() if len(of) == most}
        common = set.union(*(set(of) for of in by_rate.values()))
    means = {rate: t_interval([of[seed] for seed in common if seed in of]).mean for rate, of in by_rate.items()}
    best = max(means, key=means.__getitem__)
    rates = tuple(means)
    place = rates.index(best)
    neighbors = [rates[i] for i in (place - 1, place + 1) if 0 <= i < len(rates)]
    rising = len(rates) > 1 and len(neighbors) == 1 and means[best] > means[neighbors[0]] + RISING
    return AtBestRate(best, results.where(**{tag: best}), rates, rising)


def best_of(results: Results, tag: str, model: str | None = None) -> dict[Any, AtBestRate]:
    """Each value of a setting at its best rate, from the smallest on."""
    of = results.where(model=model)
    found = {value: at_best_rate(of.where(**{tag: value})) for value in sorted(of.values(tag))}
    return {value: best for value, best in found.items() if best is not None}


def best_rate_by_seed(results: Results) -> BySeed:
    """The best rate of each seed that has as many rates as any, as a number of grid steps (factors of 3)."""
    seeds: dict[int, dict[float, float]] = {}
    for o in results.outcomes:
        seeds.setdefault(o.tags["seed"], {})[o.tags["rate"]] = o.accuracy
    most = max((len(rates) for rates in seeds.values()), default=0)
    return {
        seed: math.log(max(rates, key=rates.__getitem__)) / STEP
        for seed, rates in seeds.items()
        if len(rates) == most > 1
    }


def say_rates(best: dict[Any, AtBestRate]) -> str:
    """Which rates the values were compared at."""
    tried = {rate for of in best.values() for rate in of.rates}
    if len(tried) < 2:
        return f"all at the rate {next(iter(tried)):g}, the only one run" if tried else ""
    return "best rates " + ", ".join(f"{value}: {of.rate:g}" for value, of in best.items())


def too_few_rates(best: dict[Any, AtBestRate]) -> str:
    """Why a comparison at the best rates is open: for some value too few were run to know its best one."""
    fewest = min((len(of.rates) for of in best.values()), default=0)
    return (
        "" if not best or fewest >= LEAST_RATES else f"best of {fewest} learning rates, at least {LEAST_RATES} needed"
    )


def edge_of_loser(loser: AtBestRate | None) -> str:
    """Why a comparison is open: the side that is behind may be better at rates beyond the grid."""
    if loser is None or not loser.rising:
        return ""
    return f"grid edge: the side that is behind is best at rate {loser.rate:g}, the last of those run"


def figures_of_sweep(results: Results, setting: str, over: str) -> dict[str, CaptionedFigure]:
    """Average accuracy by learning rate, a line for each value of a setting; and by setting, at its best rate."""

    def line(of: Results) -> Line:
        return {rate: [o.accuracy for o in of.where(rate=rate).outcomes] for rate in sorted(of.values("rate"))}

    symbol = over.split()[-1]
    figures = {}
    for model in (None, "two-token"):
        of = results.where(model=model)
        if len(of.values("rate")) > 1:
            lines = {f"{symbol} = {value}": line(of.where(**{setting: value})) for value in sorted(of.values(setting))}
            whose = " of 2-token" if model else ""
            figures["rates-two-token" if model else "rates"] = CaptionedFigure(
                draw_lines(lines, over="learning rate α₀ (step size α₀/D)"),
                f"Average accuracy{whose} by learning rate, a line for each {over}.",
            )
    best: dict[str, Line] = {}
    for name, model in (("pi", None), ("2-token", "two-token")):
        points = {value: list(of.accuracy.values()) for value, of in best_of(results, setting, model).items()}
        if points:
            best[name] = points
    figures["best"] = CaptionedFigure(
        draw_lines(best, over=over), f"Average accuracy by the {over}, each at its best learning rate."
    )
    return figures
