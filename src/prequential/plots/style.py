"""How figures look, and how they are saved: the same data always give the same bytes."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from prequential.errors import BadSetting
from prequential.storage.files import write_atomically

INK = "#222222"
GRAY = "#767676"
FAINT = "#e4e4e4"
# Okabe and Ito's colors, which color-blind readers can tell apart; the yellow is left out, too light on white
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that a figure looks the same everywhere
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": GRAY,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "xtick.color": GRAY,
    "ytick.color": GRAY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.minor.visible": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "prequential",  # else the names inside an SVG file are random
    "svg.fonttype": "path",
    "pdf.fonttype": 42,  # some venues refuse the other kind
}
METADATA: dict[str, dict[str, Any]] = {  # nothing that changes from day to day
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}

P = ParamSpec("P")


@contextmanager
def style() -> Iterator[None]:
    """This style inside the block and nowhere else; whatever the user has set up does not show in it."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Makes a drawing function use this style."""

    @wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with style():
            return draw(*args, **kwargs)

    return wrapper


def save(figure: Figure, path: str | Path) -> None:
    """Writes a figure, atomically, as PNG, SVG or PDF after the ending of the name.

    Parameters
    ----------
    figure
        The figure.
    path
        Where to; the folder is made if there is none.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in METADATA:
        raise BadSetting(
            f"a figure cannot be saved as {path.name!r}: expected a name that ends in {', '.join(METADATA)}"
        )
    data = io.BytesIO()
    with style():
        figure.savefig(data, format=kind[1:], dpi=150, metadata=METADATA[kind])
    write_atomically(path, data.getvalue())


def saved(figure: Figure, path: str | Path | None) -> Figure:
    """The figure, which is also written where there is a path."""
    if path is not None:
        save(figure, path)
    return figure


def new_figure(width: float, height: float, title: str = "", *, hspace: float = 0.04) -> Figure:
    """An empty figure of this size in inches."""
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.07, wspace=0.06, hspace=hspace)
    figure = Figure(figsize=(width, height), layout=layout)
    if title:
        figure.suptitle(title, x=0.11 / width, ha="left", fontsize=11, fontweight="bold")
    return figure


def short_stream_name(stream: str) -> str:
    """A stream without the folders of its path.

    >>> short_stream_name("covertype:/data/uci/covtype.npz(classes=7)")
    'covertype:covtype.npz(classes=7)'
    >>> short_stream_name("/data/prices.csv(delimiter='/')")
    "prices.csv(delimiter='/')"
    """
    source, bracket, options = stream.partition("(")
    kind, colon, path = source.rpartition(":")
    return f"{kind}{colon}{path.rpartition('/')[2] or path}{bracket}{options}"


def cut(text: str, longest: int) -> str:
    """A text that is cut off where it is longer than that.

    >>> cut("an absurdly long label", 12)
    'an absurdly…'
    """
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def wrapped(name: str, width: int = 24, lines: int = 3) -> str:
    """A long name on a few lines, so that it leaves room for the plot beside it.

    >>> wrapped("refit(lightgbm, window=20000, every=0.1, trees=500)").splitlines()
    ['refit(lightgbm,', 'window=20000, every=0.1,', 'trees=500)']
    """
    parts = textwrap.wrap(name, width, break_long_words=True)
    return "\n".join(parts if len(parts) <= lines else [*parts[: lines - 1], cut(" ".join(parts[lines - 1 :]), width)])


def short_number(value: float) -> str:
    """A setting as it stands in a name: four digits are enough to tell values apart.

    >>> [short_number(n) for n in (0.04266754765551817, 256, 3e-05, 20000)]
    ['0.04267', '256', '3e-05', '20000']
    """
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def colors(named: Sized) -> list[str]:
    """A color for each of these; they begin again when they are used up."""
    return [COLORS[i % len(COLORS)] for i in range(len(named))]


def examples_axis(axes: Axes, longest: int) -> None:
    """Makes the axis at the bottom one of positions in the stream, up to the longest."""
    axes.set_xlim(0, longest)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(short)
    axes.set_xlabel("examples")


def short(number: float, _tick: object = None) -> str:
    """A number as it stands on an axis.

    >>> [short(n) for n in (0, 500, 2500, 40_000, 37_000_000)]
    ['0', '500', '2.5k', '40k', '37M']
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def percent(share: float, _tick: object = None) -> str:
    """A share as it stands on an axis."""
    return f"{100 * share:.3g} %"


def label_ends(
    axes: Axes, ends: Sequence[tuple[float, str, Any]], line: float = 0.062, *, inside: bool = False
) -> None:
    """Writes the names of lines at the right edge, at the height where they end, moved apart where they would touch.

    Parameters
    ----------
    axes
        The panel; its limits must be final.
    ends
        Height, text and color of each.
    line
        The room one line of text needs, as a share of the height of the panel.
    inside
        Whether all names stay between the bottom and the top of the panel.
    """
    low, high = axes.get_ylim()
    ends = sorted(ends, key=lambda end: end[0])
    at = np.clip([(height - low) / (high - low) for height, _, _ in ends], 0, 1)
    room = line * np.array([text.count("\n") + 1 for _, text, _ in ends])
    for _ in range(200):  # pushes touching neighbors apart, half of the way each
        for i in range(len(at) - 1):
            overlap = (room[i] + room[i + 1]) / 2 - (at[i + 1] - at[i])
            if overlap > 0:
                at[i : i + 2] += (-overlap / 2, overlap / 2)
        if inside:
            at = np.clip(at, line * np.arange(len(at)), 1 - line * np.arange(len(at))[::-1])
    for height, (_, text, color) in zip(at, ends, strict=True):
        axes.text(1.025, height, text, color=color, transform=axes.transAxes, va="center", ha="left", linespacing=1.15)
