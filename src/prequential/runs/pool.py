"""Many runs, each in a process of its own, as many at a time as there are cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from prequential.errors import BadInput, one_line
from prequential.storage.files import open_own
from prequential.runs.job import read_progress, run_cell
from prequential.storage.sealed import write_sealed

if TYPE_CHECKING:
    from prequential.runs.watching import Watching

POLL_SECONDS = 0.2
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, order=True)
class Cell:
    """One run of the comparison."""

    stream: str
    learner: str
    seed: int
    directory: Path


def run_cells(todo: Sequence[Cell], jobs: int, watching: Watching, *, threads: int = 1, trust: bool = False) -> bool:
    """Runs cells to their ends; False when it was asked to stop before.

    Parameters
    ----------
    todo
        The cells, whose directories hold their settings.
    jobs
        How many at a time; 0 does them one after the other in this process.
    watching
        What shows how far they are.
    threads
        Threads of each process.
    trust
        As for `Run`: whether the settings there are the user's own word.
    """
    return _at_once(todo, jobs, threads, watching, trust) if jobs else _one_by_one(todo, watching, trust)


def _one_by_one(todo: Sequence[Cell], watching: Watching, trust: bool) -> bool:
    for cell in todo:
        watching.update()
        if run_cell(cell.directory, trust=trust) == "stopped":
            return False
        watching.update()
    return True


def _at_once(todo: Sequence[Cell], jobs: int, threads: int, watching: Watching, trust: bool) -> bool:
    """Runs cells in processes of their own, so many at a time; False when it was asked to stop."""
    waiting = list(todo)
    running: dict[Cell, subprocess.Popen[bytes]] = {}
    try:
        with terminated_like_interrupted():
            while waiting or running:
                while waiting and len(running) < jobs:
                    cell = waiting.pop(0)
                    running[cell] = start_cell(cell, threads, trust=trust)
                for cell, process in list(running.items()):
                    if process.poll() is not None:
                        del running[cell]
                        settle(cell, process.returncode)
                watching.update(running)
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        watching.say("stopping: each run saves what it has; once more to stop at once")
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        try:
            for process in running.values():
                process.wait()
        except KeyboardInterrupt:
            for process in running.values():
                process.kill()
        return False
    watching.update()
    return True


def start_cell(cell: Cell, threads: int = 1, *, trust: bool = False) -> subprocess.Popen[bytes]:
    """Begins or goes on with the run of a cell, in a process of its own."""
    command = [sys.executable, "-m", "prequential.runs.job", str(cell.directory), str(os.getpid())]
    command += ["--trust"] * trust
    with os.fdopen(open_own(cell.directory / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log:
        # the threads are counted when torch is imported, so they are set before
        return subprocess.Popen(
            command,
            env={**os.environ, **{name: str(threads) for name in THREADS}},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def settle(cell: Cell, code: int) -> None:
    """Says why a process ended that did not say so itself."""
    told = read_progress(cell.directory)
    if told.get("state") in ("finished", "failed") and code == 0:
        return
    if told.get("state") == "stopped":
        why = "it was asked to stop, from outside"
    elif code < 0:
        why = f"its process was ended by {signal.Signals(-code).name}, perhaps for want of memory"
    else:
        log = _end_of(cell.directory / "log.txt").splitlines()
        why = f"its process ended with code {code}: {log[-1] if log else 'no word'}"
    told = {**told, "state": "failed", "why": one_line(why)}
    write_sealed(cell.directory / "progress.json", told)


def _end_of(log: Path, size: int = 4096) -> str:
    """The last words of a log, which may be long."""
    try:
        with os.fdopen(open_own(log, os.O_RDONLY), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size).decode(errors="replace").strip()
    except (OSError, BadInput):
        return ""


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """A request to end (SIGTERM) is taken like Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread: signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
