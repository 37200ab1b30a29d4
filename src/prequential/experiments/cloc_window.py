"""CLOC: the attention window C; up to about 512 examples it helps.

Shows: average accuracy over the learning rate for each window, and the best over all rates by window.

Settings (paper): as `cloc-features`, C 16 to 2048, seven learning rates. Small: the first 20,000 of `photos`, C 16, 64, 256, 512, three rates.

Hardware and time: 2 cores; small 10 minutes.

Expected: a longer window helps up to about 512.
"""

from __future__ import annotations

from prequential.experiments.base import Ask, Claim, Drawn, Found, Trial
from prequential.experiments.cloc import STREAM, figures_of_sweep, say_best, swept

__all__ = ["STREAM", "claims", "figures", "trials"]


def trials(ask: Ask) -> list[Trial]:
    return swept(ask, "window", (16, 64, 256, 512) if ask.small else (16, 64, 128, 256, 512, 1024, 2048))


def figures(found: Found) -> dict[str, Drawn]:
    return figures_of_sweep(found, "window", "attention window C")


def claims(found: Found) -> list[Claim]:
    best = found.best("window", "rate")
    means = [best[value][1] for value in sorted(best) if value <= 512]
    return [Claim("A window up to 512 helps.", say_best(found, "window"), means == sorted(means))]
