"""The paper's figures on streams of tasks: every example of the first and last tasks, and learning within a task."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from prequential.evaluation.scores import FEW_TASKS, Scores
from prequential.plots.curves import points_within_task
from prequential.plots.style import FAINT, colors, percent, short, styled

BLOCK = 20  # examples of one task that a point of the dark line stands for
SHARES = ((0.0, 0.1), (0.1, 0.2), (0.2, 0.3), (0.45, 0.55), (0.9, 1.0))  # of the tasks, for the curves within a task


@styled
def draw_every_example(groups: dict[str, list[dict[str, np.ndarray]]], task_starts: np.ndarray) -> Figure:
    """Error and log-loss in the first and in the last ten tasks, averaged over the seeds and over nothing else.

    Faint lines are single examples, where there is one name. Dark lines are means of 20 examples that follow each other within a task; they never
    reach over the end of one. Dashed lines are averages from the first example of the stream on.

    Parameters
    ----------
    groups
        By name: `error` and `log_loss` of every example, for each seed.
    task_starts
        The positions where tasks begin.

    Examples
    --------
    >>> some = {"error": np.tile([1.0, 0.0], 60), "log_loss": np.full(120, 0.7)}
    >>> figure = draw_every_example({"pi": [some, some]}, np.arange(0, 120, 10))
    >>> [bool(axes.get_xlim()[1] > 100) for axes in figure.axes[:2]]
    [False, True]
    """
    length = min(len(seed["error"]) for some in groups.values() for seed in some)
    starts = task_starts[task_starts < length]
    ends = np.append(starts[1:], length)
    parts = {
        f"first {min(FEW_TASKS, len(starts))} tasks": (starts[:FEW_TASKS], ends[:FEW_TASKS]),
        f"last {min(FEW_TASKS, len(starts))} tasks": (starts[-FEW_TASKS:], ends[-FEW_TASKS:]),
    }
    figure = Figure(figsize=(8.4, 4.8), layout=ConstrainedLayoutEngine())
    panels = figure.subplots(2, 2, sharex="col", sharey="row")
    for row, (what, label) in zip(panels, (("error", "error"), ("log_loss", "log-loss in nats")), strict=True):
        for axes, (part, (first, last)) in zip(row, parts.items(), strict=True):
            shown = slice(int(first[0]), int(last[-1]))
            for color, (name, some) in zip(colors(groups), groups.items(), strict=True):
                mean = np.mean([seed[what][:length] for seed in some], axis=0)
                so_far = np.cumsum(mean) / np.arange(1, length + 1)
                where = np.arange(length)[shown]
                if len(groups) == 1:  # those of several would hide each other
                    axes.plot(where, mean[shown], color=color, lw=0.35, alpha=0.3, rasterized=True)
                blocks = [_blocks(mean, int(a), int(b)) for a, b in zip(first, last, strict=True)]
                axes.plot(*np.concatenate(blocks, axis=1), color=color, lw=1.2, label=name)
                axes.plot(where, so_far[shown], color=color, lw=1.2, ls=(0, (4, 2)))
            for start in first[1:]:
                axes.axvline(start, color=FAINT, lw=0.8, zorder=0)
            axes.set_title(part if what == "error" else "")
            axes.margins(x=0.01)
            axes.xaxis.set_major_formatter(short)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        row[0].set_ylabel(label)
        row[0].set_ylim(bottom=0)
    panels[0, 0].yaxis.set_major_formatter(percent)
    nats = [np.mean([seed["log_loss"][:length] for seed in some], axis=0) for some in groups.values()]
    panels[1, 0].set_ylim(0, max(float(np.quantile(of, 0.98)) for of in nats) * 1.05)
    for axes in panels[1]:
        axes.set_xlabel("example of the stream")
    if len(groups) > 1:
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _blocks(values: np.ndarray, first: int, last: int) -> np.ndarray:
    """Positions and means of neighboring examples of one task, NaN at the end so that no line goes to the next."""
    edges = np.arange(first, last, BLOCK)
    sizes = np.append(edges[1:], last) - edges
    middles = edges + (sizes - 1) / 2
    means = np.add.reduceat(values[:last], edges) / sizes
    return np.array([np.append(middles, last), np.append(means, np.nan)])


@styled
def draw_within_by_task(some: list[Scores]) -> Figure:
    """Accuracy and log-loss by the position in a task, a line for each tenth of the tasks, averaged over the seeds."""
    figure = Figure(figsize=(8.4, 3.0), layout=ConstrainedLayoutEngine())
    count = min(scores.task_count for scores in some)
    tasks = list(dict.fromkeys((int(a * count), max(int(b * count), int(a * count) + 1)) for a, b in SHARES))
    for axes, what in zip(figure.subplots(1, 2), ("accuracy", "log_loss"), strict=True):
        for shade, (first, stop) in zip(np.linspace(0.25, 1.0, len(tasks)), tasks, strict=True):
            tables = [scores.within_task(first, stop - 1) for scores in some]
            mean = {key: np.mean([table[key] for table in tables], axis=0) for key in tables[0]}
            name = f"tasks {first + 1} to {stop}" if stop > first + 1 else f"task {stop}"
            axes.plot(*points_within_task(mean, what), color=(0.0, 0.447, 0.698, shade), label=name, lw=1.5)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(short)
        axes.set_xlabel("example within the task")
        axes.set_ylabel("accuracy" if what == "accuracy" else "log-loss in nats")
        axes.grid(axis="y")
        if what == "accuracy":
            axes.yaxis.set_major_formatter(percent)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper")
    return figure
