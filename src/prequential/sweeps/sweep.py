"""A sweep: trials at many settings, each some ordinary runs, in as many processes as there are cores."""

from __future__ import annotations

import math
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from prequential.comparisons.tables import read_result
from prequential.errors import BadInput, BadSetting
from prequential.runs.job import run_cell
from prequential.runs.pool import Cell, cores, settle, start_cell, terminated_like_interrupted
from prequential.runs.settings import write_settings
from prequential.storage.files import (
    DirectoryLock,
    LockHeld,
    is_temporary,
    make_directory,
    refuse_links,
    remove_temporaries,
    write_atomically,
)
from prequential.storage.sealed import sealed_toml
from prequential.sweeps.plan import OBJECTIVES, Point, SweepPlan, read_sweep
from prequential.sweeps.storage import is_inside, without_password
from prequential.sweeps.study import Row, Trials
from prequential.sweeps.tables import write_results
from prequential.sweeps.watching import WatchSweep
from prequential.trust import names_from, need_trust

POLL_SECONDS = 0.1
BEAT_SECONDS = 20.0  # how often a worker says that it is alive, and looks for others that are not
OURS = ("sweep.toml", "study.db", "workers", "trials")  # any of them shows that a directory is a sweep's
DATABASE = ("study.db.lock", "study.db-journal", "study.db-wal", "study.db-shm")
TRIES = 3  # of a run whose process is killed, perhaps for want of memory


@dataclass
class Work:
    """A trial at hand."""

    number: int
    point: Point
    folder: str
    cells: dict[int, Cell]  # by seed
    waiting: list[int]  # the seeds that have not been started
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    why: str = ""  # of a failure


def sweep(
    file: Path,
    *,
    trials: int | None = None,
    jobs: int | None = None,
    storage: str | None = None,
    out: Path | None = None,
    console: Console | None = None,
    trust: bool = False,
) -> tuple[SweepPlan, list[Row], Path] | None:
    """Runs the trials that are missing, then writes tables and pictures; None when it was stopped.

    Parameters
    ----------
    file
        The TOML file that describes the sweep.
    trials
        How many trials there shall be, whatever the file says.
    jobs
        How many runs at a time, each in a process with one thread; by default as many as there are cores. 0 does them
        one after the other in this process.
    storage
        Where Optuna keeps the trials: a database URL or `journal:PATH`; by default SQLite in the sweep's directory.
    out
        The directory of the sweep; by default runs/NAME.
    console
        Where to show progress.
    trust
        Whether a file that lies in the directory of a sweep, as its own copy does, may name a database elsewhere, another
        directory, or data to fetch. Any other file is the caller's own word.

    Returns
    -------
    The plan, all trials, and the directory.
    """
    if jobs is not None and jobs < 0:
        raise BadSetting(f"jobs ({jobs}) must be at least 0")
    if trials is not None and trials < 1:
        raise BadSetting(f"trials ({trials}) must be at least 1")
    plan, text = read_sweep(file), file.read_bytes()
    begun = any((file.parent / name).exists() for name in OURS if name != file.name)
    stored = file.parent if begun else None  # its file is a sweep's own copy
    with names_from(stored, trust=trust):
        if storage is None and plan.storage is not None and not is_inside(plan.storage, file.parent):
            need_trust(f"to keep its trials in {without_password(plan.storage)}")
        if out is None and plan.out is not None and plan.out.resolve() != file.parent.resolve():
            need_trust(f"to work in {plan.out}")
    directory = out or plan.out or Path("runs") / plan.name
    # killed at any moment after the directory was made, it holds nothing but what is ours
    known = any((directory / name).exists() for name in OURS)
    if not known and directory.exists() and any(not _left_over(path) for path in directory.iterdir()):
        raise BadInput(f"{directory} is not empty and holds no sweep; give another out or name under [sweep]")
    refuse_links(directory, *(directory / name for name in (*OURS, *DATABASE)))
    remove_temporaries(directory, shared=True)
    console = console or Console(quiet=True)
    all_trials = Trials(plan, directory, storage or plan.storage, trials or plan.trials)
    try:
        write_atomically(directory / "sweep.toml", text)
        with WatchSweep(plan, all_trials.total, console) as watching:
            worker = Worker(plan, directory, all_trials, watching, trust=trust or stored is None)
            done = worker.one_by_one() if jobs == 0 else worker.at_once(jobs or cores())
        rows = all_trials.rows()
        write_results(plan, rows, directory)
    finally:
        all_trials.close()
    return (plan, rows, directory) if done else None


