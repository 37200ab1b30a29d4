"""All or nothing: a call that learns does everything or, whatever is raised, nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from prequential.errors import BadInput
from prequential.learners.abstract import AbstractLearner, largest
from prequential.learners.asked import Event
from prequential.learners.gate import checked_lags
from prequential.learners.transaction import Uninterrupted

Made = TypeVar("Made")


class AtomicLearner(AbstractLearner):
    """A learner whose calls are atomic: after an error in one of them, its state is what it was before.

    `_take_in` checks what a user gives, and `_attempt` learns it. What it takes to undo a call is in `_before`: labels,
    shape and schema always; the whole state where that is small or much is learned at once (`_needs_snapshot`); else
    `_recover` restores it from disk, and where there is nothing on disk, the learner refuses all further calls.
    """

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the learner exclusively, after steps that run in a thread are finished."""
        with self._guard.changing():
            self._wait()
            with self._guard.inside():
                yield

    def _wait(self, count: int | None = None) -> None:
        """Waits until so many examples can be learned at once (None: until no step runs); others may predict."""

    def _take_in(
        self,
        xs: Any,
        ys: Sequence[Hashable],
        act: Callable[[np.ndarray, np.ndarray], Made],
        asked_at: Any = None,
        *,
        ids: Sequence[str] | None = None,
        origins: Sequence[str] | None = None,
        one: bool = False,
    ) -> Made:
        """Calls `act` with checked examples, which it learns; if anything is raised, nothing has changed.

        `one`: xs are what `_one` gives, and ys a list.
        """
        with self._guard.changing():
            self._check_can_learn()
            x, y = self._admitted(xs, ys, one=one)
            self._lags = None if asked_at is None else checked_lags(asked_at, len(x), self.position)
            self._ids, self._origins = ids, origins
            self._wait(len(x))

            def take() -> Made:
                self._make_ready(x)
                if self._rows.adopt():
                    self._keep_schema()
                class_ids = self._accept(x, y)
                self._begin_call(class_ids)
                self._changing = True
                made = act(x, class_ids)
                self.position += len(class_ids)
                self.num_seen = len(self.labels)
                return made

            return self._attempt(len(x), take)

    def _attempt(self, count: int, act: Callable[[], Made]) -> Made:
        """Calls what learns so many examples; if it raises after setting `_changing`, the learner is restored."""
        with self._guard.inside(), Uninterrupted() as self._guard.signals:
            before = self._before(count)
            self._changing = False
            try:
                return act()
            except BaseException as error:
                self._revert(before, error)
                raise
            finally:
                self._release_snapshot()

    def _before(self, count: int) -> dict[str, Any]:
        """What it takes to undo a call that learns so many examples."""
        snapshot = self._snapshot() if self.position == 0 or self._needs_snapshot(count) else None
        labels = {"known": len(self.labels), "capacity": self.labels.capacity}
        return {**labels, "shape": self.shape, "schema": self.schema, "snapshot": snapshot}

    def _needs_snapshot(self, count: int) -> bool:
        """Whether the state is copied before a call that learns so many examples, to undo it if it fails.

        By default where the copy costs little: a small state, or a call of more than one chunk.
        """
        return self.small_state or count > self.stride

    def _snapshot(self) -> Any:
        """What `_restore` needs to undo a call. Learners with large states may return less than all of it."""
        return self._state_dict()

    def _restore(self, snapshot: Any) -> None:
        self._load_state_dict(snapshot)

    def _release_snapshot(self) -> None:
        """The call is over: what was recorded to undo it is no longer needed."""

    def _revert(self, before: dict[str, Any], error: BaseException) -> None:
        """Restores everything; if that is impossible, the learner refuses all further calls."""
        self.labels.forget(before["known"])
        self.labels.capacity, self.num_seen = before["capacity"], before["known"]
        self.shape = before["shape"]
        self._rows.schema = before["schema"]
        try:
            if before["snapshot"] is not None:
                if self._changing or self.position == 0:
                    self._restore(before["snapshot"])
            elif self._changing:
                self._recover(error)
        except BaseException as second:
            self._mark_broken(error if isinstance(second, NotImplementedError) else second)
        self._changing = False

    def _recover(self, error: BaseException) -> None:
        """Restores the state from a save and the journal. By default there is none."""
        raise NotImplementedError

    def _mark_broken(self, error: BaseException) -> None:
        why = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        self._guard.broken = (
            f"this learner stopped inside a step ({why}), so that its state is inconsistent; load an earlier save"
        )

    def _keep_schema(self) -> None:
        """Keeps the schema that the first rows decide, before they are learned. By default in the state alone."""

    def _keep_events(self, events: list[Event]) -> None:
        """Writes down what it was asked, before it is remembered. By default nowhere."""

    def _accept(self, x: np.ndarray, ys: Sequence[Hashable]) -> np.ndarray:
        self.shape = x.shape[1:]
        return np.asarray(self.labels.assign(ys), dtype=np.int64)

    def _begin_call(self, class_ids: np.ndarray) -> None:
        """Before examples with these class ids are learned."""
        self._make_room(class_ids)

    def _make_room(self, class_ids: np.ndarray) -> None:
        """Grows, where after these class ids none would be free."""
        capacity = self.labels.capacity_for(largest(class_ids) + 1)
        if capacity > self.labels.capacity:
            self._grow(capacity)
            self.labels.capacity = capacity

    def _check_can_learn(self) -> None:
        if self._is_snapshot:
            raise BadInput(
                "this learner is a snapshot, which only predicts; learn with the one it was taken of and save that, or "
                "a copy.deepcopy of it"
            )
