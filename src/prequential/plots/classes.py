"""The figures of classes: how well each is predicted, which is taken for which, and how common each is over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prequential.errors import BadInput
from prequential.evaluation.class_scores import OTHER
from prequential.evaluation.scores import Scores
from prequential.plots.comparison import PALETTE
from prequential.plots.style import COLORS, FAINT, GRAY, INK, cut, examples_axis, new_figure, percent, saved, styled

LONGEST_LABEL = 16
NUMBERS = 10  # up to so many classes, the cells of the confusion matrix hold numbers


@styled
def draw_classes(scores: Scores, path: str | Path | None = None, title: str = "") -> Figure:
    """Recall and precision of the most frequent classes, and the confusion matrix.

    Parameters
    ----------
    scores
        The scores of a learner, with its labels.
    path
        Where to save the figure (.png, .svg or .pdf), if it is to be saved.
    title
        The title of the figure.
    """
    _check(scores)
    rows = len(scores.by_class.confusion()["label"])
    figure = new_figure(9.2, 1.6 + 0.26 * max(rows, 6), title)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
    class_panel(left, scores)
    confusion_panel(right, scores)
    return saved(figure, path)


@styled
def draw_label_shares(scores: Scores, path: str | Path | None = None, title: str = "") -> Figure:
    """How common the most frequent labels are over the stream.

    Parameters
    ----------
    scores
        The scores of a learner, with its labels.
    path
        Where to save the figure (.png, .svg or .pdf), if it is to be saved.
    title
        The title of the figure.
    """
    _check(scores)
    figure = new_figure(6.4, 3.4, title)
    axes = figure.subplots()
    shares = scores.by_class.shares(8)
    # steps: a share holds for its whole period
    edges = np.repeat(np.concatenate([[0], shares["position"]]), 2)[1:-1]
    colors = [GRAY if label == OTHER else PALETTE[i % len(PALETTE)] for i, label in enumerate(shares["label"])]
    areas = axes.stackplot(edges, np.repeat(shares["share"], 2, axis=1), colors=colors, alpha=0.85, lw=0)
    axes.set(ylim=(0, 1), title="Share of each label over time")
    axes.yaxis.set_major_formatter(percent)
    examples_axis(axes, scores.count)
    names = [cut(label, LONGEST_LABEL) for label in shares["label"]]
    axes.legend(areas[::-1], names[::-1], loc="upper left", bbox_to_anchor=(1.01, 1.02))
    return saved(figure, path)


def class_panel(axes: Axes, scores: Scores) -> None:
    """Recall and precision of the most frequent classes, with their share of the stream."""
    table = scores.by_class.table(12)
    y = np.arange(len(table["label"]))
    axes.hlines(y, 0, 1, color=FAINT, lw=0.7, zorder=1)
    axes.plot(table["recall"], y, "o", color=COLORS[0], ms=6, label="recall", zorder=3)
    axes.plot(table["precision"], y, "o", color=COLORS[1], ms=6, mfc="none", mew=1.4, label="precision", zorder=4)
    for at, support in zip(y.tolist(), table["support"].tolist(), strict=True):
        axes.text(1.04, at, percent(support / scores.count), va="center", color=GRAY)
    axes.text(1.04, -0.9, "share", va="center", color=GRAY)
    axes.set_yticks(y, [cut(label, LONGEST_LABEL) for label in table["label"]])
    axes.set(xlim=(-0.02, 1.02), ylim=(len(y) - 0.4, -0.6))
    axes.set_title(f"Balanced accuracy {100 * scores.balanced_accuracy:.1f} %, kappa {scores.kappa:.3f}", pad=16)
    axes.xaxis.set_major_formatter(percent)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.1), ncols=2)


def confusion_panel(axes: Axes, scores: Scores) -> None:
    """What each label was predicted as, as shares of its row."""
    found = scores.by_class.confusion()
    count = found["count"]
    share = count / np.maximum(count.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    names = [cut(label, LONGEST_LABEL) for label in found["label"]]
    long = max(map(len, names)) > 4
    axes.set_xticks(range(len(names)), names, rotation=45 if long else 0, ha="right" if long else "center")
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0)
    axes.set(xlabel="predicted", ylabel="label")
    axes.set_title("What each label was predicted as", pad=16)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if len(names) <= NUMBERS:
        for i, j in np.ndindex(share.shape):
            color = "white" if share[i, j] > 0.45 else INK
            axes.text(j, i, f"{100 * share[i, j]:.0f}", ha="center", va="center", color=color, fontsize=7.5)


def _check(scores: Scores) -> None:
    if not scores.has_classes:
        raise BadInput("there is nothing to draw: these scores were made without labels")
