"""The figures of a report for a paper, one picture each, as PNG, SVG and PDF."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prequential.evaluation.scores import Scores
from prequential.plots.comparison import LONGEST_NAME, Many, draw_accuracies, draw_bits, draw_losses
from prequential.plots.curves import (
    accuracy_panel,
    check_scores,
    draw_calibration,
    draw_tasks,
    loss_panel,
    within_task_panel,
)
from prequential.plots.style import (
    GRAY,
    colors,
    examples_axis,
    label_ends,
    new_figure,
    save,
    saved,
    short,
    short_stream_name,
    styled,
)
from prequential.reports.data import group_names
from prequential.reports.run_reader import RunReader

KINDS = ("png", "svg", "pdf")
SIZE = (4.8, 3.3)  # inches
FEW = 7  # so many lines have colors of their own

Panel = Callable[[Axes, dict[str, Scores]], None]  # draws some runs


@styled
def draw_alone(panel: Panel, scores_by_name: dict[str, Scores], path: str | Path | None = None) -> Figure:
    """A figure with one panel.

    Parameters
    ----------
    panel
        What draws it.
    scores_by_name
        The scores of each run, under the name to print.
    path
        Where to save the figure (.png, .svg or .pdf), if it is to be saved.
    """
    check_scores(scores_by_name)
    figure = new_figure(*SIZE, hspace=0.02)
    panel(figure.subplots(), scores_by_name)
    return saved(figure, path)


def length_panel(axes: Axes, scores_by_name: dict[str, Scores]) -> None:
    """The description length so far in bits, over the stream."""
    ends, highest = [], 0.0
    for (name, scores), color in zip(scores_by_name.items(), colors(scores_by_name), strict=True):
        curve = scores.curve()
        bits = curve["running_log_loss"] * curve["position"] / math.log(2)
        axes.plot([0, *curve["position"]], [0, *bits], color=color)
        if math.isfinite(scores.bits):
            ends.append((scores.bits, f"{name}\n{short(scores.bits)} bits", color))
            highest = max(highest, scores.bits)
    longest = max(scores.count for scores in scores_by_name.values())
    uniform = longest * math.log2(max(scores.classes for scores in scores_by_name.values()))
    axes.plot([0, longest], [0, uniform], color=GRAY, lw=0.9, ls=":")
    # one run that diverges must not hide the others
    axes.set_ylim(0, 1.05 * max(uniform, min(highest, 2 * uniform or highest)) or 1)
    axes.yaxis.set_major_formatter(short)
    axes.grid(True, axis="y")
    axes.set_title("Description length so far, in bits")
    examples_axis(axes, longest)
    label_ends(axes, [*ends, (uniform, "uniform code", GRAY)])


def write_figures(readers: Sequence[RunReader], directory: Path) -> list[Path]:
    """Draws everything that makes sense for these runs; what was written.

    Parameters
    ----------
    readers
        The runs, refreshed.
    directory
        The folder for the figures. Where there are several streams, each gets a folder of its own in it.
    """
    written: list[Path] = []
    groups = group_names(readers)
    streams = list(dict.fromkeys(reader.run_settings.stream for reader in readers))
    for number, stream in enumerate(streams):
        many: dict[str, list[Scores]] = {}
        for reader, group in zip(readers, groups, strict=True):
            if reader.run_settings.stream == stream and reader.sums is not None:
                many.setdefault(group, []).append(reader.sums.scores)
        folder = directory if len(streams) == 1 else directory / _file_name(short_stream_name(stream), number)
        written += _write_stream(short_stream_name(stream), many, folder)
    return written


def _write_stream(stream: str, many: dict[str, list[Scores]], folder: Path) -> list[Path]:
    written: list[Path] = []

    def keep(name: str, draw: Callable[[], Figure]) -> None:
        figure = draw()
        for kind in KINDS:
            save(figure, folder / f"{name}.{kind}")
            written.append(folder / f"{name}.{kind}")

    many = {_two_lines(name): some for name, some in many.items()}
    first = {name: some[0] for name, some in many.items()}  # where seeds cannot be averaged, the first one is shown
    charged = {name: some for name, some in many.items() if all(s.total_nats < float("inf") for s in some)}
    if len(many) <= FEW and all(len(some) == 1 for some in many.values()):
        keep("accuracy", lambda: draw_alone(accuracy_panel, first))
        keep("log-loss", lambda: draw_alone(loss_panel, first))
    else:
        together: Many = {stream: many}
        keep("accuracy", lambda: draw_accuracies(together))
        keep("log-loss", lambda: draw_losses(together))
    if charged:
        if all(len(name) <= LONGEST_NAME for name in charged):  # cut off, they could look the same
            keep("bits", lambda: draw_bits({stream: charged}))
        keep(
            "description-length",
            lambda: draw_alone(length_panel, dict([(name, first[name]) for name in charged][:FEW])),
        )
    few = dict(list(first.items())[:FEW])
    keep("calibration", lambda: draw_calibration(few))
    with_tasks = {name: scores for name, scores in first.items() if scores.task_count}
    if with_tasks:
        keep("few-shot", lambda: draw_alone(within_task_panel, dict(list(with_tasks.items())[:FEW])))
    for number, (name, scores) in enumerate(with_tasks.items()):
        suffix = "" if len(with_tasks) == 1 else f"-{_file_name(name, number)}"
        keep(f"tasks{suffix}", lambda scores=scores: draw_tasks(scores))  # type: ignore[misc]
    return written


def _two_lines(name: str) -> str:
    """A long name on two lines: beside a curve there is little room."""
    return name.replace(", ", ",\n", 1) if len(name) > 20 else name


def _file_name(text: str, number: int) -> str:
    """What is left of a text without special characters; the number keeps two of them apart."""
    return f"{number + 1}-{re.sub(r'[^A-Za-z0-9.=+-]+', '-', text).strip('-.')[:60]}".rstrip("-")
