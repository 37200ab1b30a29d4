"""CLOC: 2-token learns in steps whose places are chance, pi smoothly.

Shows: accuracy over the latest examples of both models for several seeds of the initial weights, on the same stream.

Settings (paper): 2-token with 8 blocks, pi with 4, D 1024, the first 10 million examples, several seeds. Small: the
first 20,000 of `photos`, 4 and 2 blocks, D 128, three seeds at least; that is before either has begun to use its
context (see `cloc-features`).

Hardware and time: 2 cores; small 5 minutes.

Expected: distinct improvements at places that differ from seed to seed for 2-token, smooth curves for pi.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from prequential.evaluation.scores import Scores
from prequential.experiments.cloc_common import STREAM, base, examples
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.plots.studies import draw_instantaneous

__all__ = ["STREAM", "claims", "figures", "trials"]
LEAST_SEEDS = 3  # chance is what this is about
LEAST_RISE = 0.05  # between the first tenth and the last; a model that rises less has not changed yet


def trials(request: Request) -> list[Trial]:
    request = replace(request, seeds=max(request.seeds, LEAST_SEEDS), stream=_one_world(request.stream))
    pi = base(request)
    two = pi.changed(model="two-token", depth=2 * pi.depth, window=2 * pi.window)
    run = {"stream": request.stream, **(examples(request) or {"examples": 10_000_000})}
    return [
        trial
        for name, settings in (("pi", pi), ("two-token", two))
        for trial in over_seeds(request, settings, {"model": name}, run=run)
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    groups = {f"{o.tags['model']}, seed {o.tags['seed']}": [o.scores()] for o in results.outcomes}
    window = max(100, min(scores.count for some in groups.values() for scores in some) // 10)  # six lines in one panel
    return {
        "phases": CaptionedFigure(
            draw_instantaneous(groups, window),
            "Accuracy of both models, several seeds of the initial weights on one stream.",
        )
    }


def claims(results: Results) -> list[Claim]:
    risen = {model: [_rise(scores) for scores in results.where(model=model).scores()] for model in ("two-token", "pi")}
    places = {model: [place for _, place in rises] for model, rises in risen.items()}
    changed = all(rise >= LEAST_RISE for rises in risen.values() for rise, _ in rises)
    spread = {model: max(of) - min(of) for model, of in places.items()}
    text = ", ".join(
        f"{model} by {100 * min(rises)[0]:.0f} to {100 * max(rises)[0]:.0f} points, halfway at {_say(places[model])}"
        for model, rises in risen.items()
    )
    pi, two = (results.where(model=model).mean() for model in ("pi", "two-token"))
    return [
        Claim(
            "2-token improves in steps whose places are chance, pi more reliably.",
            f"from the first tenth to the last they rise, {text}",
            spread["two-token"] > spread["pi"] if changed else None,
        ),
        Claim("pi is ahead of 2-token early.", f"average {pi:.1%} against {two:.1%}", pi > two),
    ]


def _rise(scores: Scores) -> tuple[float, int]:
    """How much the accuracy rises from the first tenth of the stream to the last, and where it is first halfway."""
    curve = scores.curve(max(1, scores.count // 10))
    whole = curve["position"] >= scores.count // 10
    position, accuracy = curve["position"][whole], curve["accuracy"][whole]
    return float(accuracy[-1] - accuracy[0]), int(position[np.argmax(accuracy >= (accuracy[0] + accuracy[-1]) / 2)])


def _one_world(stream: str) -> str:
    """The seeds are to make other weights, not other streams."""
    return "photos(seed=0)" if stream == "photos" else stream


def _say(places: list[int]) -> str:
    return ", ".join(f"{place:,}" for place in places)
