"""Split-EMNIST: a transformer that struggles at first becomes a few-shot learner.

Shows: the error and the log-loss of every example of the first and of the last ten tasks, not smoothed, with their
averages so far; accuracy and log-loss per task, and within a task by the number of the task (the paper's figures on
Split-EMNIST), averaged over data seeds.

Settings (paper): 100 tasks of 1000 examples, 10 of 47 classes each with a random label map; the ConvNet, 4 blocks, D
256, 4 heads, S 50, step size 1e-4 constant, 8 streams; a seed makes the tasks, the weights and the replay. Small: 20 tasks of 300, 2 blocks, D 128, step size 5e-4.
Medium: the same networks as small, 100 tasks of 300, three seeds.

Hardware and time: 2 cores; paper scale 20 to 75 minutes of a core a seed in float32 (`--precision bfloat16` less where
the processor has it), small 2 minutes a seed, medium 10.

Expected: the first ten to twenty tasks are hard, then a few examples of a new task are enough. A plain implementation
reached an average of 0.857 (0.540 nats) and 0.940 over the last ten tasks at paper scale.
"""

from __future__ import annotations

from prequential.evaluation.scores import Scores
from prequential.experiments.experiment import ON_IMAGES, CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.verdicts import Interval, deviation_interval, judge
from prequential.plots.studies import draw_instantaneous, draw_task_curves, draw_within_tasks
from prequential.plots.tasks import draw_every_example, draw_within_by_task
from prequential.settings import Settings

STREAM = "emnist"
SMALL = ON_IMAGES.changed(depth=2, width=128, window=256, learning_rate=128 * 5e-4, extractor_learning_rate=5e-4)
FEW_SHOT = (20, 40)  # "a few examples": these positions of a task
STEADY = 0.02  # a standard deviation over seeds that is low
PAPER_EXAMPLES = 100_000
IN_CONTEXT = 0.35  # accuracy on ten classes that takes context: labels are random in every task, so 10 % without it


def trials(request: Request) -> list[Trial]:
    settings, run = sizes(request)
    return over_seeds(request, settings, {"model": "pi"}, run=run)


def sizes(request: Request, small: tuple[int, int] = (20, 300)) -> tuple[Settings, dict[str, int]]:
    """The networks, and how many tasks of which length."""
    tasks, length = request.of(small, (100, 300), (100, 1000))
    return request.of(SMALL, SMALL, ON_IMAGES), {"tasks": tasks, "task_length": length}


def figures(results: Results) -> dict[str, CaptionedFigure]:
    return figures_of_tasks(results, {"pi-transformer": results})


def figures_of_tasks(results: Results, arms: dict[str, Results]) -> dict[str, CaptionedFigure]:
    """The paper's figures on a stream of tasks."""
    groups = {name: of.scores() for name, of in arms.items() if of.outcomes}
    seeds = len(results.values("seed"))
    over = f"averaged over {seeds} seeds" if seeds > 1 else "one seed"
    faint = "faint, of every example, not smoothed; dark, " if len(groups) == 1 else ""
    found = {}
    every = {
        name: [examples for o in of.outcomes if (examples := o.every_example()) is not None]
        for name, of in arms.items()
        if of.outcomes
    }
    starts = groups[next(iter(groups))][0].task_starts
    if starts is not None and all(len(every[name]) == len(arms[name]) for name in every):
        found["examples"] = CaptionedFigure(
            draw_every_example(every, starts),
            f"Error and log-loss in the first and in the last ten tasks, {over}: {faint}of 20 examples that follow "
            "each other within a task; dashed, over all so far.",
        )
    return {
        **found,
        "tasks": CaptionedFigure(draw_task_curves(groups), f"Accuracy and log-loss of each task, {over}."),
        "within": CaptionedFigure(
            draw_within_by_task(next(iter(groups.values()))) if len(groups) == 1 else draw_within_tasks(groups),
            f"Accuracy by the position in the task, by the number of the task, {over}.",
        ),
        "curves": CaptionedFigure(
            draw_instantaneous(groups),
            f"Accuracy over the latest examples (a hundredth of the stream) and over all so far, {over}.",
        ),
    }


