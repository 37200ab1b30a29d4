"""Description length: how many bits several models need to say the labels of a data set, one after the other.

Shows: the prequential code length of the labels over the stream under several learners; less is better, and no test set
is needed.

Settings: the learners' own; the transformer is the paper's pi-transformer (2 blocks, D 128, C 256, S 50, 8 streams).
Small: 20 tasks of 200 handwritten digits. Paper: 100 tasks.

Hardware and time: 2 cores; small 2 minutes.

Expected: a model that learns in context compresses best once it has learned to; before, simple learners do.
"""

from __future__ import annotations

from prequential.experiments.experiment import PAPER, CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.plots.comparison import draw_bits

STREAM = "digits"
LEARNERS = ("transformer", "no-attention", "kalman", "replay-streams", "er", "last-label")


def trials(request: Request) -> list[Trial]:
    settings = PAPER.changed(depth=2, window=256, chunk_size=50, num_streams=8, learning_rate=0.064)
    run = {"tasks": 20 if request.small else 100} if request.stream == "digits" else {}
    return [
        trial
        for learner in LEARNERS
        for trial in over_seeds(request, settings, {"learner": learner}, learner=learner, run=run)
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    groups = {name: results.where(learner=name).scores() for name in results.values("learner")}
    return {
        "bits": CaptionedFigure(
            draw_bits({results.request.stream: groups}), "Bits to say all labels so far, less is better."
        )
    }


def claims(results: Results) -> list[Claim]:
    bits = {name: results.where(learner=name).mean("bits") for name in results.values("learner")}
    best = min(bits, key=bits.__getitem__)
    says = ", ".join(f"{name} {value:,.0f}" for name, value in sorted(bits.items(), key=lambda item: item[1]))
    return [Claim("The transformer has the shortest code.", f"bits: {says}", best == "transformer")]
