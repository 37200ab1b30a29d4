"""How much time experiments may take: what fits, by the time that finished runs took."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path

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


def estimate_seconds(trial: Trial, request: Request, directory: Path) -> float:
    """How long a trial will take, or the rest of it, by the finished runs that are most like it.

    Parameters
    ----------
    trial, request
        The trial, and what its experiment is run with.
    directory
        The directory of its run; the runs beside it and beside its experiment show how fast this machine is.
    """
    macs, length = macs_of(trial, request), length_of(trial, request)
    found = []  # how unlike a run is, and its speed
    for scores in directory.parent.parent.parent.glob("*/runs/*/scores.json"):
        if scores.parent.is_symlink() or (
            macs is None and scores.parent.name.partition(",seed")[0] not in directory.name
        ):
            continue
        result = read_result(scores.parent)
        if result["state"] == "finished" and result.get("seconds"):
            done, count = result["macs"] if macs is not None else result["count"], result["count"]
            if done and count:
                unlike = 0.0 if macs is None else abs(math.log(done / count) - math.log(macs / length))
                found.append((unlike, done / result["seconds"]))
    speeds = [speed for _, speed in sorted(found)[:MOST_ALIKE]]
    if macs is None:
        seconds = length / (statistics.median(speeds) if speeds else EXAMPLES_PER_SECOND)
    else:
        seconds = macs / (statistics.median(speeds) if speeds else MACS_PER_SECOND)
    progress = read_progress(directory)
    done_already = progress.get("position", 0) / max(progress.get("length", 1), 1)
    return float(seconds * (1 - min(done_already, 1.0)))