def measures(scores: Scores) -> dict[str, float]:
    """What the claims on tasks need: accuracy within tasks, and of some tasks."""
    count = scores.task_count
    tasks = scores.tasks()["accuracy"]
    found = {"task_1": float(tasks[0])}
    for name, first, last in (("first", 0, min(10, count)), ("last", max(0, count - 10), count)):
        curve = scores.within_task(first, last - 1)
        here = (curve["first"] <= FEW_SHOT[1]) & (curve["last"] >= FEW_SHOT[0])
        found[f"few_shot_{name}"] = float((curve["accuracy"] * curve["count"])[here].sum() / curve["count"][here].sum())
    if count >= 5:
        found["tasks_2_to_5"] = float(tasks[1:5].mean())
    if count >= 60:
        found["tasks_31_to_40"] = float(tasks[30:40].mean())
    return found


def too_short(results: Results) -> str:
    """Why nothing can be said about runs shorter than the paper's that have not begun to use their context."""
    if not results.outcomes or results.examples >= PAPER_EXAMPLES or results.mean("last_tasks") >= IN_CONTEXT:
        return ""
    return f"the runs of {results.examples:,} examples are too short: the context is not used yet"


def claims(results: Results) -> list[Claim]:
    accuracy = results.by_seed()

    def spare(values: list[float]) -> Interval:
        """How far the standard deviation over the seeds is below what counts as low."""
        found = deviation_interval(values)
        low, high = (None if end is None else STEADY - end for end in (found.high, found.low))
        return Interval(STEADY - found.mean, low, high, found.seeds)

    return [
        struggle(results, 0.2),
        judge(
            "Late tasks need only a few examples.",
            paper="The model learns to be a highly efficient few-shot learner that only requires a few examples at the "
            "beginning of each task to make accurate predictions.",
            measure=f"accuracy at examples {FEW_SHOT[0]} to {FEW_SHOT[1]} of a task",
            criterion="in the last ten tasks at least 20 points more than in the first ten",
            arms={f"{name} ten tasks": results.by_seed(f"few_shot_{name}") for name in ("first", "last")},
            effect=lambda first, last: last - first,
            least=0.2,
        ),
        judge(
            "It goes on improving until task 100.",
            paper="The model is a strong few-shot learner after seeing 30 tasks and further improves until at least task "
            "100.",
            measure="accuracy per task",
            criterion="the last ten tasks have at least 1 point more than tasks 31 to 40",
            arms={"tasks 31 to 40": results.by_seed("tasks_31_to_40"), "last ten": results.by_seed("last_tasks")},
            effect=lambda middle, last: last - middle,
            least=0.01,
        ),
        drop(results),
        judge(
            "The average accuracy varies little from run to run.",
            paper="Note however that the average accuracy has very low variability, even for a single run.",
            criterion="the standard deviation over at least 5 data seeds is below 2 points, and so is its 95 % limit",
            arms={"average": accuracy},
            effect=lambda value: value,
            least=0.0,
            interval=lambda values: spare(list(values)),
            beside=f"standard deviation {100 * deviation_interval(list(accuracy.values())).mean:.2f} points"
            if len(accuracy) > 1
            else "",
            unless="" if len(accuracy) >= 5 else f"{len(accuracy)} of 5 seeds",
        ),
    ]


def struggle(results: Results, least: float) -> Claim:
    """The learner struggles in the first tasks and then becomes good."""
    return judge(
        "The learner struggles in the first tasks and then becomes good.",
        paper="After initially struggling during the first ≈ 20 tasks, the model learns to be a highly efficient few-shot "
        "learner.",
        measure="accuracy over the first ten and the last ten tasks",
        criterion=f"the last ten tasks have at least {100 * least:.0f} points more than the first ten",
        arms={f"{name} ten tasks": results.by_seed(f"{name}_tasks") for name in ("first", "last")},
        effect=lambda first, last: last - first,
        least=least,
    )


def drop(results: Results) -> Claim:
    """It is worse in the second to fifth task than in the first."""
    return judge(
        "At first it gets worse from task to task.",
        paper="We first observe a performance drop that is generally associated with loss of plasticity issues.",
        measure="accuracy per task",
        criterion="tasks 2 to 5 have on average at least 2 points less than task 1",
        arms={"task 1": results.by_seed("task_1"), "tasks 2 to 5": results.by_seed("tasks_2_to_5")},
        effect=lambda first, later: first - later,
        least=0.02,
    )
