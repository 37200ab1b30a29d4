"""One cell of a comparison: a run in a process of its own, that tells in a small file how far it has come."""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from prequential.errors import BadInput, PrequentialError
from prequential.exits import explain
from prequential.storage.files import DirectoryLock, LockHeld
from prequential.storage.sealed import read_json, write_sealed

TELL_SECONDS = 1.0  # how often progress is written
WAIT_SECONDS = 60.0  # for a process of a killed comparison that is still saving


def run_cell(directory: Path, parent: int | None = None, *, trust: bool = False) -> str:
    """Begins or goes on with the run in this directory, whose settings are there already; how it ended.

    Parameters
    ----------
    directory
        The directory of the run. `progress.json` in it tells how far the run is, and in the end its time.
    parent
        The process to work for; when it is gone, the run is saved and stopped.
    trust
        As for `Run`: whether the settings there are the user's own word.
    """
    import pyarrow.parquet  # noqa: F401 (records need it; its import is no part of any learner's time)

    from prequential.runs.run import Run

    telling = Telling(directory, parent)
    try:
        _wait_until_free(directory)
        run = Run(directory, trust=trust)
        if not (directory / "environment.json").is_file():
            run.begin()
        run.restore()
        for warning in run.warnings:
            print(warning, file=sys.stderr)
        telling.begin(run.position, run.length, run.seconds)
        run.go(telling)
    except PrequentialError as error:
        return telling.end("failed", why=str(error))
    except Exception as error:
        traceback.print_exc()
        return telling.end("failed", why=explain(error)[0])
    return telling.end("finished" if run.finished else "stopped")


class Telling:
    """Writes `progress.json`: state, examples done, examples/s, accuracy, log-loss, and the seconds of all goes.

    The seconds are those from the beginning of each go to its last example. The pictures a run ends with do not count.
    """

    def __init__(self, directory: Path, parent: int | None) -> None:
        self.path, self.parent = directory / "progress.json", parent
        before = read_progress(directory)
        self.before: float | None = before.get("seconds")  # of earlier goes
        self.told: dict[str, Any] = {**before, "state": "running"}
        self.told.pop("why", None)
        self.first = 0
        self.begun = self.written = time.monotonic()

    def begin(self, position: int, length: int, seconds: float) -> None:
        """Begins to tell; `seconds` are those of earlier goes, where that was not told."""
        self.first = position
        self.before = seconds if self.before is None else self.before
        self.told |= {"position": position, "length": length}
        self._write()
        self.begun = time.monotonic()

    def __call__(self, run: Any) -> None:
        now = time.monotonic()
        spent = now - self.begun
        self.told |= {
            "position": run.position,
            "seconds": (self.before or 0.0) + spent,
            "rate": (run.position - self.first) / max(spent, 1e-9),
            "accuracy": _number(run.scores.accuracy),
            "log_loss": _number(run.scores.log_loss),
        }
        if self.parent is not None and os.getppid() != self.parent:
            run.stopped = True
        if run.finished or now - self.written >= TELL_SECONDS:
            self._write()

    def end(self, state: str, **more: Any) -> str:
        self.told |= {"state": state, **more}
        self._write()
        return state

    def _write(self) -> None:
        write_sealed(self.path, self.told)
        self.written = time.monotonic()


def read_progress(directory: Path) -> dict[str, Any]:
    """What a cell has told last; nothing when it has not begun, or when the file is damaged: the run itself knows more."""
    try:
        return read_json(directory / "progress.json")
    except (FileNotFoundError, BadInput):
        return {}


def _number(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _wait_until_free(directory: Path) -> None:
    """Waits while another process works here; when that takes too long, the run itself will complain."""
    lock = DirectoryLock(directory)
    with suppress(LockHeld):
        lock.wait(WAIT_SECONDS)
    lock.free()


if __name__ == "__main__":
    run_cell(Path(sys.argv[1]), int(sys.argv[2]), trust="--trust" in sys.argv[3:])
