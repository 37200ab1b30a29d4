"""The figures of experiments: a number over a setting, with a line for each value of another."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from prequential.evaluation.scores import Scores
from prequential.plots.curves import groups_of_tasks, points_within_task
from prequential.plots.style import COLORS, GRAY, colors, percent, short, styled

# A line of a figure: x, and the numbers of each seed at it.
Line = dict[float, list[float]]


@styled
def draw_lines(
    lines: dict[str, Line],
    *,
    over: str,
    what: str = "average accuracy",
    log: bool = True,
    references: dict[str, float] | None = None,
) -> Figure:
    """Means over the seeds, with all of them as dots.

    Parameters
    ----------
    lines
        By name; each gives the numbers of all seeds for every x.
    over
        What x is.
    what
        What y is; shares are shown in percent.
    log
        Whether x is on a logarithmic axis.
    references
        Levels to compare with, by name.

    Examples
    --------
    >>> figure = draw_lines({"pi": {1: [0.2], 2: [0.4, 0.5]}}, over="streams")
    >>> len(figure.axes)
    1
    """
    figure = Figure(figsize=(5.2, 3.4), layout=ConstrainedLayoutEngine())
    axes = figure.subplots()
    marks = sorted({x for line in lines.values() for x in line})
    for i, (color, (name, line)) in enumerate(zip(colors(lines), lines.items(), strict=True)):
        xs, style = sorted(line), "s--" if i >= len(COLORS) else "o-"  # when the colors begin again
        axes.plot(xs, [np.mean(line[x]) for x in xs], style, color=color, markersize=4, label=name)
        for x in xs:
            axes.plot([x] * len(line[x]), line[x], ".", color=color, alpha=0.35, markersize=4)
    for name, level in (references or {}).items():
        axes.axhline(level, color=GRAY, linewidth=1, linestyle=(0, (4, 2)))
        axes.annotate(
            name, (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=GRAY, fontsize=8
        )
    if log:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(marks, [f"{x:g}" for x in marks])
    axes.set_xlabel(over)
    axes.set_ylabel(what)
    if "accuracy" in what:
        axes.yaxis.set_major_formatter(percent)
    axes.grid(axis="y")
    if len(lines) > 1:
        figure.legend(loc="outside right upper", handlelength=3)  # beside the lines, which may be anywhere
    return figure


@styled
def draw_task_curves(groups: dict[str, list[Scores]]) -> Figure:
    """Accuracy and log-loss of every task, averaged over the seeds: one line for each name."""
    figure = Figure(figsize=(7.2, 3.0), layout=ConstrainedLayoutEngine())
    for axes, what, label in zip(figure.subplots(1, 2), ("accuracy", "log_loss"), ("accuracy", "nats"), strict=True):
        for color, (name, some) in zip(colors(groups), groups.items(), strict=True):
            tables = [scores.tasks() for scores in some]
            mean = np.mean([table[what] for table in tables], axis=0)
            axes.plot(tables[0]["first_task"] + 1, mean, color=color, label=name, linewidth=1.4)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))  # there is no half task
        axes.set_xlabel("task")
        axes.set_ylabel(f"{label} in the task")
        axes.grid(axis="y")
        if what == "accuracy":
            axes.yaxis.set_major_formatter(percent)
    if len(groups) > 1:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


@styled
def draw_within_tasks(groups: dict[str, list[Scores]]) -> Figure:
    """Accuracy by position in early, middle and late tasks, averaged over the seeds: a panel for each name."""
    figure = Figure(figsize=(3.6 * max(len(groups), 1.4), 3.0), layout=ConstrainedLayoutEngine())
    panels = figure.subplots(1, len(groups), squeeze=False, sharey=True)[0]
    for axes, (name, some) in zip(panels, groups.items(), strict=True):
        size, starts = groups_of_tasks(min(scores.task_count for scores in some))
        names = ("first", "middle", "last")[-len(starts) :]
        for color, part, start in zip(COLORS, names, starts, strict=False):
            tables = [scores.within_task(start, start + size - 1) for scores in some]
            mean = {key: np.mean([table[key] for table in tables], axis=0) for key in tables[0]}
            axes.plot(*points_within_task(mean), color=color, label=f"{part} {size} task{'s' if size > 1 else ''}")
        axes.set_xscale("log")
        axes.set_xlabel("example within the task")
        axes.set_title(name)
        axes.grid(axis="y")
        axes.yaxis.set_major_formatter(percent)
    panels[0].set_ylabel("accuracy")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


@styled
def draw_instantaneous(groups: dict[str, list[Scores]], window: int | None = None) -> Figure:
    """Accuracy over the latest examples and over all so far, averaged over the seeds: one color for each name."""
    figure = Figure(figsize=(7.2, 3.0), layout=ConstrainedLayoutEngine())
    for axes, kind in zip(figure.subplots(1, 2, sharey=True), ("accuracy", "running_accuracy"), strict=True):
        for color, (name, some) in zip(colors(groups), groups.items(), strict=True):
            curves = [scores.curve(window) for scores in some]
            length = min(len(curve["position"]) for curve in curves)
            mean = np.mean([curve[kind][:length] for curve in curves], axis=0)
            axes.plot(curves[0]["position"][:length], mean, color=color, label=name, linewidth=1.4)
        axes.set_title("over the latest examples" if kind == "accuracy" else "over all so far")
        axes.set_xlabel("examples")
        axes.grid(axis="y")
        axes.yaxis.set_major_formatter(percent)
        axes.xaxis.set_major_formatter(short)
    figure.axes[0].set_ylabel("accuracy")
    figure.legend(*figure.axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


@styled
def draw_front(points: dict[str, list[tuple[float, float]]], cost: str = "multiply-accumulates") -> Figure:
    """Accuracy over cost, a dot for each run, and the Pareto front of each name."""
    figure = Figure(figsize=(5.2, 3.6), layout=ConstrainedLayoutEngine())
    axes = figure.subplots()
    for color, (name, some) in zip(colors(points), points.items(), strict=True):
        axes.plot(*zip(*some, strict=True), "o", color=color, alpha=0.4, markersize=4)
        front: list[tuple[float, float]] = []
        for x, y in sorted(some):
            if not front or y > front[-1][1]:
                front.append((x, y))
        axes.plot(*zip(*front, strict=True), color=color, drawstyle="steps-post", label=name)
    axes.set_xscale("log")
    axes.set_xlabel(cost)
    axes.set_ylabel("average accuracy")
    axes.yaxis.set_major_formatter(percent)
    axes.grid(axis="y")
    figure.legend(loc="outside right upper")
    return figure
