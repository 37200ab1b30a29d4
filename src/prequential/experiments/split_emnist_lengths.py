"""Split-EMNIST with tasks of several lengths: the shorter the tasks, the more of them it takes.

Shows: average accuracy and accuracy per task for several numbers of examples a task, as many tasks each.

Settings (paper): as `split-emnist`, with 300, 1000 and 3000 examples a task. Small: 30 tasks of 100, 300 and
600. Medium: the same as in the paper with the small networks, three seeds.

Hardware and time: 2 cores; small 5 minutes, medium six hours of a core.

Four of the six hours are for tasks of 3000.

Expected: longer tasks have a higher average; the learner becomes few-shot after fewer long tasks than short ones.
"""

from __future__ import annotations

from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.split_emnist import sizes
from prequential.experiments.verdicts import judge
from prequential.plots.studies import draw_lines, draw_task_curves

STREAM = "emnist"


def trials(request: Request) -> list[Trial]:
    settings, run = sizes(request, (30, 300))
    lengths = request.of((100, 300, 600), (300, 1000, 3000), (300, 1000, 3000))
    return [
        trial
        for length in lengths
        for trial in over_seeds(request, settings, {"length": length}, run={**run, "task_length": length})
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    lengths = sorted(results.values("length"))
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
    arms = {length: results.where(length=length) for length in sorted(results.values("length"))}
    few = "" if len(arms) > 1 else "not run: a second length"
    return [
        judge(
            "Longer tasks give a higher average.",
            paper="Detailed look at the within-task performance for the scenario with 1000 examples per task.",
            criterion="the longest tasks have at least 5 points of average accuracy more than the shortest",
            arms={f"{length} examples": of.by_seed() for length, of in arms.items()},
            effect=lambda *values: values[-1] - values[0],
            least=0.05,
            unless=few,
        ),
        judge(
            "The same behavior for every length: it struggles and then becomes good.",
            measure="accuracy over the last ten tasks minus that over the first ten",
            criterion="at every length at least 10 points",
            arms={
                f"{length} examples": {
                    seed: last - of.by_seed("first_tasks")[seed] for seed, last in of.by_seed("last_tasks").items()
                }
                for length, of in arms.items()
            },
            effect=lambda *values: min(values),
            least=0.1,
            unless=few,
        ),
    ]
