"""How much time experiments may take: what fits, by the time that finished runs took."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from prequential.errors import BadSetting
from prequential.experiments.costs import length_of, macs_of
from prequential.experiments.experiment import Request, Trial
from prequential.runs.job import read_progress, read_result

UNITS = {"s": 1, "m": 60, "h": 3600}
MACS_PER_SECOND = 1e10  # of a core, before any run has shown how fast it is
EXAMPLES_PER_SECOND = 500.0  # of a learner that is no transformer, likewise
MOST_ALIKE = 5  # runs whose speed counts: small models do fewer multiply-accumulates a second than large ones


def parse_duration(text: str) -> float:
    """Seconds, from a time such as 90m or 10h.

    >>> parse_duration("90m"), parse_duration("1.5h"), parse_duration("45s")
    (5400.0, 5400.0, 45.0)
    >>> parse_duration("10")
    Traceback (most recent call last):
    prequential.errors.BadSetting: the budget is '10', expected a time such as 90m or 10h
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip())
    if match is None or not float(match[1]):
        raise BadSetting(f"the budget is {text[:40]!r}, expected a time such as 90m or 10h")
    return float(match[1]) * UNITS[match[2]]


class FinishedRun(NamedTuple):
    """What shows how fast runs are."""

    macs: float | None
    examples: int
    seconds: float


def seconds_by(runs: Iterable[FinishedRun], macs: float | None, examples: int) -> float:
    """How long a run will take, by the finished ones whose cost per example is most like its own.

    Parameters
    ----------
    runs
        For a run whose multiply-accumulates are not counted: those of the same learner.
    macs, examples
        Of the run.

    Examples
    --------
    >>> large, small = FinishedRun(2e12, 1000, 20.0), FinishedRun(1e9, 1000, 1.0)
    >>> seconds_by([large] * 5 + [small] * 5, 4e12, 2000)  # 1e11 a second
    40.0
    >>> seconds_by([], None, 1000)
    2.0
    """
    if macs is None:
        speeds = [run.examples / run.seconds for run in runs if run.seconds]
        return examples / (statistics.median(speeds) if speeds else EXAMPLES_PER_SECOND)
    cost = macs / examples
    counted = [(run.macs, run) for run in runs if run.macs and run.examples and run.seconds]
    alike = sorted(counted, key=lambda one: abs(math.log(one[0] / one[1].examples / cost)))
    speeds = [done / run.seconds for done, run in alike[:MOST_ALIKE]]
    return macs / (statistics.median(speeds) if speeds else MACS_PER_SECOND)


def estimate_seconds(trial: Trial, request: Request, directory: Path) -> float:
    """How long a trial will take, or the rest of it, by the runs that are finished.

    Parameters
    ----------
    trial, request
        The trial, and what its experiment is run with.
    directory
        The directory of its run; the runs beside it and beside its experiment show how fast this machine is.
    """
    macs, runs = macs_of(trial, request), []
    for scores in directory.parent.parent.parent.glob("*/runs/*/scores.json"):
        same_learner = scores.parent.name.partition(",seed")[0] in directory.name
        if scores.parent.is_symlink() or (macs is None and not same_learner):
            continue
        result = read_result(scores.parent)
        if result["state"] == "finished" and result.get("seconds"):
            runs.append(FinishedRun(result["macs"], result["count"], result["seconds"]))
    progress = read_progress(directory)
    done = progress.get("position", 0) / max(progress.get("length", 1), 1)
    return seconds_by(runs, macs, length_of(trial, request)) * float(1 - min(done, 1.0))
