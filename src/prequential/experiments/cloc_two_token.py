"""CLOC: 2-token learns in steps whose places are chance, pi smoothly.

Shows: accuracy over the latest examples of both models for several seeds of the initial weights, on the same stream.

Settings (paper): 2-token with 8 blocks, pi with 4, D 1024, the first 10 million examples, several seeds. Small: the
first 20,000 of `photos`, 4 and 2 blocks, D 128, three seeds at least; that is before either has begun to use its
context (see `cloc-features`). Medium: 500,000 of `photos`.

Hardware and time: 2 cores; small 5 minutes, medium an hour.

Expected: distinct improvements at places that differ from seed to seed for 2-token, smooth curves for pi.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from prequential.evaluation.scores import Scores
from prequential.experiments.cloc_common import STREAM, base, beside, examples, too_short, two_token, with_option
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.verdicts import decide, judge, t_interval
from prequential.plots.studies import draw_instantaneous

__all__ = ["STREAM", "claims", "figures", "measures", "trials"]
LEAST_SEEDS = 3  # chance is what this is about
LEAST_RISE = 0.05  # between the first tenth and the last; a model that rises less has not changed yet


def trials(request: Request) -> list[Trial]:
    one_stream = with_option(request.stream, "seed", 0)  # the seeds are to make other weights
    request = replace(request, seeds=max(request.seeds, LEAST_SEEDS), stream=one_stream)
    pi = base(request)
    two = two_token(pi)
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


def measures(scores: Scores) -> dict[str, float]:
    """How much the accuracy rises from the first tenth of the stream to the last, and where it is first halfway."""
    rise, halfway = _rise(scores)
    return {"rise": rise, "halfway": halfway}


def claims(results: Results) -> list[Claim]:
    models = {"2-token": results.where(model="two-token"), "pi": results.where(model="pi")}
    rises = {name: of.by_seed("rise") for name, of in models.items()}
    places = {name: of.by_seed("halfway") for name, of in models.items()}
    seeds = min(len(of) for of in places.values())
    unless = too_short(results)
    if not unless and seeds < LEAST_SEEDS:
        unless = f"not run: {LEAST_SEEDS} seeds of each model"
    if not unless and any(rise < LEAST_RISE for of in rises.values() for rise in of.values()):
        unless = f"one of the runs rises by less than {100 * LEAST_RISE:.0f} points from its first tenth to its last"
    spread = {name: max(of.values()) - min(of.values()) if of else 0.0 for name, of in places.items()}
    ratio = spread["2-token"] - 2 * spread["pi"]
    verdict, reason = decide(t_interval([ratio] * max(seeds, 2)), 0.0, unless=unless)
    found = [
        f"{name} rises by {100 * min(rises[name].values()):.0f} to {100 * max(rises[name].values()):.0f} points, halfway "
        f"at {_say([int(place) for place in of.values()])}"
        for name, of in places.items()
        if of
    ]
    return [
        Claim(
            says="2-token improves in steps whose places are chance, pi more reliably.",
            paper="Learning curves often show distinct, non-smooth improvement steps ... The exact occurrence of these "
            "steps is stochastic ... The pi-transformer learning curve shows in general more reliable improvements.",
            measure="the position where the accuracy over the latest tenth is first halfway between its start and end",
            criterion=f"over at least {LEAST_SEEDS} seeds of the weights on one stream, that position is spread at least "
            "twice as wide (largest minus smallest) with 2-token as with pi",
            found="; ".join(found) or "not run",
            verdict=verdict,
            reason=reason,
            values={name: {str(seed): place for seed, place in of.items()} for name, of in places.items()},
        ),
        judge(
            "pi is ahead of 2-token early.",
            paper="This architecture often achieves faster, more stable, and better prediction performance than the "
            "standard architecture.",
            criterion="at least 2 points of average accuracy more",
            arms={name: models[name].by_seed() for name in ("pi", "2-token")},
            effect=lambda pi, two: pi - two,
            least=0.02,
            beside=beside(models),
            unless=too_short(results),
        ),
    ]


def _rise(scores: Scores) -> tuple[float, int]:
    """How much the accuracy rises from the first tenth of the stream to the last, and where it is first halfway."""
    curve = scores.curve(max(1, scores.count // 10))
    whole = curve["position"] >= scores.count // 10
    position, accuracy = curve["position"][whole], curve["accuracy"][whole]
    return float(accuracy[-1] - accuracy[0]), int(position[np.argmax(accuracy >= (accuracy[0] + accuracy[-1]) / 2)])


def _say(places: list[int]) -> str:
    return ", ".join(f"{place:,}" for place in places)
