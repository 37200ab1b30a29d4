"""CLOC on given features: the transformer against itself without images, without context, and an oracle of labels.

Shows: accuracy over the stream, and of the latest examples, of the pi-transformer, of no-image (labels alone),
no-attention (C = 0: the image alone), and of the oracle that is right where the label is among the last 100.

Settings (paper): 4 blocks, D 1024, C 512, S 256, 8 streams, step size 0.03/D, ResNet-50 features. Small: the first
500,000 of `photos`, 2 blocks, D 128, C 256, S 64, 4 streams, step size 0.18/D, and the claims are about the last tenth
of them.

Hardware and time: 2 cores; small 15 minutes; the transformer begins to use its context at about 80,000 examples.

Expected on CLOC: 59 % against 18 % without images and 19 % without context.
"""

from __future__ import annotations

from prequential.experiments.cloc_common import STREAM, base, describe_judged, examples, figure_of_latest, judged
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.plots.comparison import draw_accuracies

__all__ = ["STREAM", "claims", "figures", "trials"]
LEARNERS = {
    "transformer": "transformer",
    "no image": "no-image",
    "no attention": "no-attention",
    "oracle(100)": "oracle(window=100)",
    "last label": "last-label",
}


def trials(request: Request) -> list[Trial]:
    return [
        trial
        for name, learner in LEARNERS.items()
        for trial in over_seeds(request, base(request), {"learner": name}, learner=learner, run=examples(request, 25))
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    groups = {name: results.where(learner=name).scores() for name in results.values("learner")}
    return {
        "curves": CaptionedFigure(
            draw_accuracies({results.request.stream: groups}),
            "Average accuracy so far: with all, without images, without context, and of two that know labels alone.",
        ),
        "latest": figure_of_latest({name: of for name, of in groups.items() if not name.startswith("oracle")}),
    }


def claims(results: Results) -> list[Claim]:
    own, context, image = (results.where(learner=name) for name in ("transformer", "no attention", "no image"))

    def say(other: Results, without: str) -> str:
        text = f"{judged(own):.1%} with, {judged(other):.1%} without {without}"
        return describe_judged(text, f"{own.mean():.1%} and {other.mean():.1%}", results.request)

    return [
        Claim("Without context (C = 0) it collapses.", say(context, "context"), judged(context) < judged(own) / 2),
        Claim("The labels alone are not enough.", say(image, "images"), judged(image) < judged(own) / 2),
    ]
