"""A sweep: trials at many settings, each some ordinary runs, in as many processes as there are cores."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from prequential.errors import BadInput, BadSetting, PrequentialError
from prequential.runs.job import Job, read_result, run_job, write_job_settings
from prequential.runs.pool import (
    STOPPING,
    available_cores,
    record_exit,
    sigterm_as_interrupt,
    start_job,
    stop_processes,
)
from prequential.runs.run_settings import RunSettings, read_stored_settings
from prequential.settings import Settings
from prequential.storage.files import (
    DirectoryLock,
    LockHeld,
    is_temporary,
    make_directory,
    refuse_links,
    remove_temporaries,
    write_atomically,
)
from prequential.streams.spec import StreamSpec
from prequential.sweeps.plan import OBJECTIVES, Point, SweepPlan, read_sweep, sweep_file
from prequential.sweeps.running_trial import RunningTrial
from prequential.sweeps.storage import is_inside, without_password
from prequential.sweeps.study import Row, Trials
from prequential.sweeps.sweep_display import SweepDisplay
from prequential.sweeps.trial_tables import write_results
from prequential.trust import names_from, need_trust

POLL_SECONDS = 0.1
HEARTBEAT_SECONDS = 20.0  # how often a worker writes its heartbeat and looks for dead workers
OURS = ("sweep.toml", "study.db", "workers", "trials")  # any of them shows that a directory is a sweep's
DATABASE = ("study.db.lock", "study.db-journal", "study.db-wal", "study.db-shm")
TRIES = 3  # of a run whose process is killed, perhaps because memory ran out


def sweep(
    file: Path,
    *,
    trials: int | None = None,
    jobs: int | None = None,
    storage: str | None = None,
    out: Path | None = None,
    run: dict[str, Any] | None = None,
    console: Console | None = None,
    trust: bool = False,
) -> tuple[SweepPlan, list[Row], Path] | None:
    """Runs the trials that are missing, then writes tables and pictures; None when it was stopped.

    Parameters
    ----------
    file
        The TOML file that describes the sweep.
    trials
        The number of trials; wins over the file.
    jobs
        How many runs at a time, each in a process with one thread; by default as many as there are cores. 0 does them
        one after the other in this process.
    storage
        Where Optuna keeps the trials: a database URL or `journal:PATH`; by default SQLite in the sweep's directory.
    out
        The directory of the sweep; by default runs/NAME.
    run
        Settings of the runs that win over the file: {"label": "up"}.
    console
        Where to show progress.
    trust
        Whether a file that lies in the directory of a sweep, as its own copy does, may name a database elsewhere,
        another directory, or data to fetch. Any other file is trusted.

    Returns
    -------
    The plan, all trials, and the directory.
    """
    if jobs is not None and jobs < 0:
        raise BadSetting(f"jobs ({jobs}) must be at least 0")
    if trials is not None and trials < 1:
        raise BadSetting(f"trials ({trials}) must be at least 1")
    if run and "stream" in run:  # the copy of the file in the directory of the sweep has its path whole
        run = {**run, "stream": StreamSpec.parse(run["stream"]).absolute()}
    begun = any((file.parent / name).exists() for name in OURS if name != file.name)
    stored = file.parent if begun else None  # its file is a sweep's own copy
    with names_from(stored, trust=trust):
        plan, text = read_sweep(file, run), sweep_file(file, run)
        if storage is None and plan.storage is not None and not is_inside(plan.storage, file.parent):
            need_trust(f"to keep its trials in {without_password(plan.storage)}")
        if out is None and plan.out is not None and plan.out.resolve() != file.parent.resolve():
            need_trust(f"to work in {plan.out}")
    directory = out or plan.out or Path("runs") / plan.name
    # a sweep killed at any moment leaves nothing in its directory but these files
    known = any((directory / name).exists() for name in OURS)
    if not known and directory.exists() and any(not _left_over(path) for path in directory.iterdir()):
        raise BadInput(f"{directory} is not empty and holds no sweep; give another out or name under [sweep]")
    refuse_links(directory, *(directory / name for name in (*OURS, *DATABASE)))
    for place in (directory, *(directory / "trials").glob("*/*")):  # finished trials are not run again
        remove_temporaries(place, shared=True)
    console = console or Console(quiet=True)
    all_trials = Trials(plan, directory, storage or plan.storage, trials or plan.trials)
    try:
        write_atomically(directory / "sweep.toml", text)
        with SweepDisplay(plan, all_trials.total, console) as display:
            worker = Worker(plan, directory, all_trials, display, trust=trust or stored is None)
            done = worker.run_sequentially() if jobs == 0 else worker.run_parallel(jobs or available_cores())
        rows = all_trials.rows()
        write_results(plan, rows, directory)
    finally:
        all_trials.close()
    return (plan, rows, directory) if done else None


class Worker:
    """Claims trials and runs them, until there are none left."""

    def __init__(
        self, plan: SweepPlan, directory: Path, trials: Trials, display: SweepDisplay, *, trust: bool = False
    ) -> None:
        self.plan, self.directory, self.trials, self.display = plan, directory, trials, display
        self.trust = trust
        self._how = _reading_of_trials(directory)
        self.active: list[RunningTrial] = []
        self._last_heartbeat = time.monotonic()
        self._wait_until = 0.0

    # One run after the other.

    def run_sequentially(self) -> bool:
        """Runs everything in this process; False when it was stopped."""
        try:
            while True:
                self.display.update(self.trials.rows(), self.active)
                trial = self._claim()
                if trial is None and not self._others_running():
                    return True
                if trial is None:
                    self._pause()
                    continue
                for seed in trial.waiting:
                    if run_job(trial.jobs[seed].directory, trust=self.trust) == "stopped":
                        raise KeyboardInterrupt
                    if self._failed(trial, seed):
                        break
                self._finish_trial(trial)
        except KeyboardInterrupt:
            for trial in self.active:
                self.trials.release(trial.number)
            return False

    # Many runs at a time.

    def run_parallel(self, jobs: int) -> bool:
        """Runs in processes of their own, so many at a time; False when it was stopped."""
        try:
            with sigterm_as_interrupt():
                while self._step(jobs):
                    time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            self.display.print(STOPPING)
            self._stop(self.active)
            for trial in self.active:
                self.trials.release(trial.number)
            return False
        except BaseException:  # the storage is gone, for example: what was computed must not be lost
            self._stop(self.active)
            raise
        return True

    def _step(self, jobs: int) -> bool:
        """Collects processes that exited and starts more; False when everything is done."""
        changed = False
        for trial in list(self.active):
            for seed, process in list(trial.running.items()):
                if process.poll() is not None:
                    del trial.running[seed]
                    self._process_exited(trial, seed, process.returncode)
            if not trial.running and not trial.waiting:
                self._finish_trial(trial)
                changed = True
        self._heartbeat()
        free = jobs - sum(len(trial.running) for trial in self.active)
        for trial, seed in self._startable(free):
            trial.waiting.remove(seed)
            trial.running[seed] = start_job(trial.jobs[seed], trust=self.trust)
            changed = True
        self.display.update(self.trials.rows() if changed else None, self.active)
        if self.active:
            return True
        if self._others_running():
            self._pause()
            return True
        # another worker may have released a trial just now
        return any(row.state == "waiting" for row in self.trials.rows())

    def _startable(self, free: int) -> Iterator[tuple[RunningTrial, int]]:
        """The next jobs to start, at most `free`; claims trials for them where necessary."""
        for trial in list(self.active):
            for seed in self._ready(trial):
                if free > 0:
                    free -= 1
                    yield trial, seed
        # when all active trials wait for jobs of another worker, claiming more does not help
        while free > 0 and len(self.active) < 100 and time.monotonic() >= self._wait_until:
            new = self._claim()
            if new is None:
                self._wait_until = time.monotonic() + 1.0  # a remote storage is not asked all the time
                return
            for seed in self._ready(new):
                if free > 0:
                    free -= 1
                    yield new, seed

    def _ready(self, trial: RunningTrial) -> Iterator[int]:
        """The seeds of a trial that can be started now, without those that another trial has finished meanwhile."""
        for seed in list(trial.waiting):
            directory = trial.jobs[seed].directory
            busy = any(other.jobs[s].directory == directory for other in self.active for s in other.running)
            if busy or not _is_free(directory):  # two trials may have the same settings: the second waits for the first
                continue
            if read_result(directory)["state"] == "finished":
                trial.waiting.remove(seed)
            else:
                yield seed

    def _process_exited(self, trial: RunningTrial, seed: int, code: int) -> None:
        directory = trial.jobs[seed].directory
        if not _is_free(directory):  # another worker was faster
            trial.waiting.append(seed)
            return
        record_exit(trial.jobs[seed], code)
        trial.tries[seed] = trial.tries.get(seed, 0) + 1
        if code < 0 and trial.tries[seed] < TRIES and not trial.why:
            trial.waiting.append(seed)  # it resumes from its checkpoint
        elif self._failed(trial, seed):
            trial.waiting.clear()

    def _stop(self, some: list[RunningTrial]) -> None:
        stop_processes(process for trial in some for process in trial.running.values())

    # Trials.

    def _claim(self) -> RunningTrial | None:
        """A trial with its runs, those that are finished already left out; one that cannot be run fails at once."""
        while (claimed := self.trials.claim()) is not None:
            number, point = claimed
            try:
                made = {seed: self._settings_of(point, seed) for seed in self.plan.seeds}
                folder = self.plan.folder(point, self.trials.version)
            except BadSetting as error:
                self.trials.fail(number, str(error))
                continue
            all_jobs = {
                seed: Job(run.stream, run.learner, seed, self.directory / "trials" / folder / str(seed))
                for seed, (run, _) in made.items()
            }
            waiting = [seed for seed, job in all_jobs.items() if read_result(job.directory)["state"] != "finished"]
            for seed in waiting:
                directory = all_jobs[seed].directory
                refuse_links(self.directory, directory)
                make_directory(directory)
                with suppress(LockHeld), DirectoryLock(directory):
                    write_job_settings(all_jobs[seed], *made[seed])
            trial = RunningTrial(number, point, folder, all_jobs, waiting)
            self.active.append(trial)
            return trial
        return None

    def _settings_of(self, point: Point, seed: int) -> tuple[RunSettings, Settings]:
        """The settings of a run; how columns are read stays as it is in the trials that are there."""
        run, learner = self.plan.settings_of(point, seed, self.trials.version)
        return (run if "reading" in point else replace(run, **self._how)), learner

    def _failed(self, trial: RunningTrial, seed: int) -> bool:
        result = read_result(trial.jobs[seed].directory)
        if result["state"] == "finished":
            return False
        what = result.get("why") or f"its run did not finish ({result['state']})"
        trial.why = what if len(self.plan.seeds) == 1 else f"seed {seed}: {what}"
        return True

    def _finish_trial(self, trial: RunningTrial) -> None:
        self.active.remove(trial)
        if trial.why:
            self.trials.fail(trial.number, trial.why, trial.folder)
            return
        results = {seed: _numbers(read_result(job.directory)) for seed, job in trial.jobs.items()}
        try:
            values = [mean_of(results, name) for name in self.plan.objectives]
        except BadInput as error:
            self.trials.fail(trial.number, str(error), trial.folder)
            return
        self.trials.finish(trial.number, values, results, trial.folder)

    def _heartbeat(self) -> None:
        if time.monotonic() - self._last_heartbeat < HEARTBEAT_SECONDS:
            return
        for trial in list(self.active):
            if not self.trials.heartbeat(trial.number):  # this machine slept, and another worker took it over
                self._stop([trial])
                self.active.remove(trial)
        self.trials.reclaim()
        self._last_heartbeat = time.monotonic()

    def _others_running(self) -> bool:
        """Whether other workers are running trials, which this one would take over if they were killed."""
        return any(row.state == "running" for row in self.trials.rows())

    def _pause(self) -> None:
        time.sleep(0.5)
        self.trials.reclaim()


def mean_of(results: dict[Any, dict[str, float | None]], name: str) -> float:
    """The mean of a number over the seeds; a loss that is infinite stays so."""
    values = [result.get(name) for result in results.values()]
    if name == "macs" and None in values:
        raise BadInput("the learner does not count its multiply-accumulates, so that macs cannot be an objective of it")
    return math.fsum(math.inf if value is None else value for value in values) / len(values)


def _reading_of_trials(directory: Path) -> dict[str, Any]:
    """How the trials of a sweep read the columns of tables; nothing where there are none yet."""
    for path in (directory / "trials").glob("*/*/settings.toml"):
        with suppress(PrequentialError):
            return {"reading": read_stored_settings(path)[0]["reading"]}
    return {}


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
