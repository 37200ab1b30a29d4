"""Writes the report of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prequential.errors import BadInput, PrequentialError
from prequential.reports.data import page_data
from prequential.reports.page import make_page
from prequential.reports.run_reader import RunReader, find_runs, is_index
from prequential.storage.files import write_atomically


def read_runs(paths: Sequence[Path]) -> list[RunReader]:
    """The runs in these directories, or in folders of runs, read to their ends.

    Parameters
    ----------
    paths
        Directories of runs, comparisons, sweeps and experiments, and folders of these.
    """
    return _read(paths)[0]


def _read(paths: Sequence[Path]) -> tuple[list[RunReader], list[str]]:
    """The runs that can be read and, where they are runs of a folder, why others cannot."""
    if not paths:
        raise BadInput("there is nothing to report: got 0 runs, expected at least 1")
    readers, problems = [], []
    for directory in find_runs(paths):
        try:
            reader = RunReader(directory)
            reader.refresh()
            reader.check()
            readers.append(reader)
        except PrequentialError as error:
            if not is_index(paths):
                raise
            problems.append(str(error))
    if not readers:
        raise BadInput(problems[0])
    return readers, problems


def write_report(paths: Sequence[Path], out: Path | None = None, figures: Path | None = None) -> Path:
    """Writes one page on some runs, and where it was written.

    Parameters
    ----------
    paths
        Directories of runs and of comparisons, of which the finished runs are taken, and folders of any of these.
    out
        The page; by default `report.html` in the directory where there is one, else in the current one.
    figures
        A folder for the figures as PNG, SVG and PDF, if they are wanted.
    """
    from prequential.reports.figures import write_figures

    readers, problems = _read(paths)
    out = out or (paths[0] if len(paths) == 1 else Path()) / "report.html"
    if out.is_dir():
        out = out / "report.html"
    # a path may hold bytes that are no text; they must not keep the page from being written
    data = {**page_data(readers, index=is_index(paths)), "problem": " ".join(f"{problem}." for problem in problems)}
    write_atomically(out, make_page(data).encode(errors="replace"))
    if figures is not None:
        write_figures(readers, figures)
    return out
