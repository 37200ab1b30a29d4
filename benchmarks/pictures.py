"""The pictures of the suite: ratios against their targets, where the time goes, and growth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from measuring import Row
from shares import PARTS, PYTHON

from prequential.plots.style import COLORS, FAINT, GRAY, INK, percent, short, styled


@styled
def draw_ratios(rows: Sequence[Row]) -> Figure:
    """A bar for each ratio, and a mark where its target is; what is not comparable has panels of its own."""
    shown = [row for row in rows if row.ratio is not None and row.unit != "exponent"]
    groups = [[row for row in shown if _group(row) == group] for group in GROUPS]
    groups = [group for group in groups if group]
    counts = [len(group) for group in groups]
    figure = Figure(figsize=(9, 0.3 * sum(counts) + 0.8 * len(groups)), layout="constrained")
    panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=counts)[:, 0]
    for axes, here in zip(panels, groups, strict=True):
        places = np.arange(len(here))[::-1]
        colors = [{True: COLORS[2], False: COLORS[1], None: COLORS[0]}[row.reached] for row in here]
        axes.barh(places, [row.ratio or 0.0 for row in here], height=0.62, color=colors)
        for place, row in zip(places, here, strict=True):
            beyond = max(row.ratio or 0.0, row.target or 0.0)  # of bar and mark
            axes.text(beyond, place, f" {row.say(row.ratio)}", va="center", fontsize=7.5)
            if row.target is not None:
                axes.plot([row.target] * 2, [place - 0.42, place + 0.42], color=INK, linewidth=1.6)
        axes.set_yticks(places, [row.name for row in here])
        axes.set_ylim(-0.6, len(here) - 0.4)
        axes.set_xlim(0, 1.12 * max(max(row.ratio or 0.0, row.target or 0.0, 1.0) for row in here))
        axes.axvline(1, color=GRAY, linewidth=0.8, linestyle=":")
        axes.tick_params(axis="y", length=0)
        if here[0].unit == "%":
            axes.xaxis.set_major_formatter(percent)
        axes.set_title(f"{_group(here[0])} (median; black: the target)")
    return figure


GROUPS = ("Share of the limit", "Times as much, more is better", "Times as much, less is better")


def _group(row: Row) -> str:
    if row.unit == "%":
        return GROUPS[0]
    return GROUPS[2] if row.lower_is_better else GROUPS[1]


@styled
def draw_shares(rows: Sequence[Row]) -> Figure:
    """Where the time of each workload goes, as a stacked bar."""
    shown = [row for row in rows if row.shares]
    figure = Figure(figsize=(9, 1.2 + 0.42 * len(shown)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(shown))[::-1]
    left = np.zeros(len(shown))
    colors = {part: GRAY if part == PYTHON else color for part, color in zip(PARTS, COLORS, strict=True)}
    for part in PARTS:
        sizes = np.array([row.shares.get(part, 0.0) for row in shown])
        axes.barh(places, sizes, left=left, height=0.62, color=colors[part], label=part)
        for place, size, start in zip(places, sizes, left, strict=True):
            if size >= 0.05:
                axes.text(
                    start + size / 2,
                    place,
                    percent(round(size, 2)),
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=7,
                )
        left += sizes
    axes.set_yticks(places, [row.name for row in shown])
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(percent)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=len(PARTS), fontsize=7, columnspacing=1.0, handlelength=1.0)
    axes.set_title("Where the time of a turn goes, under torch's profiler")
    return figure


@styled
def draw_growth(rows: Sequence[Row]) -> Figure:
    """A small panel for each axis: time per example and memory, both axes logarithmic."""
    shown = [row for row in rows if row.curve]
    columns = min(4, len(shown))
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.4 * lines + 0.3), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, row in zip(panels, shown, strict=False):
        sizes = [point["size"] for point in row.curve]
        beside = axes.twinx()
        beside.spines["right"].set_visible(True)
        for where, key, scale, color in ((axes, "seconds", 1e3, COLORS[0]), (beside, "bytes", 1e-6, COLORS[1])):
            values = [scale * point[key] for point in row.curve]
            where.loglog(sizes, values, "o-", markersize=3, color=color)
            # more than a decade is always shown: what is flat looks flat, and there is a number on the axis
            middle, reach = (min(values) * max(values)) ** 0.5, max(2 * max(values) / min(values), 20) ** 0.5
            where.set_ylim(middle / reach, middle * reach)
            where.tick_params(axis="y", labelcolor=color)
            where.minorticks_off()
            where.yaxis.set_major_formatter(short)
        axes.grid(True, color=FAINT)
        axes.set_xticks(sizes[:: max(1, -(-len(sizes) // 4))])
        axes.xaxis.set_major_formatter(short)
        axes.set_title(f"{row.name.removeprefix('growth over ')}: {row.say(row.ratio)}")
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    figure.suptitle(
        "ms per example (blue, left) and MB (orange, right); the number is the exponent of the time", fontsize=8
    )
    return figure