class Worker:
    """Claims trials and runs them, until there are none left."""

    def __init__(
        self, plan: SweepPlan, directory: Path, trials: Trials, watching: WatchSweep, *, trust: bool = False
    ) -> None:
        self.plan, self.directory, self.trials, self.watching = plan, directory, trials, watching
        self.trust = trust
        self.hand: list[Work] = []
        self._beat = time.monotonic()
        self._wait_until = 0.0

    # One run after the other.

    def one_by_one(self) -> bool:
        """Runs everything in this process; False when it was stopped."""
        try:
            while True:
                self.watching.update(self.trials.rows(), self.hand)
                work = self._claim()
                if work is None and not self._others():
                    return True
                if work is None:
                    self._pause()
                    continue
                for seed in work.waiting:
                    if run_cell(work.cells[seed].directory, trust=self.trust) == "stopped":
                        raise KeyboardInterrupt
                    if self._failed(work, seed):
                        break
                self._end(work)
        except KeyboardInterrupt:
            for work in self.hand:
                self.trials.release(work.number)
            return False

    # Many runs at a time.

    def at_once(self, jobs: int) -> bool:
        """Runs in processes of their own, so many at a time; False when it was stopped."""
        try:
            with terminated_like_interrupted():
                while self._step(jobs):
                    time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            self.watching.say("stopping: each run saves what it has; once more to stop at once")
            self._stop(self.hand)
            for work in self.hand:
                self.trials.release(work.number)
            return False
        except BaseException:  # the storage is gone, for example: what was computed must not be lost
            self._stop(self.hand)
            raise
        return True

    def _step(self, jobs: int) -> bool:
        """Looks after what runs and starts more; False when everything is done."""
        changed = False
        for work in list(self.hand):
            for seed, process in list(work.running.items()):
                if process.poll() is not None:
                    del work.running[seed]
                    self._ended(work, seed, process.returncode)
            if not work.running and not work.waiting:
                self._end(work)
                changed = True
        self._beat_if_due()
        free = jobs - sum(len(work.running) for work in self.hand)
        for work, seed in self._startable(free):
            work.waiting.remove(seed)
            work.running[seed] = start_cell(work.cells[seed], trust=self.trust)
            changed = True
        self.watching.update(self.trials.rows() if changed else None, self.hand)
        if self.hand:
            return True
        if self._others():
            self._pause()
            return True
        # what another worker gave back in this moment must not be left
        return any(row.state == "waiting" for row in self.trials.rows())

    def _startable(self, free: int) -> Iterator[tuple[Work, int]]:
        """The next runs to start, as many as there is room for; claims trials for them where need be."""
        for work in list(self.hand):
            for seed in self._ready(work):
                if free > 0:
                    free -= 1
                    yield work, seed
        # where all that is at hand waits for runs of another worker, there is no point in claiming more and more
        while free > 0 and len(self.hand) < 100 and time.monotonic() >= self._wait_until:
            new = self._claim()
            if new is None:
                self._wait_until = time.monotonic() + 1.0  # a storage far away is not asked all the time
                return
            for seed in self._ready(new):
                if free > 0:
                    free -= 1
                    yield new, seed

    def _ready(self, work: Work) -> Iterator[int]:
        """The seeds of a trial that can be started now; those that another trial has finished meanwhile are left out."""
        for seed in list(work.waiting):
            directory = work.cells[seed].directory
            busy = any(other.cells[s].directory == directory for other in self.hand for s in other.running)
            if busy or not _is_free(directory):  # two trials may have the same settings: the second waits for the first
                continue
            if read_result(directory)["state"] == "finished":
                work.waiting.remove(seed)
            else:
                yield seed

    def _ended(self, work: Work, seed: int, code: int) -> None:
        directory = work.cells[seed].directory
        if not _is_free(directory):  # another worker was faster
            work.waiting.append(seed)
            return
        settle(work.cells[seed], code)
        work.tries[seed] = work.tries.get(seed, 0) + 1
        if code < 0 and work.tries[seed] < TRIES and not work.why:
            work.waiting.append(seed)  # it goes on from its checkpoint
        elif self._failed(work, seed):
            work.waiting.clear()

    def _stop(self, some: list[Work]) -> None:
        """Asks runs to save what they have and to end, and waits for them."""
        processes = [process for work in some for process in work.running.values()]
        for process in processes:
            process.send_signal(signal.SIGTERM)
        try:
            for process in processes:
                process.wait()
        except KeyboardInterrupt:
            for process in processes:
                process.kill()

    # Trials.

    def _claim(self) -> Work | None:
        """A trial with its runs, those that are finished already left out; one that cannot be run fails at once."""
        while (claimed := self.trials.claim()) is not None:
            number, point = claimed
            try:
                made = {seed: self.plan.settings_of(point, seed) for seed in self.plan.seeds}
                folder = self.plan.folder(point)
            except BadSetting as error:
                self.trials.fail(number, str(error))
                continue
            cells = {
                seed: Cell(run.stream, run.learner, seed, self.directory / "trials" / folder / str(seed))
                for seed, (run, _) in made.items()
            }
            waiting = [seed for seed, cell in cells.items() if read_result(cell.directory)["state"] != "finished"]
            for seed in waiting:
                directory = cells[seed].directory
                refuse_links(self.directory, directory)
                make_directory(directory)
                with suppress(LockHeld), DirectoryLock(directory):
                    write_atomically(directory / "settings.toml", sealed_toml(write_settings(*made[seed])))
            work = Work(number, point, folder, cells, waiting)
            self.hand.append(work)
            return work
        return None

    def _failed(self, work: Work, seed: int) -> bool:
        result = read_result(work.cells[seed].directory)
        if result["state"] == "finished":
            return False
        what = result.get("why") or f"its run did not finish ({result['state']})"
        work.why = what if len(self.plan.seeds) == 1 else f"seed {seed}: {what}"
        return True

    def _end(self, work: Work) -> None:
        self.hand.remove(work)
        if work.why:
            self.trials.fail(work.number, work.why, work.folder)
            return
        results = {seed: _numbers(read_result(cell.directory)) for seed, cell in work.cells.items()}
        try:
            values = [mean_of(results, name) for name in self.plan.objectives]
        except BadInput as error:
            self.trials.fail(work.number, str(error), work.folder)
            return
        self.trials.finish(work.number, values, results, work.folder)

    def _beat_if_due(self) -> None:
        if time.monotonic() - self._beat < BEAT_SECONDS:
            return
        for work in list(self.hand):
            if not self.trials.beat(work.number):  # this machine slept, and another worker took it over
                self._stop([work])
                self.hand.remove(work)
        self.trials.take_up()
        self._beat = time.monotonic()

    def _others(self) -> bool:
        """Whether other workers are running trials, which this one would take over if they were killed."""
        return any(row.state == "running" for row in self.trials.rows())

    def _pause(self) -> None:
        time.sleep(0.5)
        self.trials.take_up()


def mean_of(results: dict[Any, dict[str, float | None]], name: str) -> float:
    """The mean of a number over the seeds; a loss that is infinite stays so."""
    values = [result.get(name) for result in results.values()]
    if name == "macs" and None in values:
        raise BadInput("the learner does not count its multiply-accumulates, so that macs cannot be an objective of it")
    return math.fsum(math.inf if value is None else value for value in values) / len(values)


def _numbers(result: dict[str, Any]) -> dict[str, Any]:
    return {name: result.get(name) for name in (*OBJECTIVES, "count")}


def _left_over(path: Path) -> bool:
    """Whether a file is what a process that was killed while it started may leave."""
    return path.name in DATABASE or is_temporary(path)


def _is_free(directory: Path) -> bool:
    """Whether no process works in this directory."""
    if not directory.is_dir():
        return True
    lock = DirectoryLock(directory)
    try:
        lock.take()
    except LockHeld:
        return False
    lock.free()
    return True
