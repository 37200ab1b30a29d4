"""Split-CIFAR-100: the same behavior on harder images, with a deeper extractor and more replay.

Shows: accuracy over time, per task, and within early, middle and late tasks.

Settings (paper): 100 tasks of 5000 examples, 10 of 100 classes each; VGG++ with dropout 0.1, 4 blocks, D 256, S 50,
step size 1e-4, 20 streams. Small: 40 tasks of 1000, otherwise the same.

Hardware and time: 2 cores; small two and a half to three hours a seed in float32, less with `--precision bfloat16`
where the processor has it.

Expected: as on Split-EMNIST, but it takes more examples; forty tasks are too few for the few-shot behavior to be
complete.
"""

from __future__ import annotations

from prequential.experiments.experiment import ON_IMAGES, CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.split_emnist import figures as figures_of_tasks

STREAM = "cifar100"


def trials(request: Request) -> list[Trial]:
    tasks, length = (40, 1000) if request.small else (100, 5000)
    settings = ON_IMAGES.changed(extractor="vgg", num_streams=20)
    return over_seeds(request, settings, {"model": "pi"}, run={"tasks": tasks, "task_length": length})


def figures(results: Results) -> dict[str, CaptionedFigure]:
    return figures_of_tasks(results)


def claims(results: Results) -> list[Claim]:
    first, last = results.tasks("first_tasks"), results.tasks("last_tasks")
    return [
        Claim(
            "The same behavior as on Split-EMNIST: it struggles first and improves from task to task.",
            f"{first:.1%} over the first ten tasks, {last:.1%} over the last ten",
            last > first,
        )
    ]
