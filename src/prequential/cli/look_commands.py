"""Commands that look at what is there: show, runs, report. Heavy imports wait until they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from prequential.errors import BadInput, PrequentialError

if TYPE_CHECKING:
    from rich.console import Console


def show(directory: Path, /, *, trust: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Say what came out of a run so far, and draw its pictures again; the same for a comparison or a folder of runs.

    Parameters
    ----------
    directory
        The directory of a run, a comparison, a sweep or an experiment, or a folder with any of these.
    trust
        Do what a run's settings ask for even if that is more than to read data and to learn, such as to fetch data.
    """
    from rich.console import Console

    console = Console(highlight=False)
    if (directory / "settings.toml").is_file() or not directory.is_dir():
        from prequential.runs.show import show_run

        show_run(directory, console, trust=trust)
    elif (directory / "compare.toml").is_file():
        from prequential.comparisons.compare import collect, read_plan
        from prequential.comparisons.compare import show as show_rows

        plan = read_plan(directory)
        assert plan is not None
        show_rows(*collect(plan, directory, console), console)
    elif (directory / "results.json").is_file():
        from prequential.experiments.runner import show as show_experiment

        show_experiment(directory, console)
    else:
        _list(directory, console, sort="accuracy", by="seed")


def runs(
    folder: Path = Path("runs"),
    /,
    *,
    sort: str = "begun",
    match: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
    by: str | None = None,
) -> None:
    """List the runs in a folder, however deep, beside what the majority class and the last label reach.

    Parameters
    ----------
    folder
        Where to look.
    sort
        accuracy, balanced_accuracy, kappa, kappa_temporal, log_loss, count, seconds, begun or name.
    match
        Only runs with all of these words in their path, learner or setting=value: --match kalman seed=0.
    by
        Fold runs into one row: seed folds those that differ in the seed only, learning_rate (or any other setting) those
        with the same value.
    """
    from rich.console import Console

    _list(folder, Console(highlight=False), sort=sort, match=match or (), by=by)


def _list(folder: Path, console: Console, *, sort: str, match: Sequence[str] = (), by: str | None = None) -> None:
    from prequential.reports.run_list import list_runs, run_table

    lines, problems = list_runs(folder, sort=sort, match=match, by=by)
    for problem in problems:
        console.print(problem, style="yellow", markup=False, soft_wrap=True)
    if not lines:
        raise BadInput(f"{folder} holds no run" + (f" that matches {' '.join(match)}" if match else ""))
    console.print(run_table(lines, console.width))
    console.print(
        f"{sum(len(line.directories) for line in lines):,} runs; prequential report {folder} makes a page of them"
    )


def report(
    runs: Annotated[list[Path], Parameter(negative=())],
    /,
    *,
    out: Path | None = None,
    figures: Path | None = None,
    live: bool = False,
    port: int | None = None,
) -> None:
    """Make one page on some runs that opens anywhere: numbers, curves to zoom into, classes, tasks, settings.

    Parameters
    ----------
    runs
        Directories of runs, comparisons, sweeps and experiments, or a folder with any of these, such as runs/. Many runs
        get an index to sort, filter, fold by a setting, and pick from.
    out
        The page; by default report.html in the directory where one is given, else in the current one.
    figures
        A folder for the figures as PNG, SVG and PDF, for a paper.
    live
        Serve the page on this machine while the runs are in progress; Ctrl-C ends it.
    port
        With --live: the port; by default 8765, or a free one when that is taken.
    """
    from rich.console import Console

    from prequential.reports import serve_report, write_report

    console = Console(highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    if live:
        if out is not None or figures is not None:
            raise PrequentialError("--live serves the page and writes nothing: leave --out and --figures out")
        serve_report(runs, port, say)
        return
    page = write_report(runs, out, figures)
    say(f"report: {page}" + (f", figures in {figures}" if figures else ""))
