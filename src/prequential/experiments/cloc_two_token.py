"""CLOC: 2-token learns in steps whose places are chance, pi smoothly.

Shows: accuracy over the latest examples of both models for several seeds of the initial weights, on the same stream.

Settings (paper): 2-token with 8 blocks, pi with 4, D 1024, the first 10 million examples, several seeds. Small: the first 20,000 of
`photos`, 4 and 2 blocks, D 128, three seeds at least.

Hardware and time: 2 cores; small 25 minutes.

Expected: distinct improvements at places that differ from seed to seed for 2-token, smooth curves for pi.
"""

from __future__ import annotations

import numpy as np

from prequential.drawing.studies import draw_instantaneous
from prequential.experiments.base import Ask, Claim, Drawn, Found, Trial, over_seeds
from prequential.experiments.cloc import STREAM, base, examples

__all__ = ["STREAM", "claims", "figures", "trials"]
LEAST_SEEDS = 3  # chance is what this is about


def trials(ask: Ask) -> list[Trial]:
    ask = Ask(scale=ask.scale, seeds=max(ask.seeds, LEAST_SEEDS), stream=_one_world(ask.stream))
    pi = base(ask)
    two = pi.changed(model="two-token", depth=2 * pi.depth, window=2 * pi.window)
    run = {"stream": ask.stream, **(examples(ask) or {"examples": 10_000_000})}
    return [
        trial
        for name, settings in (("pi", pi), ("two-token", two))
        for trial in over_seeds(ask, settings, {"model": name}, run=run)
    ]


def figures(found: Found) -> dict[str, Drawn]:
    groups = {f"{o.tags['model']}, seed {o.tags['seed']}": [o.scores()] for o in found.outcomes}
    window = max(100, min(scores.count for some in groups.values() for scores in some) // 10)  # six lines in one panel
    return {
        "phases": Drawn(
            draw_instantaneous(groups, window),
            "Accuracy of both models, several seeds of the initial weights on one stream.",
        )
    }


def claims(found: Found) -> list[Claim]:
    def halfway(model: str) -> list[int]:
        places = []
        for scores in found.where(model=model).scores():
            curve = scores.curve()
            level = curve["accuracy"][-1] / 2
            places.append(int(curve["position"][np.argmax(curve["accuracy"] >= level)]))
        return places

    pi, two = halfway("pi"), halfway("two-token")
    return [
        Claim(
            "2-token improves in steps whose places are chance, pi more reliably.",
            f"half of the final accuracy is reached at {_say(two)} (2-token) and {_say(pi)} (pi)",
            max(two) - min(two) > max(pi) - min(pi),
        ),
        Claim(
            "pi is ahead of 2-token early.",
            f"average {found.where(model='pi').mean():.1%} against {found.where(model='two-token').mean():.1%}",
            found.where(model="pi").mean() > found.where(model="two-token").mean(),
        ),
    ]


def _one_world(stream: str) -> str:
    """The seeds are to make other weights, not other streams."""
    return "photos(seed=0)" if stream == "photos" else stream


def _say(places: list[int]) -> str:
    return ", ".join(f"{place:,}" for place in places)
