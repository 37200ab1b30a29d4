"""A trial while a worker runs it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field

from prequential.runs.job import Job, read_progress
from prequential.sweeps.plan import Point


@dataclass
class RunningTrial:
    """A trial that this worker is running: a job for each seed."""

    number: int
    point: Point
    folder: str
    jobs: dict[int, Job]  # by seed
    waiting: list[int]  # the seeds that have not been started
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    why: str = ""  # it failed

    def fraction_done(self) -> float:
        """How much of it is done, from 0 to 1."""
        progress = [read_progress(job.directory) for job in self.jobs.values()]
        fractions: list[float] = [each.get("position", 0) / max(each.get("length", 1), 1) for each in progress]
        return sum(fractions) / len(fractions)
