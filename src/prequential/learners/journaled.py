"""The base of learners that read their past again, from the stream they follow or from a journal on disk."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from prequential.learners.base import OnlineLearner
from prequential.learners.memory import Memory
from prequential.streams.stream import Stream


class JournaledLearner(OnlineLearner):
    """A learner that can read its past again: from the stream it follows, else from a journal on disk.

    A subclass reads from `memory`, which has the examples of a call before they are learned. One whose settings need no
    past sets `keeps_past` to False, and no journal is written.
    """

    keeps_past = True

    def __init__(self, classes: int | Sequence[Hashable] | None = None, **settings: Any) -> None:
        super().__init__(classes, **settings)
        self.memory = Memory()

    def replay_from(self, stream: Stream | None) -> None:
        """Reads its past from this stream instead of keeping a copy; None: what comes next is kept in a journal."""
        with self._guard.changing(), self._guard.inside(whole=False):
            self.memory.follow(stream)

    @contextmanager
    def _beside(self, path: Path) -> Iterator[dict[str, Any]]:
        with self.memory.saved_beside(path) as named:
            yield named

    def _load_beside(self, path: Path, saved: dict[str, Any]) -> None:
        if saved["state"]["memory"]["journal"]:
            self.memory.load(path, saved.get("journal"))

    def _whole_state(self) -> dict[str, Any]:
        return {**super()._whole_state(), "memory": self.memory.state_dict()}

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        self.memory.check_state(state["memory"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with self._guard.changing():
            super().load_state_dict(state)
            self.memory.load_state_dict(state["memory"])

    def _take_copy(self, other: Self, *, snapshot: bool) -> None:
        self.memory = other.memory.snapshot() if snapshot else other.memory.copy()
        super()._take_copy(other, snapshot=snapshot)

    def _accept(self, x: np.ndarray, ys: Sequence[Hashable]) -> np.ndarray:
        class_ids = super()._accept(x, ys)
        if self.keeps_past:
            self.memory.write(x, [self.labels[class_id] for class_id in class_ids])
            self.memory.advance(len(class_ids))
        return class_ids

    def _before(self, count: int) -> dict[str, Any]:
        return {**super()._before(count), "memory": self.memory.before()}

    def _revert(self, before: dict[str, Any], error: BaseException) -> None:
        self.memory.restore(before["memory"])
        super()._revert(before, error)
