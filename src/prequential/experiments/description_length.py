"""Description length: how many bits several models need to say the labels of a data set, one after the other.

Shows: the prequential code length of the labels over the stream under several learners; less is better, and no test set
is needed.

Settings: the learners' own; the transformer is the paper's pi-transformer (2 blocks, D 128, C 256, S 50, 8 streams).
Small: 20 tasks of 200 handwritten digits. Medium and paper: 100 tasks.

Hardware and time: 2 cores; small 2 minutes.

Expected: a model that learns in context compresses best once it has learned to; before, simple learners do.
"""

from __future__ import annotations

from prequential.experiments.experiment import PAPER, CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.verdicts import judge, t_interval
from prequential.plots.comparison import draw_bits

STREAM = "digits"
LEARNERS = ("transformer", "no-attention", "kalman", "replay-streams", "er", "last-label")


def trials(request: Request) -> list[Trial]:
    settings = PAPER.changed(depth=2, window=256, chunk_size=50, num_streams=8, learning_rate=0.064)
    run = {"tasks": request.of(20, 100, 100)} if request.stream == "digits" else {}
    return [
        trial
        for learner in LEARNERS
        for trial in over_seeds(request, settings, {"learner": learner}, learner=learner, run=run)
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    return {
        "bits": CaptionedFigure(
            draw_bits({results.request.stream: results.groups("learner")}),
            "Bits to say all labels so far, less is better.",
        )
    }


def claims(results: Results) -> list[Claim]:
    bits = {name: results.where(learner=name).by_seed("bits") for name in LEARNERS}
    means = {name: t_interval(list(of.values())).mean for name, of in bits.items() if of and name != "transformer"}
    second = min(means, key=means.__getitem__, default="kalman")
    every = ", ".join(f"{name} {mean:,.0f}" for name, mean in sorted(means.items(), key=lambda item: item[1]))
    return [
        judge(
            "(Not in the paper.) The transformer has the shortest code.",
            measure="description length of all labels in bits",
            criterion="at least 1 % fewer bits than the best of the others",
            arms={name: bits[name] for name in ("transformer", second)},
            effect=lambda own, other: 0.99 * other - own,
            least=0.0,
            shown=lambda interval: f"{interval.mean:,.0f} bits",
            beside=f"all others: {every}" if every else "",
        )
    ]
