"""For learners that read their past again: where it is kept, and how it is saved with them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prequential.learners.base import OnlineLearner
from prequential.learners.memory import Memory, beside
from prequential.streams.stream import Stream


class Remembering(OnlineLearner):
    """A learner with a past it can read: that of the stream it follows, else a journal on disk.

    A subclass reads from `memory`. Examples are in it from before they are learnt. One whose settings leave nothing to
    read again sets `remembers` to False, and no journal is written.
    """

    remembers = True

    def __init__(self, classes: int | Sequence[Hashable], **settings: Any) -> None:
        super().__init__(classes, **settings)
        self.memory = Memory()

    def replay_from(self, stream: Stream | None) -> None:
        """Reads its past from this stream instead of keeping a copy; None: what comes next is kept in a journal."""
        self.memory.follow(stream)

    def save(self, path: str | Path) -> None:
        """Writes the learner to one file, atomically; examples it keeps itself are copied beside it."""
        self.memory.save(beside(path))
        super().save(path)

    def _load_beside(self, path: Path, state: dict[str, Any]) -> None:
        if state["memory"]["journal"]:
            self.memory.load(beside(path))

    def state(self) -> dict[str, Any]:
        return {**super().state(), "memory": self.memory.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.memory.load_state(state["memory"])

    def _commit(self, x: np.ndarray, ys: Sequence[Hashable]) -> np.ndarray:
        if self.remembers:
            self.memory.keep(x, ys)  # first: where it cannot, nothing has changed yet
        return super()._commit(x, ys)

    def _undo(self, known: int, shape: tuple[int, ...] | None) -> None:
        if self.remembers:
            self.memory.forget(self.position)
        super()._undo(known, shape)
