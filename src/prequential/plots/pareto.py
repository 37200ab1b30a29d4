"""The figures of a sweep: objectives over settings and over time, and Pareto fronts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from prequential.errors import BadInput
from prequential.plots.comparison import MARKERS, PALETTE, cost_axis, short_name
from prequential.plots.style import COLORS, FAINT, GRAY, INK, new_figure, percent, saved, short, styled

# The values of some trials, each in the order of the objectives.
Group = list[tuple[float, ...]]

NAMES = {
    "accuracy": "accuracy",
    "log_loss": "log-loss, in nats",
    "bits": "description length, in bits",
    "compression": "share of the uniform code",
    "calibration_error": "calibration error",
    "seconds": "seconds",
    "macs": "multiply-accumulates",
}
MORE = ("accuracy",)  # the objectives of which more is better
COSTS = ("macs", "seconds")  # along the bottom, in decades


def front_of(values: Sequence[Sequence[float]], more: Sequence[bool]) -> list[int]:
    """Which points are on the Pareto front: those that no other point dominates.

    Parameters
    ----------
    values
        The points.
    more
        Of each coordinate, whether more of it is better.

    Examples
    --------
    >>> front_of([(0.9, 100), (0.8, 10), (0.7, 50)], more=[True, False])
    [0, 1]
    """
    if not len(values):
        return []
    signed = np.asarray(values, float) * np.where(more, 1, -1)
    front = []
    for i, point in enumerate(signed):
        if not np.any(np.all(signed >= point, axis=1) & np.any(signed > point, axis=1)):
            front.append(i)
    return front


@styled
def draw_fronts(groups: dict[str, Group], objectives: Sequence[str], path: str | Path | None = None) -> Figure:
    """All trials and their Pareto fronts, one color per method, one panel per pair of objectives.

    The line is the best that can be had for each price; a broad gray one is that of all methods together.

    Parameters
    ----------
    groups
        The values of the trials of each method, in the order of the objectives.
    objectives
        Their names, two or more.
    path
        Where to save the figure (.png, .svg or .pdf), if it is to be saved.

    Examples
    --------
    >>> figure = draw_fronts({"a": [(0.9, 1e6), (0.8, 1e5)], "b": [(0.7, 1e6)]}, ["accuracy", "macs"])
    >>> [axes.get_xlabel() for axes in figure.axes]
    ['multiply-accumulates']
    """
    groups = {name: finite for name, some in groups.items() if (finite := [v for v in some if np.isfinite(v).all()])}
    if len(objectives) < 2 or not groups:
        raise BadInput(
            f"there is no front to draw: got {len(objectives)} objectives and {sum(map(len, groups.values()))} trials, "
            "expected at least 2 and 1"
        )
    pairs = list(itertools.combinations(range(len(objectives)), 2))
    columns = min(2, len(pairs))
    rows = -(-len(pairs) // columns)
    figure = new_figure(6.6 if columns == 1 else 10.4, 3.6 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in grid[len(pairs) :]:
        unused.set_axis_off()
    for axes, (first, second) in zip(grid, pairs, strict=False):
        # what is paid goes along the bottom
        x, y = (first, second) if objectives[first] in COSTS and objectives[second] not in COSTS else (second, first)
        _plot_fronts(
            axes, {name: [(v[x], v[y]) for v in some] for name, some in groups.items()}, objectives[x], objectives[y]
        )
    if len(groups) > 1:
        handles = [
            Line2D([], [], color=color, marker=marker, ls="", ms=5, label=short_name(name))
            for name, (color, marker) in _looks(groups).items()
        ]
        grid[min(columns, len(pairs)) - 1].legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.02))
    return saved(figure, path)


def _plot_fronts(axes: Axes, groups: dict[str, list[tuple[float, float]]], across: str, up: str) -> None:
    more = [across in MORE, up in MORE]
    everything = [point for some in groups.values() for point in some]
    place: Any = float
    if across in COSTS:
        place = cost_axis(axes, [x for x, _ in everything])
    if len(groups) > 1:
        front = [everything[i] for i in front_of(everything, more)]
        _step(axes, front, more, place, color=FAINT, lw=5, zorder=1)
    for name, (color, marker) in _looks(groups).items():
        some = groups[name]
        best = front_of(some, more)
        front = [some[i] for i in best]
        rest = [point for i, point in enumerate(some) if i not in best]
        _dots(axes, rest, place, marker, color=color, ms=4, alpha=0.35, zorder=2)
        _step(axes, front, more, place, color=color, lw=1.4, zorder=3)
        _dots(axes, front, place, marker, color=color, ms=6, zorder=4)
    axes.grid(True)
    axes.set_title(f"{NAMES[up]} by {NAMES[across]}: {_say_front(everything, more)}")
    axes.set_xlabel(NAMES[across])
    axes.set_ylabel(NAMES[up])
    if across not in COSTS:
        axes.xaxis.set_major_formatter(_format(across))
        axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(_format(up))


def _say_front(points: list[tuple[float, float]], more: list[bool]) -> str:
    return f"{len(front_of(points, more))} of {len(points)} trials on the front"


def _dots(axes: Axes, points: list[tuple[float, float]], place: Any, marker: str, **look: Any) -> None:
    if points:
        axes.plot([place(x) for x, _ in points], [y for _, y in points], marker=marker, ls="", mew=0, **look)


def _step(axes: Axes, front: list[tuple[float, float]], more: list[bool], place: Any, **look: Any) -> None:
    """The line of a front: from each point on, what it has is to be had, until the next one is better."""
    points = sorted(set(front))
    line = axes.plot([place(x) for x, _ in points], [y for _, y in points], **look)[0]
    line.set_drawstyle("steps-pre" if more[0] else "steps-post")


def _looks(groups: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """A color for each method, and when they are used up, another marker."""
    found = {}
    for i, name in enumerate(groups):
        found[name] = (PALETTE[i % len(PALETTE)], MARKERS[i // len(PALETTE) % len(MARKERS)][0])
    return found


def _format(objective: str) -> Any:
    return percent if objective in ("accuracy", "compression") else short


@styled
def draw_settings(
    points: Sequence[dict[str, Any]],
    values: Sequence[float],
    objective: str,
    path: str | Path | None = None,
    *,
    names: Sequence[str],
    logs: Sequence[str] = (),
) -> Figure:
    """An objective over each setting that was varied; the best trial is marked.

    Parameters
    ----------
    points
        The settings of each trial.
    values
        The objective of each.
    objective
        Its name.
    path
        Where to save the figure (.png, .svg or .pdf), if it is to be saved.
    names
        The settings to show.
    logs
        Those of them with a logarithmic axis.
    """
    kept = [(point, value) for point, value in zip(points, values, strict=True) if math.isfinite(value)]
    if not kept:
        raise BadInput(f"there is nothing to draw: got 0 trials with a finite {objective}, expected at least 1")
    more = objective in MORE
    best = (max if more else min)(range(len(kept)), key=lambda i: kept[i][1])
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure = new_figure(max(4.2, 3.3 * columns + 0.6), 2.9 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for unused in grid[len(names) :]:
        unused.set_axis_off()
    for i, (axes, name) in enumerate(zip(grid, names, strict=False)):
        some = [(point[name], value, j == best) for j, (point, value) in enumerate(kept) if name in point]
        _plot_setting(axes, name, some, name in logs)
        axes.yaxis.set_major_formatter(_format(objective))
        axes.set_title(name)
        if i % columns == 0:
            axes.set_ylabel(NAMES[objective])
    return saved(figure, path)


def _plot_setting(axes: Axes, name: str, some: list[tuple[Any, float, bool]], log: bool) -> None:
    axes.grid(True, axis="y")
    given = [setting for setting, _, _ in some]
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in given)
    if numbers and (log or len(set(given)) > 8):
        at = {value: float(value) for value in given}
        if log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(short)
            low, high = min(given, default=1), max(given, default=1)
            if high < 30 * low:  # decades alone would leave the axis without numbers
                axes.set_xticks(_few(low, high), minor=False)
            axes.minorticks_off()
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.xaxis.set_major_formatter(short)
    else:  # few values stand side by side
        different: list[Any] = sorted(set(given)) if numbers else list(dict.fromkeys(map(str, given)))
        at = {value: float(i) for i, value in enumerate(different)}
        given = given if numbers else list(map(str, given))
        labels = [short(value) if numbers else short_name(str(value)) for value in different]
        axes.set_xticks(range(len(different)), labels, rotation=20 if sum(map(len, labels)) > 36 else 0)
        axes.set_xlim(-0.6, len(different) - 0.4)
        for value in different:
            here = [y for x, (_, y, _) in zip(given, some, strict=True) if x == value]
            axes.plot([at[value] - 0.25, at[value] + 0.25], [np.mean(here)] * 2, color=GRAY, lw=1, zorder=2)
    for value, (_, y, is_best) in zip(given, some, strict=True):
        look: Any = (
            {"color": COLORS[1], "ms": 7, "zorder": 4} if is_best else {"color": COLORS[0], "ms": 4.5, "zorder": 3}
        )
        axes.plot(at[value], y, marker="o", ls="", mew=0, alpha=1 if is_best else 0.7, **look)


def _few(low: float, high: float) -> list[float]:
    """Some round numbers between two."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [step * 10.0**k for k in decades for step in (1, 2, 5) if low <= step * 10.0**k <= high]
    return found or [low, high]


