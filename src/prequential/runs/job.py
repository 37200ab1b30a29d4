"""A job: one run of a comparison, sweep or experiment, in a process of its own that writes a progress file."""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prequential.errors import BadInput, BadSetting, PrequentialError
from prequential.exits import explain
from prequential.registry import is_transformer
from prequential.runs.run_settings import MAY_CHANGE, RunSettings, read_stored_settings, write_settings
from prequential.settings import Settings
from prequential.storage.files import DirectoryLock, LockHeld, write_atomically
from prequential.storage.migrations import OLD_DEFAULTS
from prequential.storage.sealed import is_damaged, read_json, sealed_toml, write_sealed

WRITE_SECONDS = 1.0  # how often progress is written
WAIT_SECONDS = 60.0  # for a process of a killed comparison that is still saving


@dataclass(frozen=True, order=True)
class Job:
    """One run: a learner on a stream with a seed, and the directory that holds its settings."""

    stream: str
    learner: str
    seed: int
    directory: Path

    @property
    def settings(self) -> Path:
        """The file with its settings."""
        return self.directory / "settings.toml"


def check_same_settings(job: Job, run: RunSettings, learner: Settings) -> None:
    """Refuses to resume a job that was started with other settings; those that results do not depend on may differ.

    So may `reading`, as a run goes on with that of its directory, and settings whose default was another one then.
    """
    if not job.settings.is_file() or is_damaged(job.settings):
        return
    stored_run, stored_learner = read_stored_settings(job.settings)
    before, now = asdict(RunSettings(**stored_run)), asdict(run)
    if is_transformer(run.learner):  # the others do not have these settings
        before = {**before, **asdict(Settings(**stored_learner))}
        now = {**now, **asdict(_as_begun(stored_learner, learner))}
    for name, value in now.items():
        if name not in (*MAY_CHANGE, "reading") and before[name] != value:
            raise BadSetting(f"{job.directory} was made with {name} = {before[name]}, not {value}; give another --out")


def write_job_settings(job: Job, run: RunSettings, learner: Settings) -> None:
    """Writes the settings that `run_job` reads."""
    if job.settings.is_file() and not is_damaged(job.settings):
        stored_run, stored_learner = read_stored_settings(job.settings)
        run, learner = replace(run, reading=stored_run["reading"]), _as_begun(stored_learner, learner)
    write_atomically(job.settings, sealed_toml(write_settings(run, learner)))


def _as_begun(stored: dict[str, Any], learner: Settings) -> Settings:
    """The settings, but where a job from an earlier version has other defaults, with those."""
    older: dict[str, Any] = {}
    for defaults in OLD_DEFAULTS.values():
        for name, value in defaults.items():
            if stored.get(name) == value and getattr(learner, name) == getattr(Settings, name):
                older[name] = value
    return replace(learner, **older)


def run_job(directory: Path, parent: int | None = None, *, trust: bool = False) -> str:
    """Starts or resumes the run in this directory, whose settings are already there; returns the state it ended in.

    Parameters
    ----------
    directory
        The directory of the run. The file `progress.json` in it holds the position, and at the end the run's time.
    parent
        The id of the process that started this one; when that process is gone, the run is saved and stopped.
    trust
        As for `Run`: whether the settings there were given by the user.
    """
    import pyarrow.parquet  # noqa: F401 (records need it; its import is no part of any learner's time)

    from prequential.runs.run import Run

    progress = ProgressWriter(directory, parent)
    try:
        _wait_for_lock(directory)
        run = Run(directory, trust=trust)
        if not (directory / "environment.json").is_file():
            run.begin()
        run.restore()
        for warning in run.warnings:
            print(warning, file=sys.stderr)
        progress.begin(run.position, run.length, run.seconds)
        run.execute(progress)
    except PrequentialError as error:
        return progress.end("failed", why=str(error))
    except Exception as error:
        traceback.print_exc()
        return progress.end("failed", why=explain(error)[0])
    return progress.end("finished" if run.finished else "stopped")


class ProgressWriter:
    """Writes `progress.json`: state, position, examples/s, accuracy, log-loss, and the seconds of all sessions.

    A session lasts from a start or resume to its last example. Drawing the figures at the end of a run does not count.
    """

    def __init__(self, directory: Path, parent: int | None) -> None:
        self.path, self.parent = directory / "progress.json", parent
        before = read_progress(directory)
        self.seconds_before: float | None = before.get("seconds")  # of earlier sessions
        self.progress: dict[str, Any] = {**before, "state": "running"}
        self.progress.pop("why", None)
        self.first = 0
        self.started = self.written = time.monotonic()

    def begin(self, position: int, length: int, seconds: float) -> None:
        """Starts a session; `seconds` are those of earlier sessions, used where the file does not have them."""
        self.first = position
        self.seconds_before = seconds if self.seconds_before is None else self.seconds_before
        self.progress |= {"position": position, "length": length}
        self._write()
        self.started = time.monotonic()

    def __call__(self, run: Any) -> None:
        now = time.monotonic()
        spent = now - self.started
        self.progress |= {
            "position": run.position,
            "seconds": (self.seconds_before or 0.0) + spent,
            "rate": (run.position - self.first) / max(spent, 1e-9),
            "accuracy": _finite_or_none(run.scores.accuracy),
            "log_loss": _finite_or_none(run.scores.log_loss),
        }
        if self.parent is not None and os.getppid() != self.parent:
            run.stopped = True
        if run.finished or now - self.written >= WRITE_SECONDS:
            self._write()

    def end(self, state: str, **more: Any) -> str:
        self.progress |= {"state": state, **more}
        self._write()
        return state

    def _write(self) -> None:
        write_sealed(self.path, self.progress)
        self.written = time.monotonic()


def read_progress(directory: Path) -> dict[str, Any]:
    """The latest progress of a job; empty if it has not started or the file is damaged."""
    try:
        return read_json(directory / "progress.json")
    except (FileNotFoundError, BadInput):
        return {}


def read_result(directory: Path) -> dict[str, Any]:
    """The result of a job: its scores, `seconds`, `macs` (None: not counted) and `state`, with `why` if it failed."""
    progress = read_progress(directory)
    if progress.get("state") == "failed":
        return {"state": "failed", "why": progress.get("why", "")}
    try:
        scores = read_json(directory / "scores.json")
        if not {"finished", "count", "classes", "accuracy"} <= scores.keys():
            raise BadInput(f"{directory / 'scores.json'} is damaged: it holds no scores of a run")
    except FileNotFoundError:
        return {"state": "unfinished"}
    except BadInput as error:  # the run writes it again when it is resumed
        return {"state": "damaged", "why": str(error)}
    macs = scores.get("macs_per_example")
    return {
        **scores,
        "state": "finished" if scores["finished"] else "unfinished",
        "seconds": progress.get("seconds", scores.get("seconds")),
        "macs": None if macs is None else macs * scores["count"],
    }


def _finite_or_none(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _wait_for_lock(directory: Path) -> None:
    """Waits while another process works here; if that takes too long, the run raises the error itself."""
    lock = DirectoryLock(directory)
    with suppress(LockHeld):
        lock.wait(WAIT_SECONDS)
    lock.free()


if __name__ == "__main__":
    run_job(Path(sys.argv[1]), int(sys.argv[2]), trust="--trust" in sys.argv[3:])
