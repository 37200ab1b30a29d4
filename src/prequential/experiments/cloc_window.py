"""CLOC: the attention window C; up to about 512 examples it helps.

Shows: accuracy over the stream, and of the latest examples, for each window, and over the learning rate where several are run.

Settings (paper): as `cloc-features`, C 16 to 2048, seven learning rates. Small: the first 500,000 of `photos`, C 16, 64, 256, 512, and one
rate: before about 80,000 examples no context is used, so that shorter runs would say nothing. The claim is about the last tenth.

Hardware and time: 2 cores; small 20 minutes.

Expected: a longer window helps up to about 512.
"""

from __future__ import annotations

import numpy as np

from prequential.drawing.comparison import draw_accuracies
from prequential.drawing.studies import draw_instantaneous
from prequential.experiments.base import Ask, Claim, Drawn, Found, Trial, over_seeds
from prequential.experiments.cloc import STREAM, base, examples, figures_of_sweep, judged, say_best, swept

__all__ = ["STREAM", "claims", "figures", "trials"]


def trials(ask: Ask) -> list[Trial]:
    if not ask.small:
        return swept(ask, "window", (16, 64, 128, 256, 512, 1024, 2048))
    return [
        trial
        for window in (16, 64, 256, 512)
        for trial in over_seeds(
            ask,
            base(ask).changed(window=window),
            {"window": window, "rate": base(ask).rate},
            run=examples(ask, 25),
        )
    ]


def figures(found: Found) -> dict[str, Drawn]:
    drawn = figures_of_sweep(found, "window", "attention window C")
    if len(found.values("rate")) == 1:
        del drawn["rates"]
    groups = {
        f"C = {window}": found.where(window=window, rate=rate).scores()
        for window, (rate, _) in found.best("window", "rate").items()
    }
    window = max(1, min(scores.count for some in groups.values() for scores in some) // 20)
    return {
        "curves": Drawn(
            draw_accuracies({found.ask.stream: groups}), "Average accuracy so far, a line for each window."
        ),
        "latest": Drawn(draw_instantaneous(groups, window), "Accuracy over the latest twentieth, and over all so far."),
        **drawn,
    }


def claims(found: Found) -> list[Claim]:
    says = "A window up to 512 helps."
    best = found.best("window", "rate")
    means = {
        window: float(np.mean(judged(found.where(window=window, rate=best[window][0])))) for window in sorted(best)
    }
    upto = [mean for window, mean in means.items() if window <= 512]
    if not found.ask.small:
        return [Claim(says, say_best(found, "window"), upto == sorted(upto))]
    latest = ", ".join(f"{window}: {mean:.1%}" for window, mean in means.items())
    return [
        Claim(says, f"over the last tenth {latest}; over all of it {say_best(found, 'window')}", upto == sorted(upto))
    ]
