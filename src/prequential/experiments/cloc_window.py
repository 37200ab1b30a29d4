"""CLOC: the attention window C; up to about 512 examples it helps.

Shows: accuracy over the stream, and of the latest examples, for each window, and over the learning rate where several
are run, for pi and 2-token.

Settings (paper): as `cloc-features`, C 16 to 2048, seven learning rates; 2-token with twice the blocks and tokens.
Small: the first 500,000 of `photos`, C 16, 64, 256, 512, one rate, pi alone: before about 80,000 examples no context is
used, so that shorter runs would say nothing. Medium: the same and C 1024, five rates, three seeds.

Hardware and time: 2 cores; small 20 minutes.

Expected: a longer window helps up to about 512.
"""

from __future__ import annotations

from itertools import pairwise

from prequential.experiments.cloc_common import (
    STREAM,
    base,
    beside,
    examples,
    figure_of_latest,
    swept,
    swept_further,
    too_short,
)
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.rate_sweeps import best_of, figures_of_sweep, say_rates, too_few_rates
from prequential.experiments.verdicts import judge
from prequential.plots.comparison import draw_accuracies

__all__ = ["STREAM", "claims", "figures", "trials", "trials_after"]


def trials(request: Request) -> list[Trial]:
    if not request.small:
        return swept(request, "window", _windows(request), both=True)
    return [
        trial
        for window in _windows(request)
        for trial in over_seeds(
            request,
            base(request).changed(window=window),
            {"window": window, "rate": base(request).learning_rate},
            run=examples(request, 25),
        )
    ]


def trials_after(request: Request, results: Results) -> list[Trial]:
    return swept_further(request, results, "window", _windows(request), both=True)


def _windows(request: Request) -> tuple[int, ...]:
    windows: tuple[int, ...] = request.of(
        (16, 64, 256, 512), (16, 64, 256, 512, 1024), (16, 64, 128, 256, 512, 1024, 2048)
    )
    return windows


def figures(results: Results) -> dict[str, CaptionedFigure]:
    groups = {f"C = {window}": of.results.scores() for window, of in best_of(results, "window").items()}
    found = figures_of_sweep(results, "window", "attention window C")
    if not groups:
        return found
    return {
        "curves": CaptionedFigure(
            draw_accuracies({results.request.stream: groups}), "Average accuracy so far, a line for each window."
        ),
        "latest": figure_of_latest(groups),
        **found,
    }


def claims(results: Results) -> list[Claim]:
    return [*_claims_on(results, None), *(_claims_on(results, "two-token") if not results.request.small else [])]


def _claims_on(results: Results, model: str | None) -> list[Claim]:
    best = best_of(results, "window", model)
    arms = {f"C {window}": of.accuracy for window, of in best.items()}
    upto = {f"C {window}": of.accuracy for window, of in best.items() if window <= 512}
    said = "; ".join(p for p in (say_rates(best), beside({f"C {c}": of.results for c, of in best.items()})) if p)
    whose = "2-token: " if model else ""
    return [
        judge(
            f"{whose}A window up to 512 helps.",
            paper="Increasing the attention window up to about 512 examples improves the results.",
            criterion="at its best rate, C = 512 has at least 5 points of average accuracy more than C = 16, and no step "
            "in between loses more than half a point",
            arms=upto,
            effect=lambda *values: min(
                values[-1] - values[0] - 0.05, *(longer - shorter + 0.005 for shorter, longer in pairwise(values))
            ),
            least=0.0,
            beside=said,
            unless=too_short(results)
            or ("" if {"C 16", "C 512"} <= set(upto) else "not run: C 16 and C 512")
            or too_few_rates(best),
        ),
        judge(
            f"{whose}A window beyond 512 helps little.",
            paper="Increasing the attention window up to about 512 examples improves the results.",
            criterion="at its best rate, C = 1024 has less than 1 point of average accuracy more than C = 512",
            arms={name: arms.get(name, {}) for name in ("C 512", "C 1024")},
            effect=lambda half, double: 0.01 - (double - half),
            least=0.0,
            unless=too_short(results) or too_few_rates(best),
        ),
    ]
