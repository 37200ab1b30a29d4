"""The trials of a sweep in Optuna's storage, from which any number of processes and machines take them.

A trial belongs to the worker that claimed it. When that worker dies, the trial is failed, and a copy of it waits to
be claimed: its runs resume from their checkpoints. Where two workers do the same thing at the same moment, the lower
trial number wins and the other is marked as a duplicate and never run; all storages number trials without gaps.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from prequential.errors import BadInput, BadSetting
from prequential.storage.files import LockHeld, locked, make_directory, open_own
from prequential.storage.migrations import FORMAT
from prequential.storage.platforms import lock
from prequential.sweeps.plan import OBJECTIVES, Choice, Point, Range, SweepPlan
from prequential.sweeps.sampler import attempt_after, is_duplicate, make_sampler, originals
from prequential.sweeps.storage import REMEDY, open_storage, report_damage, with_retries
from prequential.sweeps.stored_names import name_now, stored_identity, stored_name

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

GRACE_SECONDS = 120.0  # a worker on another machine without a heartbeat for so long is dead
SEAL = "sha256"  # the user attribute with the checksum of a trial's results
VERSION = "format"  # the user attribute with the format number of a study
IDENTITY = "prequential"  # the user attribute with the settings that a study was made with


@dataclass(frozen=True)
class Row:
    """A trial as tables and pictures show it."""

    number: int
    state: str  # done, running, waiting, failed
    point: Point
    values: tuple[float, ...] = ()  # in the order of the objectives
    results: dict[str, dict[str, float | None]] = field(default_factory=dict)  # of each seed
    why: str = ""
    folder: str = ""


class Trials:
    """The trials of one study, as one worker sees them.

    Parameters
    ----------
    plan
        The sweep.
    directory
        Where this worker keeps its runs.
    url
        Optuna's storage: a database URL, `journal:PATH`, or None for SQLite in the directory.
    total
        The number of trials; None for all points of a grid.
    """

    def __init__(self, plan: SweepPlan, directory: Path, url: str | None = None, total: int | None = None) -> None:
        self.plan, self.directory = plan, directory
        self.points = plan.points()[:total] if plan.method == "grid" else []
        self.total = len(self.points) if plan.method == "grid" else int(total or plan.trials or 1)
        self.me = uuid4().hex[:16]
        self._url = url or f"sqlite:///{(directory / 'study.db').resolve()}"
        self._storage, guard = open_storage(self._url)
        self._guard_path = guard
        self._last_seen: dict[tuple[int, Any], float] = {}
        self._beats = 0
        self._mine: set[int] = set()  # the trials that this worker is running
        self._dead: set[str] = set()  # workers of this directory that were found to be dead
        with report_damage(self._url):
            with self._guard():
                self.study = with_retries(lambda: _open_study(plan, self._storage, self.total))
                self.version = _version(self.study)
                self._alive = self._hold(directory / "workers" / self.me)
                if plan.method == "grid":
                    self._add_points()
            self.reclaim(failed=True)

    def close(self) -> None:
        """Removes the file that marks this worker as alive."""
        (self.directory / "workers" / self.me).unlink(missing_ok=True)
        os.close(self._alive)
        with suppress(Exception):  # connections of a database that may be gone
            self._storage.remove_session()

    # Claiming.

    def claim(self) -> tuple[int, Point] | None:
        """A trial to run now: its number and its point; None when there is none."""
        claimed = with_retries(self._claim)
        if claimed is not None:
            self._mine.add(claimed[0])
        return claimed

    def _claim(self) -> tuple[int, Point] | None:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import Trial, TrialState

        with self._guard():
            # trials that were started before come first
            for waiting in sorted(self._all(TrialState.WAITING), key=lambda t: ("again" not in t.user_attrs, t.number)):
                with suppress(UpdateFinishedTrialError):
                    if self._storage.set_trial_state_values(waiting._trial_id, state=TrialState.RUNNING):
                        trial = Trial(self.study, waiting._trial_id)
                        if self._take_ownership(trial) and (point := self._suggest(trial)) is not None:
                            return trial.number, point
            while self.plan.method != "grid" and len(originals(self._all())) < self.total:
                trial = self.study.ask()
                if self._take_ownership(trial) and (point := self._suggest(trial)) is not None:
                    return trial.number, point
        return None

    def _take_ownership(self, trial: Trial) -> bool:
        """Marks a trial as this worker's, unless it is a duplicate of another."""
        trial.set_user_attr("owner", self.me)
        trials = self._all()
        this = next(t for t in trials if t.number == trial.number)
        key = _key(this)
        if key is not None:
            duplicate = any(t.number < this.number and _key(t) == key and not is_duplicate(t) for t in trials)
        else:
            duplicate = sum(t.number < this.number for t in originals(trials)) >= self.total
        if duplicate:
            trial.set_user_attr("spare", True)
            self.fail(trial.number, "duplicate: another worker made the same trial")
        return not duplicate

    def _suggest(self, trial: Trial) -> Point | None:
        """The point of a trial; None, and the trial fails, when the stored values cannot come from this sweep."""
        try:
            return self._suggest_point(trial)
        except BadInput as error:
            self.fail(trial.number, str(error))
            return None

    def _suggest_point(self, trial: Trial) -> Point:
        point: Point = {}
        for name in self.plan.order():
            if self.plan.matters(name, point):
                try:
                    stored = stored_name(name, self.version)
                    value = trial._suggest(stored, _distribution(self.plan.vary[name]))
                except ValueError as error:  # it was drawn from something else
                    raise BadInput(f"the stored trial has another {name} than [vary] allows: {error}") from None
                point[name] = _checked(name, self.plan.vary[name], value)
        return point

    # Ending.

    def finish(self, number: int, values: list[float], results: dict[int, dict[str, Any]], folder: str) -> bool:
        """Stores the results of a trial; False when another worker has taken it over."""
        return self._finish_trial(number, {"results": results, "folder": folder}, values)

    def fail(self, number: int, why: str, folder: str = "") -> bool:
        """Marks a trial as failed, with the reason."""
        return self._finish_trial(number, {"why": why[:1000], "folder": folder}, None)

    def _finish_trial(self, number: int, attrs: dict[str, Any], values: list[float] | None) -> bool:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        self._mine.discard(number)
        state = TrialState.FAIL if values is None else TrialState.COMPLETE

        def end() -> bool:
            trial = self._trial(number)
            if trial.state.is_finished():  # by another worker, or by this one just before the connection broke
                return trial.user_attrs.get("owner") == self.me and trial.state == state
            for name, value in {**attrs, SEAL: _seal(trial.params, values, {**trial.user_attrs, **attrs})}.items():
                self._storage.set_trial_user_attr(trial._trial_id, name, value)
            self.study.tell(number, values, state=state)
            return True

        try:
            return with_retries(end)
        except (UpdateFinishedTrialError, ValueError):
            return False

    def release(self, number: int) -> None:
        """Lets other workers resume a trial that this one has started."""
        from optuna.exceptions import UpdateFinishedTrialError

        self._mine.discard(number)
        with suppress(UpdateFinishedTrialError):
            with_retries(lambda: self._storage.set_trial_user_attr(self._trial(number)._trial_id, "owner", ""))

    # Dead workers.

    def heartbeat(self, number: int) -> bool:
        """Marks a trial as still running; False when another worker has taken it over."""
        from optuna.exceptions import UpdateFinishedTrialError

        self._beats += 1
        try:
            with_retries(lambda: self._storage.set_trial_user_attr(self._trial(number)._trial_id, "beat", self._beats))
        except UpdateFinishedTrialError:
            return False
        return True

    def reclaim(self, *, failed: bool = False) -> None:
        """Queues the trials of dead workers again, and with `failed` also those that failed."""
        with_retries(lambda: self._reclaim(failed))

    def _reclaim(self, failed: bool) -> None:
        import optuna
        from optuna.trial import TrialState

        with self._guard():
            for trial in self._all(TrialState.RUNNING):
                if self._is_abandoned(trial):
                    with suppress(optuna.exceptions.UpdateFinishedTrialError):
                        self._storage.set_trial_user_attr(trial._trial_id, "interrupted", True)
                        self._storage.set_trial_state_values(trial._trial_id, state=TrialState.FAIL)
            self._remove_worker_files()
            trials = self._all()
            again = {t.user_attrs.get("again") for t in trials}
            for trial in trials:
                if trial.state != TrialState.FAIL or is_duplicate(trial) or trial.number in again:
                    continue
                if failed or trial.user_attrs.get("interrupted"):
                    copy = optuna.create_trial(
                        state=TrialState.WAITING,
                        params=trial.params,
                        distributions=trial.distributions,
                        system_attrs=trial.system_attrs,
                        user_attrs={"again": trial.number},
                    )
                    self.study.add_trial(copy)

    def _is_abandoned(self, trial: FrozenTrial) -> bool:
        owner = trial.user_attrs.get("owner")
        if owner == self.me:
            return trial.number not in self._mine  # the connection broke while it was claimed
        if owner == "" or (owner is None and self._guard_path is not None):  # released, or killed while claiming
            return True
        if owner is not None and not re.fullmatch("[0-9a-f]{16}", str(owner)):  # never a path out of the folder
            return True
        if owner in self._dead:
            return True
        if owner is not None and (self.directory / "workers" / owner).exists():
            return self._is_dead(owner)
        # elsewhere: clocks may differ between machines, so only this one's is looked at
        seen = self._last_seen.setdefault((trial.number, trial.user_attrs.get("beat")), time.monotonic())
        return time.monotonic() - seen >= GRACE_SECONDS

    def _is_dead(self, worker: str) -> bool:
        with suppress(LockHeld):
            os.close(self._hold(self.directory / "workers" / worker))
            self._dead.add(worker)
            return True
        return False

    def _remove_worker_files(self) -> None:
        """Removes the files of dead workers, after all their trials were given up: without its file a worker counts as
        one of another machine, and is waited for."""
        for path in (self.directory / "workers").iterdir():
            known = path.name in self._dead
            # one that owns no trial may be about to take its lock, unless only one at a time begins
            if known or (self._guard_path is not None and path.name != self.me and self._is_dead(path.name)):
                path.unlink(missing_ok=True)

    # Looking.

    def rows(self) -> list[Row]:
        """All trials, each with its latest attempt."""
        with report_damage(self._url):
            return with_retries(lambda: rows_of(self.study, self.plan))

    def _all(self, *states: Any) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states or None)

    def _trial(self, number: int) -> FrozenTrial:
        return next(trial for trial in self._all() if trial.number == number)

    def _add_points(self) -> None:
        import optuna

        there = {_key(trial) for trial in self._all()}
        for point in self.points:
            domains = {stored_name(name, self.version): self.plan.vary[name] for name in point}
            point = {stored_name(name, self.version): value for name, value in point.items()}
            text = json.dumps(point, sort_keys=True)
            if text not in there:
                trial = optuna.create_trial(
                    state=optuna.trial.TrialState.WAITING,
                    params={name: _encoded(value) for name, value in point.items()},
                    distributions={name: _distribution(domain, point[name]) for name, domain in domains.items()},
                    user_attrs={"point": text},
                )
                self.study.add_trial(trial)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """SQLite cannot lock a row, so that only one worker at a time may claim."""
        if self._guard_path is None:
            yield
            return
        with locked(self._guard_path):
            yield

    @staticmethod
    def _hold(path: Path) -> int:
        """A handle that holds the lock on the file of a worker; closing it, or being killed, marks it as dead."""
        make_directory(path.parent)
        handle = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            lock(handle)
        except OSError:
            os.close(handle)
            raise LockHeld(f"the worker {path.name} is alive") from None
        return handle


