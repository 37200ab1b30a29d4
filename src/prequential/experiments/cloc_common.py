"""What the experiments on CLOC's features have in common.

The stream is `photos`, a stand-in, unless a folder of features extracted from CLOC is given with `--stream`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prequential.evaluation.scores import Scores
from prequential.experiments.experiment import PAPER, CaptionedFigure, Request, Results, Trial, over_seeds
from prequential.plots.studies import draw_instantaneous, draw_lines
from prequential.settings import Settings

STREAM = "photos"
SMALL = PAPER.changed(width=128, depth=2, window=256, chunk_size=64, num_streams=4, learning_rate=0.18)
SETTINGS = {"streams": "num_streams", "chunk": "chunk_size"}  # what tags of trials and their folders stand for
BASE = PAPER.changed(width=1024, depth=4, window=512, chunk_size=256, num_streams=8, learning_rate=0.03)
SMALL_EXAMPLES = 20_000
RATES = (0.06, 0.18, 0.5)
PAPER_RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


def base(request: Request) -> Settings:
    return SMALL if request.small else BASE


def examples(request: Request, share: float = 1.0) -> dict[str, int]:
    """How much of the stream is run over; all of it at paper scale."""
    return {"examples": int(SMALL_EXAMPLES * share)} if request.small else {}


def judged(results: Results) -> float:
    """What claims are about: mean accuracy, over the last tenth where the stream is short.

    The start is most of a short stream, and there the transformer has not found out yet what its context is for.
    """
    return float(np.mean(results.latest())) if results.request.small else results.mean()


def describe_judged(text: str, on_average: str, request: Request) -> str:
    """What claims say: the accuracies that they are about, and beside them those over the whole stream."""
    return f"over the last tenth {text}; over all of it {on_average}" if request.small else text


def figure_of_latest(groups: dict[str, list[Scores]]) -> CaptionedFigure:
    """How each of them does late in the stream, where its start no longer counts."""
    shortest = min(scores.count for some in groups.values() for scores in some)
    return CaptionedFigure(
        draw_instantaneous(groups, max(1, shortest // 20)), "Accuracy over the latest twentieth, and over all so far."
    )


def rates(request: Request) -> tuple[float, ...]:
    """The learning rates alpha_0 that are swept; the paper sweeps seven."""
    return RATES if request.small else PAPER_RATES


def swept(request: Request, tag: str, values: tuple[int, ...], **more: Any) -> list[Trial]:
    """Every value of the setting that a tag stands for, with every learning rate."""
    return [
        trial
        for value in values
        for rate in rates(request)
        for trial in over_seeds(
            request,
            base(request).changed(**{SETTINGS.get(tag, tag): value, "learning_rate": rate, **more}),
            {tag: value, "rate": rate},
            run=examples(request),
        )
    ]


def figures_of_sweep(results: Results, setting: str, over: str) -> dict[str, CaptionedFigure]:
    """Average accuracy by learning rate, a line for each value of a setting; and by setting, at its best rate."""

    def accuracies(**tags: Any) -> list[float]:
        return [o.accuracy for o in results.where(**tags).outcomes]

    lines = {
        f"{over.split()[-1]} = {value}": {
            rate: accuracies(**{setting: value, "rate": rate}) for rate in results.values("rate")
        }
        for value in results.values(setting)
    }
    best = {
        value: accuracies(**{setting: value, "rate": rate})
        for value, (rate, _) in results.best(setting, "rate").items()
    }
    return {
        "rates": CaptionedFigure(
            draw_lines(lines, over="learning rate α₀ (step size α₀/D)"),
            f"Average accuracy by learning rate, a line for each {over}.",
        ),
        "best": CaptionedFigure(
            draw_lines({"pi": best}, over=over), f"Average accuracy by the {over}, each at its best learning rate."
        ),
    }


def say_best(results: Results, setting: str) -> str:
    best = results.best(setting, "rate")
    return ", ".join(f"{value}: {mean:.1%} (rate {rate:g})" for value, (rate, mean) in best.items())
