"""What a result is compared with in a figure: the majority class and the last label, or else chance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes

from prequential.evaluation.scores import Scores
from prequential.plots.style import GRAY, percent

End = tuple[float, str, Any]  # height, text and color of a name at the right edge
LOOKS = {"majority": ("majority class", ":"), "last_label": ("last label", (0, (4, 2)))}
CLOSE = 0.015  # references that end closer than this share a name


def reference_levels(many: Iterable[Scores]) -> dict[str, float]:
    """The accuracy of each reference; chance where the labels are not known."""
    some = list(many)
    known = next((scores for scores in some if scores.has_references), None)
    if known is None:
        return {"chance": 1 / max(scores.classes for scores in some)}
    return {LOOKS[name][0]: known.references.accuracy(name) for name in LOOKS}


def plot_references(axes: Axes, many: Iterable[Scores]) -> list[End]:
    """Draws the accuracy of the references over the stream in gray; their names, for `label_ends`."""
    some = list(many)
    levels = reference_levels(some)
    if "chance" in levels:
        axes.axhline(levels["chance"], color=GRAY, lw=0.9, ls=":")
        return [(levels["chance"], "chance", GRAY)]
    curve = next(scores for scores in some if scores.has_references).references.curve()
    visible = curve["position"] >= min(100, curve["position"][-1] // 2)
    for name, (_, dashes) in LOOKS.items():
        axes.plot(curve["position"][visible], curve[name][visible], color=GRAY, lw=0.9, ls=dashes, zorder=1)
    low, high = min(levels.values()), max(levels.values())
    if high - low < CLOSE:
        return [(high, f"majority class,\nlast label {percent(high)}", GRAY)]
    return [(level, f"{name} {100 * level:.1f} %", GRAY) for name, level in levels.items()]