# Attributes of trials.


def _key(trial: FrozenTrial) -> Any:
    """What must be unique among trials: the number of the failed trial that one repeats, or a point of a grid."""
    return trial.user_attrs.get("again", trial.user_attrs.get("point"))


def _seal(params: dict[str, Any], values: Sequence[float] | None, attrs: dict[str, Any]) -> str:
    """The checksum of a trial's results: databases have none of their own."""
    parts = [params, list(values or []), {name: attrs[name] for name in ("results", "why", "folder") if name in attrs}]
    plain = json.loads(json.dumps(parts))  # as it is read again: keys are texts
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def rows_of(study: Study, plan: SweepPlan | None = None) -> list[Row]:
    """The trials of a study, each with its latest attempt and under the number of its first."""
    from optuna.trial import TrialState

    states = {TrialState.COMPLETE: "done", TrialState.RUNNING: "running", TrialState.WAITING: "waiting"}
    trials = [trial for trial in study.get_trials(deepcopy=False) if not is_duplicate(trial)]
    later = {attempt_after(trial): trial for trial in reversed(trials) if attempt_after(trial) is not None}
    rows = []
    for first in originals(trials):
        last = first
        while last.number in later:
            last = later[last.number]
        state = states.get(last.state, "failed")
        params = {name_now(name): value for name, value in {**first.params, **last.params}.items()}
        if plan is not None:
            params = {n: _decoded(plan.vary[n], params[n]) for n in plan.order() if n in params}
        attrs = last.user_attrs
        ended = last.state.is_finished() and not attrs.get("interrupted")  # the seal is written before the values
        if ended and SEAL in attrs and attrs[SEAL] != _seal(last.params, last.values, attrs):
            raise BadInput(f"trial {last.number} of the study {study.study_name!r} is damaged; {REMEDY}")
        values = tuple(last.values) if state == "done" else ()
        why = attrs.get("why", "") if state == "failed" else ""
        rows.append(Row(first.number, state, params, values, attrs.get("results", {}), why, attrs.get("folder", "")))
    return rows


