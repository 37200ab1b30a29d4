"""A pool of jobs, each in a process of its own, as many at a time as there are cores."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from prequential.errors import BadInput, one_line
from prequential.runs.job import Job, read_progress, run_job
from prequential.storage.files import open_own, remove_temporaries
from prequential.storage.sealed import write_sealed

if TYPE_CHECKING:
    from prequential.runs.jobs_display import JobsDisplay

POLL_SECONDS = 0.2
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
STOPPING = "stopping: each run saves what it has; press Ctrl-C again to stop at once"


def run_jobs(
    todo: Sequence[Job],
    max_parallel: int,
    display: JobsDisplay,
    *,
    threads: int = 1,
    trust: bool = False,
    may_start: Callable[[Job], bool] | None = None,
    deadline: float | None = None,
) -> bool:
    """Runs jobs to their end, or until the deadline; False when interrupted before.

    Parameters
    ----------
    todo
        The jobs, whose directories hold their settings.
    max_parallel
        How many at a time; 0 runs them one after the other in this process.
    display
        Shows the progress.
    threads
        Threads of each process.
    trust
        As for `Run`: whether the settings there were given by the user.
    may_start
        Asked about each job when it is its turn; it is left out if the answer is no.
    deadline
        When to save the jobs that are running and to stop, by `time.monotonic()`. Without processes of their own, jobs
        are not stopped, but no other one is started.
    """
    may_start = may_start or (lambda job: True)
    deadline = math.inf if deadline is None else deadline
    if max_parallel:
        return _run_parallel(todo, max_parallel, threads, display, trust, may_start, deadline)
    return _run_sequentially(todo, display, trust, may_start, deadline)


def _run_sequentially(
    todo: Sequence[Job], display: JobsDisplay, trust: bool, may_start: Callable[[Job], bool], deadline: float
) -> bool:
    for job in todo:
        display.update()
        if time.monotonic() >= deadline or not may_start(job):
            continue
        if run_job(job.directory, trust=trust) == "stopped":
            return False
        display.update()
    return True


def _run_parallel(
    todo: Sequence[Job],
    max_parallel: int,
    threads: int,
    display: JobsDisplay,
    trust: bool,
    may_start: Callable[[Job], bool],
    deadline: float,
) -> bool:
    waiting = list(todo)
    running: dict[Job, subprocess.Popen[bytes]] = {}
    try:
        with sigterm_as_interrupt():
            while waiting or running:
                if time.monotonic() >= deadline:
                    stop_processes(running.values())
                    break
                while waiting and len(running) < max_parallel:
                    job = waiting.pop(0)
                    if may_start(job):
                        running[job] = start_job(job, threads, trust=trust)
                for job, process in list(running.items()):
                    if process.poll() is not None:
                        del running[job]
                        record_exit(job, process.returncode)
                display.update(running)
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        display.print(STOPPING)
        stop_processes(running.values())
        return False
    display.update()
    return True


def start_job(job: Job, threads: int = 1, *, trust: bool = False) -> subprocess.Popen[bytes]:
    """Starts or resumes the run of a job, in a process of its own."""
    command = [sys.executable, "-m", "prequential.runs.job", str(job.directory), str(os.getpid())]
    command += ["--trust"] * trust
    with os.fdopen(open_own(job.directory / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log:
        # the threads are counted when torch is imported, so they are set before
        return subprocess.Popen(
            command,
            env={**os.environ, **{name: str(threads) for name in THREADS}},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def stop_processes(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Asks processes to save and to exit, and waits for them; a second Ctrl-C kills them."""
    running = list(processes)
    for process in running:
        process.send_signal(signal.SIGTERM)
    try:
        for process in running:
            process.wait()
    except KeyboardInterrupt:
        for process in running:
            process.kill()


def record_exit(job: Job, code: int) -> None:
    """Writes to the progress file why a process exited that could not write it itself, and tidies up after it."""
    if code:
        remove_temporaries(job.directory, shared=True)
    progress = read_progress(job.directory)
    if progress.get("state") in ("finished", "failed") and code == 0:
        return
    if progress.get("state") == "stopped":
        why = "it was stopped from outside"
    elif code < 0:
        why = f"its process was ended by {signal.Signals(-code).name}, perhaps because memory ran out"
    else:
        log = _end_of(job.directory / "log.txt").splitlines()
        why = f"its process ended with code {code}: {log[-1] if log else 'its log is empty'}"
    progress = {**progress, "state": "failed", "why": one_line(why)}
    write_sealed(job.directory / "progress.json", progress)


def _end_of(log: Path, size: int = 4096) -> str:
    """The last lines of a log, which may be long."""
    try:
        with os.fdopen(open_own(log, os.O_RDONLY), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size).decode(errors="replace").strip()
    except (OSError, BadInput):
        return ""


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Treats SIGTERM like Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread, where no handler can be set
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(runs: int) -> int:
    """How many threads each of so many runs at a time gets: its share of the cores, at most OMP_NUM_THREADS."""
    share = max(1, available_cores() // max(runs, 1))
    allowed = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list is of nested regions
    return min(share, max(int(allowed), 1)) if allowed.isdecimal() else share
