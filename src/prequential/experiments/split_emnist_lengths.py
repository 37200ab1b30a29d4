"""Split-EMNIST with tasks of several lengths: the shorter the tasks, the more of them it takes.

Shows: average accuracy and accuracy per task for several numbers of examples a task, as many tasks each.

Settings (paper): as `split-emnist`, with 300, 1000 and 3000 examples a task. Small: 30 tasks of 100, 300 and 600.

Hardware and time: 2 cores; small 5 minutes.

Expected: longer tasks have a higher average; the learner becomes few-shot after fewer long tasks than short ones.
"""

from __future__ import annotations

from prequential.experiments.experiment import ON_IMAGES, CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.split_emnist import SMALL
from prequential.plots.studies import draw_lines, draw_task_curves

STREAM = "emnist"


def trials(request: Request) -> list[Trial]:
    tasks, lengths = (30, (100, 300, 600)) if request.small else (100, (300, 1000, 3000))
    settings = SMALL if request.small else ON_IMAGES
    return [
        trial
        for length in lengths
        for trial in over_seeds(request, settings, {"length": length}, run={"tasks": tasks, "task_length": length})
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    lengths = results.values("length")
    line = {length: [o.accuracy for o in results.where(length=length).outcomes] for length in lengths}
    groups = {f"{length} examples a task": results.where(length=length).scores() for length in lengths}
    return {
        "lengths": CaptionedFigure(
            draw_lines({"pi": line}, over="examples a task"), "Average accuracy by the length of the tasks."
        ),
        "tasks": CaptionedFigure(
            draw_task_curves(groups), "Accuracy and log-loss of each task, for tasks of several lengths."
        ),
    }


def claims(results: Results) -> list[Claim]:
    lengths = sorted(results.values("length"))
    means = [results.where(length=length).mean() for length in lengths]
    says = ", ".join(f"{length}: {mean:.1%}" for length, mean in zip(lengths, means, strict=True))
    return [
        Claim(
            "The same behavior for other task lengths; longer tasks give a higher average.",
            says,
            means == sorted(means),
        )
    ]