# Values and distributions.


def _encoded(value: Any) -> Any:
    """Storages keep numbers and words; lists are kept as texts."""
    return json.dumps(value) if isinstance(value, (list, tuple)) else value


def _decoded(domain: Choice | Range, value: Any) -> Any:
    if isinstance(domain, Choice):
        return next((choice for choice in domain.values if _encoded(choice) == value), value)
    return value


def _checked(name: str, domain: Choice | Range, value: Any) -> Any:
    """A value of a stored trial, which must be one that the sweep could have drawn itself."""
    found = _decoded(domain, value)
    if isinstance(domain, Choice):
        inside = any(type(choice) is type(found) and choice == found for choice in domain.values)
    else:
        inside = isinstance(found, (int, float)) and domain.low <= found <= domain.high
    if not inside:
        raise BadInput(f"the stored trial has {name} = {str(found)[:80]!r}, which is not among what [vary] allows")
    return found


def _distribution(domain: Choice | Range, *also: Any) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Choice):
        return CategoricalDistribution([_encoded(value) for value in domain.values])
    if domain.whole:
        return IntDistribution(int(domain.low), int(domain.high), log=domain.log, step=int(domain.step or 1))
    return FloatDistribution(domain.low, domain.high, log=domain.log, step=None if also else domain.step)


