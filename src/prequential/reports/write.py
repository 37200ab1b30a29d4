"""Writes the report of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prequential.errors import BadInput
from prequential.reports.data import page_data
from prequential.reports.page import make_page
from prequential.reports.run_reader import RunReader, find_runs
from prequential.storage.files import write_atomically


def read_runs(paths: Sequence[Path]) -> list[RunReader]:
    """The runs in these directories, or of the comparisons in them, read to their ends.

    Parameters
    ----------
    paths
        Directories of runs and of comparisons.
    """
    if not paths:
        raise BadInput("there is nothing to report: got 0 runs, expected at least 1")
    readers = [RunReader(directory) for directory in find_runs(paths)]
    for reader in readers:
        reader.refresh()
        reader.check()
    return readers


def write_report(paths: Sequence[Path], out: Path | None = None, figures: Path | None = None) -> Path:
    """Writes one page on some runs, and where it was written.

    Parameters
    ----------
    paths
        Directories of runs and of comparisons; of these the finished runs are taken.
    out
        The page; by default `report.html` in the directory where there is one, else in the current one.
    figures
        A folder for the figures as PNG, SVG and PDF, if they are wanted.
    """
    from prequential.reports.figures import write_figures

    readers = read_runs(paths)
    out = out or (paths[0] if len(paths) == 1 else Path()) / "report.html"
    if out.is_dir():
        out = out / "report.html"
    # a path may hold bytes that are no text; they must not keep the page from being written
    write_atomically(out, make_page(page_data(readers)).encode(errors="replace"))
    if figures is not None:
        write_figures(readers, figures)
    return out
