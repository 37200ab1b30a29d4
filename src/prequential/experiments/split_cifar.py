"""Split-CIFAR-100: the same behavior on harder images, with a deeper extractor and more replay.

Shows: error and log-loss of the first and last ten tasks, accuracy per task, and within tasks by their number.

Settings (paper): 100 tasks of 5000 examples, 10 of 100 classes each; VGG++ with dropout 0.1, 4 blocks, D 256, S 50,
step size 1e-4, 20 streams. Small: 40 tasks of 1000, otherwise the same; medium: 100 tasks of 1000.

Hardware and time: 2 cores; small two and a half to three hours a seed in float32, less with `--precision bfloat16`
where the processor has it.

Expected: as on Split-EMNIST, but it takes more examples; forty tasks are too few for the few-shot behavior to be
complete.
"""

from __future__ import annotations

from prequential.experiments.experiment import ON_IMAGES, CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.split_emnist import drop, figures_of_tasks, measures, struggle

__all__ = ["STREAM", "claims", "figures", "measures", "trials"]
STREAM = "cifar100"


def trials(request: Request) -> list[Trial]:
    tasks, length = request.of((40, 1000), (100, 1000), (100, 5000))
    settings = ON_IMAGES.changed(extractor="vgg", num_streams=20)
    return over_seeds(request, settings, {"model": "pi"}, run={"tasks": tasks, "task_length": length})


def figures(results: Results) -> dict[str, CaptionedFigure]:
    return figures_of_tasks(results, {"pi-transformer": results})


def claims(results: Results) -> list[Claim]:
    return [struggle(results, 0.05), drop(results)]