# Studies.


def _open_study(plan: SweepPlan, storage: BaseStorage, total: int) -> Study:
    import optuna

    study = optuna.create_study(
        storage=storage,
        study_name=plan.name,
        directions=["maximize" if OBJECTIVES[name] else "minimize" for name in plan.objectives],
        sampler=make_sampler(plan, total),
        load_if_exists=True,
    )
    kept = study.user_attrs.get(IDENTITY)
    if kept is None:
        study.set_user_attr(VERSION, FORMAT)
        study.set_user_attr(IDENTITY, plan.identity())
        return study
    now = stored_identity(plan.identity(), _version(study))
    for name in [*now, *kept]:
        if json.loads(json.dumps(now.get(name))) != kept.get(name):
            raise BadSetting(
                f"the study {plan.name!r} was made with {name} = {_say(kept.get(name))}, not {_say(now.get(name))}; "
                "give the sweep another name"
            )
    return study


def _version(study: Study) -> int:
    """The format of a study; the earlier ones did not say it."""
    version = study.user_attrs.get(VERSION, 2)
    if not isinstance(version, int) or not 2 <= version <= FORMAT:
        raise BadInput(f"the study {study.study_name!r} has format {version!r}, expected up to {FORMAT}")
    return version


def _say(value: Any) -> str:
    """A value of a sweep's file, as it was written there."""
    if isinstance(value, dict):
        value = value.get("values", {name: part for name, part in value.items() if part not in (None, False)})
    return "nothing" if value is None else json.dumps(value)
