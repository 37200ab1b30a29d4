"""Split-EMNIST with what goes beyond the paper: no struggling start, at fewer multiply-accumulates.

Shows: instantaneous and averaged accuracy and log-loss, accuracy per task, and accuracy within early, middle and late
tasks, of the paper's method and of `method="mixed"`: three heads mixed by what they were worth, predicting with an
average of the parameters.

Settings: the paper's method as in `split-emnist`. Mixed: the same networks but for hidden layers of 640 instead of
1024, and 7 streams instead of 8, which pays for the average's own pass; step size 3e-4, falling with the square root
from example 25,000 on. Small: both with the small networks of `split-emnist`, 20 tasks of 300.

Hardware and time: 2 cores; paper scale 25 to 50 minutes for each of the two runs of a seed in float32, small 4 minutes
a seed.

Expected: the mixed learner is ahead of the paper's in every tenth of the stream, and far ahead in the first.
"""

from __future__ import annotations

from prequential.experiments.experiment import ON_IMAGES, CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.split_emnist import SMALL
from prequential.plots.studies import draw_instantaneous, draw_task_curves, draw_within_tasks

STREAM = "emnist"
NAMES = {"paper": "the paper's method", "mixed": "mixed"}


def trials(request: Request) -> list[Trial]:
    tasks, length = (20, 300) if request.small else (100, 1000)
    paper = SMALL if request.small else ON_IMAGES
    mixed = paper.changed(method="mixed", num_streams=7, mlp_width=5 * paper.width // 2)
    if not request.small:
        mixed = mixed.changed(
            learning_rate=256 * 3e-4, extractor_learning_rate=3e-4, lr_decay="inverse-sqrt", lr_decay_examples=25_000
        )
    run = {"tasks": tasks, "task_length": length}
    return [
        *over_seeds(request, paper, {"method": "paper"}, run=run),
        *over_seeds(request, mixed, {"method": "mixed"}, run=run),
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    groups = {NAMES[method]: results.where(method=method).scores() for method in results.values("method")}
    return {
        "curves": CaptionedFigure(draw_instantaneous(groups), "Accuracy over the latest examples and over all so far."),
        "tasks": CaptionedFigure(draw_task_curves(groups), "Accuracy and log-loss of each task."),
        "within": CaptionedFigure(draw_within_tasks(groups), "Accuracy by the position in the task."),
    }


def claims(results: Results) -> list[Claim]:
    paper, mixed = results.where(method="paper"), results.where(method="mixed")
    first = paper.tasks("first_tasks"), mixed.tasks("first_tasks")
    return [
        Claim(
            "(Not in the paper.) The slow start can be avoided at no extra cost.",
            f"{first[1]:.1%} over the first ten tasks instead of {first[0]:.1%}, "
            f"{mixed.mean():.1%} instead of {paper.mean():.1%} over all, "
            f"with {mixed.mean('macs') / paper.mean('macs'):.2f} times the multiply-accumulates",
            first[1] > first[0] + 0.1 and mixed.mean("macs") <= paper.mean("macs"),
        )
    ]