@styled
def draw_history(
    numbers: Sequence[int], values: Sequence[float], objective: str, path: str | Path | None = None, *, more: bool
) -> Figure:
    """The objective of trial after trial, and the best so far as a line.

    Parameters
    ----------
    numbers, values
        The number and the objective of each trial.
    objective
        Its name.
    path
        Where to save the figure (.png, .svg or .pdf), if it is to be saved.
    more
        Whether more of it is better.
    """
    kept = sorted((number, value) for number, value in zip(numbers, values, strict=True) if math.isfinite(value))
    if not kept:
        raise BadInput(f"there is nothing to draw: got 0 trials with a finite {objective}, expected at least 1")
    at, found = np.array([number for number, _ in kept]), np.array([value for _, value in kept])
    best = np.maximum.accumulate(found) if more else np.minimum.accumulate(found)
    figure = new_figure(6.0, 3.0)
    axes = figure.subplots()
    axes.plot(at, found, color=COLORS[0], marker="o", ls="", ms=4.5, mew=0, alpha=0.7, zorder=3)
    axes.plot(at, best, color=COLORS[1], lw=1.5, drawstyle="steps-post", zorder=2)
    axes.yaxis.set_major_formatter(_format(objective))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.grid(True, axis="y")
    axes.set_xlabel("trial")
    axes.set_title(f"{NAMES[objective]} of each trial, and the best so far", color=INK)
    return saved(figure, path)
