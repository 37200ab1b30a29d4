"""All claims at a glance: how far each effect is beyond what was asked for, as measured by its own interval."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from prequential.plots.style import COLORS, GRAY, INK, styled

FARTHEST = 6.0  # half-widths of an interval; what lies beyond stands at the edge
VERDICT_COLORS = {"holds": COLORS[0], "does not hold": COLORS[1], "cannot be said": GRAY}
ROW, LEFT, PANEL, BELOW = 0.215, 5.9, 2.3, 0.45  # inches: of a row, beside, of and below the panel
LONGEST_REASON = 34  # characters


class ClaimRow(NamedTuple):
    """A claim, and what was found."""

    experiment: str
    says: str
    verdict: str
    reason: str = ""
    mean: float | None = None  # of the effect, beyond the least that was asked for
    low: float | None = None
    high: float | None = None


@styled
def draw_claims(rows: Sequence[ClaimRow]) -> Figure:
    """A row for each claim, under the names of their experiments.

    Effects have different units, so each is drawn in half-widths of its own 95 % interval: a claim holds where the
    whole bar is to the right of zero.

    Parameters
    ----------
    rows
        The claims; those of an experiment stand together.

    Examples
    --------
    >>> figure = draw_claims([ClaimRow("cloc-width", "Wider is better.", "holds", "", 0.1, 0.08, 0.12)])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['cloc-width', 'Wider is better.', 'holds']
    """
    heads = sum(1 for i, row in enumerate(rows) if i == 0 or rows[i - 1].experiment != row.experiment)
    lines = len(rows) + heads
    width, height = 11.5, ROW * lines + BELOW + 0.1
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((LEFT / width, BELOW / height, PANEL / width, ROW * lines / height))
    axes.axvline(0, color=INK, linewidth=0.8)
    y = 0.0
    for i, row in enumerate(rows):
        if i == 0 or rows[i - 1].experiment != row.experiment:
            _write(axes, 0.1 - LEFT, y, row.experiment, fontweight="bold")
            y += 1
        color = VERDICT_COLORS[row.verdict]
        _write(axes, 0.25 - LEFT, y, row.says)
        why = textwrap.shorten(row.reason.replace("`", ""), LONGEST_REASON, placeholder=" …")
        _write(axes, PANEL + 0.15, y, f"{row.verdict}: {why}" if row.reason else row.verdict, color=color)
        _draw_bar(axes, row, y, color)
        y += 1
    axes.set_xlim(-FARTHEST, FARTHEST)
    axes.set_ylim(lines - 0.5, -0.5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    axes.set_xlabel("effect beyond what was asked for, in half-widths of its 95 % interval")
    axes.grid(axis="x")
    return figure


def _write(axes: Axes, x: float, y: float, text: str, **how: Any) -> None:
    """Writes beside the panel: x is in inches from its left edge."""
    axes.text(x / PANEL, y, text, transform=axes.get_yaxis_transform(), va="center", ha="left", **how)


def _draw_bar(axes: Axes, row: ClaimRow, y: float, color: str) -> None:
    if row.mean is None or row.low is None or row.high is None:
        return
    half = (row.high - row.low) / 2
    if not half:
        return
    low, mean, high = (min(max(value / half, -FARTHEST), FARTHEST) for value in (row.low, row.mean, row.high))
    axes.plot([low, high], [y, y], color=color, linewidth=2.4, solid_capstyle="butt", clip_on=False)
    mark = "o" if abs(mean) < FARTHEST else ">" if mean > 0 else "<"
    axes.plot([mean], [y], mark, color=color, markersize=4.5, clip_on=False)
