"""CLOC: the attention window C; up to about 512 examples it helps.

Shows: accuracy over the stream, and of the latest examples, for each window, and over the learning rate where several
are run.

Settings (paper): as `cloc-features`, C 16 to 2048, seven learning rates. Small: the first 500,000 of `photos`, C 16,
64, 256, 512, and one rate: before about 80,000 examples no context is used, so that shorter runs would say nothing. The
claim is about the last tenth.

Hardware and time: 2 cores; small 20 minutes.

Expected: a longer window helps up to about 512.
"""

from __future__ import annotations

from prequential.experiments.cloc_common import (
    STREAM,
    base,
    describe_judged,
    examples,
    figure_of_latest,
    figures_of_sweep,
    judged,
    say_best,
    swept,
)
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.plots.comparison import draw_accuracies

__all__ = ["STREAM", "claims", "figures", "trials"]


def trials(request: Request) -> list[Trial]:
    if not request.small:
        return swept(request, "window", (16, 64, 128, 256, 512, 1024, 2048))
    return [
        trial
        for window in (16, 64, 256, 512)
        for trial in over_seeds(
            request,
            base(request).changed(window=window),
            {"window": window, "rate": base(request).learning_rate},
            run=examples(request, 25),
        )
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    figures = figures_of_sweep(results, "window", "attention window C")
    if len(results.values("rate")) == 1:
        del figures["rates"]
    groups = {
        f"C = {window}": results.where(window=window, rate=rate).scores()
        for window, (rate, _) in results.best("window", "rate").items()
    }
    return {
        "curves": CaptionedFigure(
            draw_accuracies({results.request.stream: groups}), "Average accuracy so far, a line for each window."
        ),
        "latest": figure_of_latest(groups),
        **figures,
    }


def claims(results: Results) -> list[Claim]:
    best = results.best("window", "rate")
    means = {window: judged(results.where(window=window, rate=best[window][0])) for window in sorted(best)}
    upto = [mean for window, mean in means.items() if window <= 512]
    latest = ", ".join(f"{window}: {mean:.1%}" for window, mean in means.items())
    return [
        Claim(
            "A window up to 512 helps.",
            describe_judged(latest, say_best(results, "window"), results.request),
            upto == sorted(upto),
        )
    ]
