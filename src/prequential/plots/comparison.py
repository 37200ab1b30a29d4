"""The figures of a comparison: many learners on some streams, each over some seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prequential.errors import BadInput
from prequential.evaluation.scores import Scores
from prequential.plots.references import End, plot_references, reference_levels
from prequential.plots.style import (
    COLORS,
    GRAY,
    INK,
    cut,
    examples_axis,
    label_ends,
    new_figure,
    percent,
    saved,
    short_stream_name,
    styled,
    wrapped,
)

# The scores of each seed, by stream and learner.
Many = dict[str, dict[str, list[Scores]]]
# A number of each seed, by stream and learner; None where it was not counted.
Numbers = dict[str, dict[str, list[float | None]]]

LONGEST_NAME = 26
PALETTE = (*COLORS, "#6a3d9a", "#8b5a2b", "#5c6b1f")  # purple, brown, olive: comparisons have more lines than runs
WILD = 2  # a loss or a code longer than so many times the uniform one is cut off: it would hide the others
DASHES: tuple[Any, ...] = (
    "-",
    (0, (4, 1.6)),
    (0, (1.2, 1.4)),
)  # when the colors are used up, they begin again with the next
MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"))  # and with the next of these; the sign stands before the name


class Look(NamedTuple):
    """How a learner looks, the same in all figures."""

    name: str
    color: str
    dashes: Any
    marker: str
    sign: str


@styled
def draw_accuracies(scores: Many, path: str | Path | None = None) -> Figure:
    """The average accuracy so far of every learner, one panel per stream.

    The line is the mean over the seeds, the band reaches from the lowest to the highest.

    Parameters
    ----------
    scores
        The scores of each seed, by stream and learner.
    path
        Where to save the figure (.png, .svg or .pdf), if it is to be saved.

    Examples
    --------
    >>> from prequential.learners.charges import Charges
    >>> guess = Scores(classes=2)
    >>> half, unit = np.full(500, 0.5), np.zeros(500, int)
    >>> guess.update(0, Charges(-np.log(half), predicted=unit, correct=np.arange(500) % 2 > 0, confidence=half))
    >>> [axes.get_title(loc="left") for axes in draw_accuracies({"coin": {"guess": [guess]}}).axes]
    ['coin: average accuracy so far']
    """
    figure, panels = _panels(scores)
    looks = _looks(scores)
    for axes, (stream, learners) in zip(panels, scores.items(), strict=True):
        highest = _plot_curves(axes, learners, "running_accuracy", looks)
        everyone = [each for some in learners.values() for each in some]
        reference = max(reference_levels(everyone).values())
        axes.set_ylim(0, min(1.02, max(highest, 1.5 * reference) * 1.08))
        axes.yaxis.set_major_formatter(percent)
        axes.set_title(f"{short_stream_name(stream)}: average accuracy so far")
        texts = {name: f"{_mean(some, 'accuracy'):.1%}".replace("%", " %") for name, some in learners.items()}
        _label_curves(axes, learners, "accuracy", texts, looks, plot_references(axes, everyone))
    return saved(figure, path)


@styled
def draw_losses(scores: Many, path: str | Path | None = None) -> Figure:
    """The average log-loss so far of every learner, one panel per stream.

    Parameters
    ----------
    scores
        The scores of each seed, by stream and learner. Those with an infinite loss are left out.
    path
        Where to save the figure (.png, .svg or .pdf), if it is to be saved.
    """
    figure, panels = _panels(scores)
    looks = _looks(scores)
    for axes, (stream, everyone) in zip(panels, scores.items(), strict=True):
        learners = _charged(everyone)
        _plot_curves(axes, learners, "running_log_loss", looks)
        uniform = math.log(_classes(everyone))
        ends = [min(_mean(some, "log_loss"), WILD * uniform) for some in learners.values()]
        axes.set_ylim(0, 1.08 * max(uniform, *ends, 1e-3))
        axes.set_title(f"{short_stream_name(stream)}: average log-loss so far, in nats")
        texts = {name: f"{_mean(some, 'log_loss'):.3f}" for name, some in learners.items()}
        axes.axhline(uniform, color=GRAY, lw=0.9, ls=":")
        _label_curves(axes, learners, "log_loss", texts, looks, [(uniform, "uniform", GRAY)])
    return saved(figure, path)


@styled
def draw_bits(scores: Many, path: str | Path | None = None) -> Figure:
    """The description length of the labels with every learner, as a share of the uniform code and in bits.

    Parameters
    ----------
    scores
        The scores of each seed, by stream and learner. Those with an infinite loss are left out.
    path
        Where to save the figure (.png, .svg or .pdf), if it is to be saved.
    """
    figure, panels = _panels(scores, height=0.95 + 0.24 * max(map(len, scores.values()), default=0))
    looks = _looks(scores)
    for axes, (stream, everyone) in zip(panels, scores.items(), strict=True):
        learners = sorted(_charged(everyone).items(), key=lambda item: _mean(item[1], "compression"))
        right = max(1.0, min(max((_mean(some, "compression") for _, some in learners), default=1.0), WILD))
        for y, (name, some) in enumerate(learners):
            mean, each = _mean(some, "compression"), [one.compression for one in some]
            axes.barh(y, min(mean, right), height=0.62, color=looks[name].color)
            if min(each) < min(max(each), right):
                axes.plot([min(each), min(max(each), right)], [y, y], color=INK, lw=1)
            text = f"{'→ ' if mean > right else ''}{mean:.1%}, {_mean(some, 'bits'):,.0f} bits".replace("%", " %")
            axes.text(1.02, y, text, va="center", transform=axes.get_yaxis_transform())
        axes.axvline(1, color=GRAY, lw=0.9, ls=":")
        axes.set(xlim=(0, 1.02 * right), ylim=(len(learners) - 0.4, -0.6))
        axes.set_title(f"{short_stream_name(stream)}: description length")
        axes.set_xlabel("share of the uniform code")
        axes.set_yticks(range(len(learners)), [looks[name].name for name, _ in learners])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_formatter(percent)
    return saved(figure, path)


@styled
def draw_costs(scores: Many, seconds: Numbers, macs: Numbers, path: str | Path | None = None) -> Figure:
    """Accuracy against time, and against multiply-accumulates; one row of panels per stream.

    Parameters
    ----------
    scores
        The scores of each seed, by stream and learner.
    seconds, macs
        What each of these runs took; None where it was not counted.
    path
        Where to save the figure (.png, .svg or .pdf), if it is to be saved.
    """
    height, looks = _height(scores), _looks(scores)
    figure = new_figure(9.2, height * len(scores))
    rows = figure.subplots(len(scores), 2, squeeze=False, sharey="row")
    for (left, right), (stream, learners) in zip(rows, scores.items(), strict=True):
        for axes, numbers, what in ((left, seconds[stream], "seconds"), (right, macs[stream], "multiply-accumulates")):
            place = cost_axis(axes, [number for some in numbers.values() for number in some])
            axes.set_xlabel(what)
            for name, some in learners.items():
                _plot_cost(axes, [place(n) for n in numbers[name]], [each.accuracy for each in some], looks[name])
        highest = max(each.accuracy for some in learners.values() for each in some)
        left.set_ylim(0, min(1.02, highest * 1.08) or 1)
        left.yaxis.set_major_formatter(percent)
        left.set_title(f"{short_stream_name(stream)}: accuracy by time")
        right.set_title("accuracy by multiply-accumulates")
        ends = [(_mean(learners[n], "accuracy"), f"{looks[n].sign} {looks[n].name}", looks[n].color) for n in learners]
        label_ends(right, ends, _line_height(height), inside=True)
    return saved(figure, path)


def _plot_cost(axes: Axes, x: list[float], accuracy: list[float], look: Look) -> None:
    """A point at the mean over the seeds, with lines from the lowest to the highest."""
    axes.plot(np.mean(x), np.mean(accuracy), color=look.color, marker=look.marker, ls="", ms=6, zorder=3)
    if len(x) > 1:
        axes.plot([np.mean(x)] * 2, [min(accuracy), max(accuracy)], color=look.color, lw=1)
        axes.plot([min(x), max(x)], [np.mean(accuracy)] * 2, color=look.color, lw=1)


def cost_axis(axes: Axes, numbers: Sequence[float | None]) -> Any:
    """Makes a log axis with places for 0 and for what was not counted; returns the place of a number."""
    counted = [math.log10(number) for number in numbers if number]
    low, high = math.floor(min(counted, default=0)), math.ceil(max(counted, default=1))
    high = max(high, low + 1)
    width = high - low
    ticks: dict[float, str] = {float(k): f"$10^{{{k}}}$" for k in range(low, high + 1, max(1, width // 5))}
    left, right = low - 0.05 * width, high + 0.05 * width
    zero, unknown = left - 0.1 * width, right + 0.1 * width
    if any(number == 0 for number in numbers):
        axes.axvline(left, color=GRAY, lw=0.8, ls=":")
        ticks[zero] = "0"
        left = zero - 0.07 * width
    if None in numbers:
        axes.axvline(right, color=GRAY, lw=0.8, ls=":")
        ticks[unknown] = "not\ncounted"
        right = unknown + 0.1 * width
    axes.set_xlim(left, right)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.grid(True)
    return lambda number: unknown if number is None else math.log10(number) if number else zero


def _plot_curves(axes: Axes, learners: dict[str, list[Scores]], what: str, looks: dict[str, Look]) -> float:
    """Draws a running average of each learner; the highest value that can be seen."""
    highest, longest = 0.0, 1
    for name, some in learners.items():
        curves = [each.curve() for each in some]
        position = curves[0]["position"]
        # averages of a few examples jump between 0 and 1 and mean little
        visible = position >= min(100, position[-1] // 2)
        values = np.stack([np.interp(position, curve["position"], curve[what]) for curve in curves])[:, visible]
        look = looks[name]
        axes.plot(position[visible], values.mean(0), color=look.color, ls=look.dashes, lw=1.5, zorder=3)
        if len(some) > 1:
            axes.fill_between(position[visible], values.min(0), values.max(0), color=look.color, alpha=0.15, lw=0)
        highest, longest = max(highest, float(values.max())), max(longest, int(position[-1]))
    examples_axis(axes, longest)
    axes.grid(True, axis="y")
    return highest


def _label_curves(
    axes: Axes,
    learners: dict[str, list[Scores]],
    what: str,
    texts: dict[str, str],
    looks: dict[str, Look],
    references: list[End],
) -> None:
    """Names at the ends of the lines and of the references; the limits must be final."""
    ends = []
    for name, text in texts.items():
        look = looks[name]
        dashed = "" if look.dashes == "-" else "┅ "
        ends.append((_mean(learners[name], what), f"{dashed}{look.name} {text}", look.color))
    label_ends(axes, [*ends, *references], _line_height(_height({"": learners})), inside=True)


def _line_height(height: float) -> float:
    """The room of a line of text in a panel of this height in inches, as a share of the panel."""
    return 0.062 * 2.75 / (height - 0.75)


def _looks(scores: Many) -> dict[str, Look]:
    learners = list(dict.fromkeys(name for some in scores.values() for name in some))
    names = [short_name(name) for name in learners]
    if len(set(names)) < len(names):  # they could not be told apart
        names = [wrapped(name, LONGEST_NAME) for name in learners]
    looks = {}
    for i, (learner, name) in enumerate(zip(learners, names, strict=True)):
        again = i // len(PALETTE)
        marker, sign = MARKERS[again % len(MARKERS)]
        looks[learner] = Look(name, PALETTE[i % len(PALETTE)], DASHES[again % len(DASHES)], marker, sign)
    return looks


def short_name(name: str) -> str:
    """A learner's name without the folder of its class, and cut where it is very long.

    >>> short_name("river:forest.ARFClassifier")
    'river:ARFClassifier'
    """
    library, colon, path = name.partition(":")
    if colon:
        before, bracket, options = path.partition("(")
        name = f"{library}:{before.rpartition('.')[2]}{bracket}{options}"
    return cut(name, LONGEST_NAME)


def _panels(scores: Many, height: float | None = None) -> tuple[Figure, list[Axes]]:
    """A panel for each stream, two in a row."""
    if not scores or not all(scores.values()):
        raise BadInput("there is nothing to draw: got a stream with 0 learners, expected at least 1")
    columns = min(2, len(scores))
    rows = -(-len(scores) // columns)
    figure = new_figure(6.4 if columns == 1 else 10.4, rows * (height or _height(scores)))
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in grid[len(scores) :]:
        unused.set_axis_off()
    return figure, list(grid[: len(scores)])


def _height(scores: Many) -> float:
    """Of a panel in inches: high enough for the names of all learners at its right edge."""
    return max(3.4, 1.0 + 0.19 * max(len(learners) for learners in scores.values()))


def _charged(learners: dict[str, list[Scores]]) -> dict[str, list[Scores]]:
    """The learners without those that gave a label probability 0 (the oracle, which gives none at all)."""
    return {name: some for name, some in learners.items() if math.isfinite(_mean(some, "log_loss"))}


def _classes(learners: dict[str, list[Scores]]) -> int:
    return max(each.classes for some in learners.values() for each in some)


def _mean(some: list[Scores], what: str) -> float:
    return float(np.mean([getattr(each, what) for each in some]))
