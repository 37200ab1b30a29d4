"""Split-EMNIST: the pi-transformer against the 2-token transformer, which learns more slowly.

Shows: accuracy over time and per task for both models, averaged over data seeds.

Settings (paper): as `split-emnist`; the 2-token model has a window of 1024 tokens, as many examples. Small: as
`split-emnist`, 30 tasks of 300.

Hardware and time: 2 cores; small 5 minutes a seed.

Expected: the same behavior, but 2-token needs more examples and more tasks to get there.
"""

from __future__ import annotations

from prequential.experiments.experiment import ON_IMAGES, CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.split_emnist import SMALL
from prequential.plots.studies import draw_instantaneous, draw_task_curves

STREAM = "emnist"


def trials(request: Request) -> list[Trial]:
    tasks, length = (30, 300) if request.small else (100, 1000)
    base = SMALL if request.small else ON_IMAGES
    pi = over_seeds(request, base, {"model": "pi"}, run={"tasks": tasks, "task_length": length})
    two = base.changed(model="two-token", window=2 * base.window)
    return pi + over_seeds(request, two, {"model": "two-token"}, run={"tasks": tasks, "task_length": length})


def figures(results: Results) -> dict[str, CaptionedFigure]:
    groups = {model: results.where(model=model).scores() for model in results.values("model")}
    return {
        "curves": CaptionedFigure(
            draw_instantaneous(groups), "Accuracy of both models over the latest examples and over all so far."
        ),
        "tasks": CaptionedFigure(draw_task_curves(groups), "Accuracy and log-loss of each task for both models."),
    }


def claims(results: Results) -> list[Claim]:
    pi, two = results.where(model="pi"), results.where(model="two-token")
    return [
        Claim(
            "pi is ahead of 2-token: it needs fewer examples.",
            f"average {pi.mean():.1%} against {two.mean():.1%}; last ten tasks {pi.tasks('last_tasks'):.1%} against "
            f"{two.tasks('last_tasks'):.1%}",
            pi.mean() > two.mean(),
        )
    ]
