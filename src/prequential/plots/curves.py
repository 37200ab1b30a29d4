"""The figures of a run: the learning curve, accuracy inside tasks, task by task, and calibration."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from prequential.errors import BadInput
from prequential.evaluation.scores import FEW_TASKS, Scores
from prequential.plots.references import plot_references, reference_levels
from prequential.plots.style import (
    COLORS,
    GRAY,
    colors,
    examples_axis,
    label_ends,
    new_figure,
    percent,
    saved,
    short,
    styled,
    wrapped,
)

FEW_PREDICTIONS = 20  # a bin of the calibration with fewer of them says nothing
HEAT_MAP_COLUMNS = 40  # tasks are averaged into so many; single answers at the first positions are but noise
POINT = 40  # examples a point of the curve inside a task stands for at least, for the same reason


@styled
def draw_run(scores_by_name: dict[str, Scores], path: str | Path | None = None, title: str = "") -> Figure:
    """The learning curves of some learners on one stream, and how they learn inside a task.

    Left is accuracy over the stream: the average from the first example on, and faintly that of the latest examples.
    Right is accuracy by position in the task, early in the stream and late, where neighboring positions share a point
    until it stands for 40 examples; in a stream without tasks it is the log-loss.

    Parameters
    ----------
    scores_by_name
        The scores of each learner, under the name to print.
    path
        Where to save the figure (.png, .svg or .pdf), if it is to be saved.
    title
        The title of the figure.

    Examples
    --------
    >>> from prequential.learners.charges import Charges
    >>> scores = Scores(classes=2)
    >>> half, unit = np.full(500, 0.5), np.zeros(500, int)
    >>> scores.update(0, Charges(-np.log(half), predicted=unit, correct=np.arange(500) % 2 > 0, confidence=half))
    >>> figure = draw_run({"guess": scores}, title="A fair coin")
    >>> [axes.get_title(loc="left") for axes in figure.axes]
    ['Accuracy so far, and of the last 100 examples (faint)', 'Log-loss in nats so far, and lately (faint)']
    """
    check_scores(scores_by_name)
    figure = new_figure(9.2, 3.5, title, hspace=0.02)
    left, right = figure.subplots(1, 2)
    accuracy_panel(left, scores_by_name)
    if all(scores.task_count for scores in scores_by_name.values()):
        within_task_panel(right, scores_by_name)
    else:
        loss_panel(right, scores_by_name)
    return saved(figure, path)


@styled
def draw_tasks(scores: Scores, path: str | Path | None = None, title: str = "") -> Figure:
    """Accuracy of each task, and of each task by position in it.

    Parameters
    ----------
    scores
        The scores of a learner on a stream with tasks.
    path
        Where to save the figure (.png, .svg or .pdf), if it is to be saved.
    title
        The title of the figure.
    """
    tasks, cells = scores.tasks(), scores.heat_map(HEAT_MAP_COLUMNS)
    if not scores.count:
        raise BadInput("there is nothing to draw: 0 examples were scored, expected at least 1")
    figure = new_figure(6.4, 5.0, title, hspace=0.02)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.5])

    middle = (tasks["first_task"] + tasks["last_task"]) / 2
    above.plot(middle, tasks["accuracy"], color=COLORS[0], lw=1.3, marker="o", ms=2.2 if len(middle) <= 150 else 0)
    above.set_title("Accuracy of each task")
    _percent_axis(above, float(tasks["accuracy"].max()), 1 / scores.classes)
    above.axhline(1 / scores.classes, color=GRAY, lw=0.9, ls=":")
    label_ends(above, [(1 / scores.classes, "chance", GRAY)])
    above.texts[-1].set_in_layout(False)  # it stands over the color bar, which leaves enough room

    edges = np.append(cells["first_task"], cells["last_task"][-1] + 1) - 0.5
    positions = np.append(cells["first"], cells["last"][-1] + 1)
    joined = int(cells["last_task"][0] - cells["first_task"][0]) + 1
    mesh = below.pcolormesh(edges, positions, cells["accuracy"].T, cmap="cividis", vmin=0, vmax=1, rasterized=True)
    below.set_yscale("log")
    below.yaxis.set_major_formatter(short)
    below.yaxis.set_minor_formatter(NullFormatter())
    below.set_ylabel("position in the task")
    below.set_xlabel("task")
    below.xaxis.set_major_locator(MaxNLocator(8, integer=True))  # there is no half task
    below.xaxis.set_major_formatter(short)
    below.set_title("Accuracy by position in the task" + (f", mean of {joined} tasks a column" if joined > 1 else ""))
    bar = figure.colorbar(mesh, ax=below, format=FuncFormatter(percent), pad=0.02, aspect=18)
    bar.outline.set_visible(False)
    return saved(figure, path)


@styled
def draw_calibration(scores_by_name: dict[str, Scores], path: str | Path | None = None, title: str = "") -> Figure:
    """How often predictions made with some confidence were right, and how many were made with it.

    Parameters
    ----------
    scores_by_name
        The scores of each learner, under the name to print.
    path
        Where to save the figure (.png, .svg or .pdf), if it is to be saved.
    title
        The title of the figure.
    """
    check_scores(scores_by_name)
    figure = new_figure(4.4, 4.8, title, hspace=0.02)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.4, 1])
    above.plot([0, 1], [0, 1], color=GRAY, lw=0.8, ls=":")
    for (name, scores), color in zip(scores_by_name.items(), colors(scores_by_name), strict=True):
        table = scores.calibration()
        held = table["count"] >= FEW_PREDICTIONS if (table["count"] >= FEW_PREDICTIONS).any() else table["count"] > 0
        label = f"{wrapped(name, 40)}, error {percent(scores.calibration_error)}"
        above.plot(
            table["confidence"][held], table["accuracy"][held], color=color, marker="o", ms=3.5, lw=1.3, label=label
        )
        share = table["count"] / scores.count
        below.stairs(share, np.linspace(0, 1, len(share) + 1), color=color, lw=1.3, baseline=None)
    above.set(ylim=(0, 1.02), title="Accuracy by confidence")
    figure.legend(loc="outside lower left")  # beside the curves, which may be anywhere
    above.grid(True)
    above.yaxis.set_major_formatter(percent)
    below.set(xlim=(0, 1.01), ylim=(0, None), xlabel="confidence", title="Share of examples")
    for axis in (below.xaxis, below.yaxis):
        axis.set_major_formatter(percent)
    return saved(figure, path)


def accuracy_panel(axes: Axes, scores_by_name: dict[str, Scores]) -> None:
    """Accuracy over the stream, so far and faintly of the latest examples."""
    ends, highest, window = [], 0.0, 0
    for (name, scores), color in zip(scores_by_name.items(), colors(scores_by_name), strict=True):
        curve = _plot_curve(axes, scores, "accuracy", color)
        ends.append((scores.accuracy, f"{wrapped(name)}\n{scores.accuracy:.1%}".replace("%", " %"), color))
        highest = max(highest, float(curve.max()), scores.accuracy)
        window = max(window, int(scores.curve()["examples"].max()))
    _percent_axis(axes, highest, max(reference_levels(scores_by_name.values()).values()))
    references = plot_references(axes, scores_by_name.values())
    axes.set_title(f"Accuracy so far, and of the last {window:,} examples (faint)")
    examples_axis(axes, max(scores.count for scores in scores_by_name.values()))
    label_ends(axes, [*ends, *references])


def loss_panel(axes: Axes, scores_by_name: dict[str, Scores]) -> None:
    """Log-loss over the stream, so far and faintly of the latest examples."""
    ends, highest = [], 0.0
    for (name, scores), color in zip(scores_by_name.items(), colors(scores_by_name), strict=True):
        curve = _plot_curve(axes, scores, "log_loss", color)
        ends.append((scores.log_loss, f"{wrapped(name)}\n{scores.log_loss:.3f}", color))
        highest = max(highest, float(curve.max()))
    uniform = math.log(max(scores.classes for scores in scores_by_name.values()))
    axes.axhline(uniform, color=GRAY, lw=0.9, ls=":")
    highest = max(uniform, min(highest, 3 * uniform))  # one learner that diverges must not hide the others
    axes.set_ylim(0, 1.08 * highest or 1)
    axes.grid(True, axis="y")
    axes.set_title("Log-loss in nats so far, and lately (faint)")
    examples_axis(axes, max(scores.count for scores in scores_by_name.values()))
    label_ends(axes, [*ends, (uniform, "uniform", GRAY)])


def _plot_curve(axes: Axes, scores: Scores, what: str, color: str) -> np.ndarray:
    """Draws the average so far and that of the latest examples; returns what of the latter can be seen."""
    curve = scores.curve()
    # averages of a few examples jump between 0 and 1 and mean little
    visible = curve["position"] >= min(100, scores.count // 2)
    axes.plot(curve["position"][visible], curve[what][visible], color=_light(color), lw=0.8, zorder=2)
    axes.plot(curve["position"][visible], curve[f"running_{what}"][visible], color=color, zorder=3)
    seen: np.ndarray = curve[what][visible & np.isfinite(curve[what])]
    return seen if len(seen) else np.zeros(1)


def within_task_panel(axes: Axes, scores_by_name: dict[str, Scores]) -> None:
    """Accuracy by position in the task.

    One learner: early, middle and late tasks from light to dark. Several: early dashed, late solid.
    """
    alone = len(scores_by_name) == 1
    ends, highest, longest = [], 0.0, 1
    chance = 1 / max(scores.classes for scores in scores_by_name.values())
    size, groups = groups_of_tasks(min(scores.task_count for scores in scores_by_name.values()))
    for (name, scores), color in zip(scores_by_name.items(), colors(scores_by_name), strict=True):
        for i, start in enumerate(groups):
            late = i == len(groups) - 1
            if i and not late and not alone:
                continue
            table = scores.within_task(start, start + size - 1)
            position, accuracy = points_within_task(table)
            shade = _light(color, 1 if late or not alone else 0.35 + 0.3 * i)
            dashes = "-" if late or alone else (0, (3, 2))
            label = ("first", "middle", "last")[-1 if late else i] + (f" {size} tasks" if size > 1 else " task")
            line = axes.plot(position, accuracy, color=shade, lw=1.8 if late else 1.2, ls=dashes, label=label)[0]
            line.set(zorder=3 + late, marker="o" if len(position) == 1 else "")
            highest = max(highest, float(accuracy.max()))
            longest = max(longest, int(table["last"][-1]))
        ends.append((float(accuracy[-1]), wrapped(name), color))
    _percent_axis(axes, highest, chance)
    axes.axhline(chance, color=GRAY, lw=0.9, ls=":")
    axes.set_xscale("log")
    axes.set_xlim(0.95, max(longest * 1.05, 10))
    axes.xaxis.set_major_formatter(short)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("position in the task")
    if alone:
        axes.set_title("Accuracy inside a task")
        if len(groups) > 1:
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), reverse=True)  # beside the lines
    else:
        axes.set_title(f"Accuracy inside a task: first {size} tasks (dashed), last {size} tasks")
    label_ends(axes, [*([] if alone else ends), (chance, "chance", GRAY)])


def groups_of_tasks(tasks: int) -> tuple[int, list[int]]:
    """How many tasks to average, ten or a tenth of them, and where the first, the middle and the last group starts."""
    size = min(max(FEW_TASKS, tasks // 10), max(1, tasks // 3))
    return size, sorted({0, (tasks - size) // 2, tasks - size})


def points_within_task(table: dict[str, np.ndarray], what: str = "accuracy") -> tuple[np.ndarray, np.ndarray]:
    """Positions and accuracies (or log-losses) with neighboring bins joined until each point stands for enough examples."""
    filled = np.concatenate([[0], np.cumsum(table["count"])])
    starts = [0]
    for i in range(1, len(table["count"])):
        if filled[i] - filled[starts[-1]] >= POINT and filled[-1] - filled[i] >= POINT:
            starts.append(i)
    count = np.add.reduceat(table["count"], starts)
    means = np.add.reduceat(table["count"] * table[what], starts) / count
    first, last = table["first"][starts], table["last"][np.append(np.array(starts[1:], int), len(table["last"])) - 1]
    return np.sqrt(first * last), means  # the middle of the bin on a logarithmic axis


def _percent_axis(axes: Axes, highest: float, reference: float) -> None:
    axes.set_ylim(0, min(1.02, max(highest, 1.5 * reference) * 1.08))
    axes.yaxis.set_major_formatter(percent)
    axes.grid(True, axis="y")


def check_scores(scores_by_name: dict[str, Scores]) -> None:
    """Complains where there is nothing to draw."""
    if not scores_by_name:
        raise BadInput("there is nothing to draw: got 0 learners, expected at least 1")
    for name, scores in scores_by_name.items():
        if not scores.count:
            raise BadInput(f"there is nothing to draw: {name!r} has 0 examples scored, expected at least 1")


def _light(color: str, share: float = 0.35) -> tuple[float, float, float]:
    """The color mixed with white. Not transparent: where faint lines cross they would darken."""
    r, g, b = (1 - share + share * part for part in to_rgb(color))
    return r, g, b
