"""Split-CIFAR-100: the same behaviour on harder images, with a deeper extractor and more replay.

Shows: accuracy over time, per task, and within early, middle and late tasks.

Settings (paper): 100 tasks of 5000 examples, 10 of 100 classes each; VGG++ with dropout 0.1, 4 blocks, D 256, S 50, step size 1e-4,
20 streams. Small: 40 tasks of 1000, otherwise the same.

Hardware and time: 2 cores; small two and a half to three hours a seed in float32, less with `--precision bfloat16` where the processor has it.

Expected: as on Split-EMNIST, but it takes more examples; forty tasks are too few for the few-shot behaviour to be complete.
"""

from __future__ import annotations

from prequential.drawing.studies import draw_within_tasks
from prequential.experiments.base import ON_IMAGES, Ask, Claim, Drawn, Found, Trial, over_seeds
from prequential.experiments.split_emnist import figures as figures_of_tasks

STREAM = "cifar100"
QUARTERS = (("first quarter", 0, 0.25), ("middle quarter", 0.375, 0.625), ("last quarter", 0.75, 1))


def trials(ask: Ask) -> list[Trial]:
    tasks, length = (40, 1000) if ask.small else (100, 5000)
    settings = ON_IMAGES.changed(extractor="vgg", streams=20)
    return over_seeds(ask, settings, {"model": "pi"}, run={"tasks": tasks, "task_length": length})


def figures(found: Found) -> dict[str, Drawn]:
    within = draw_within_tasks({"pi-transformer": found.scores()}, QUARTERS if found.ask.small else None)
    return {
        **figures_of_tasks(found),
        "within": Drawn(within, "Accuracy by the position in the task, in early, middle and late tasks."),
    }


def claims(found: Found) -> list[Claim]:
    first, last = found.tasks("first_tasks"), found.tasks("last_tasks")
    return [
        Claim(
            "The same behaviour as on Split-EMNIST: it struggles first and improves from task to task.",
            f"{first:.1%} over the first ten tasks, {last:.1%} over the last ten",
            last > first,
        )
    ]
