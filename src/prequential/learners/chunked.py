"""Learning in chunks: the same chunks, however many examples a call brings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from prequential.labels import join_rows, num_seen_before
from prequential.learners.base import OnlineLearner

Ask = Callable[[slice], Callable[[], None]]


def chunk_slices(count: int, position: int, chunk: int) -> Iterator[slice]:
    """Splits `count` examples, the first of which has this position in the stream, at chunk borders.

    >>> [(part.start, part.stop) for part in chunk_slices(10, position=6, chunk=4)]
    [(0, 2), (2, 6), (6, 10)]
    """
    start = 0
    while start < count:
        stop = min(count, start + chunk - (position + start) % chunk)
        yield slice(start, stop)
        start = stop


class ChunkedLearner(OnlineLearner):
    """A learner that trains once on each chunk of `stride` examples.

    The *committed* state is the one after the last whole chunk. It depends on the examples alone, not on how they were
    split into calls. The examples that came after it are *pending*: they are kept until their chunk is full. The
    *current* state, from which the next example is predicted, is the committed one extended by the pending examples.

    A subclass sets `stride`, writes `_extend` and `_train_chunk`, and puts `_chunk_state()` into its state.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    missing
        Whether features may be NaN, meaning "not measured".
    """

    predicts_in_training = False  # whether `_train_chunk` returns the chunk's predictions: no `_extend` for whole ones

    def __init__(self, classes: int | Sequence[Hashable] | None = None, *, missing: bool = False) -> None:
        super().__init__(classes, missing=missing)
        self.num_committed = 0  # examples in finished chunks
        self._pending_x: list[np.ndarray] = []  # the unfinished chunk, as it came
        self._pending_ids: list[int] = []
        self._pending_lags: list[int] = []  # how late each label came, in labels that arrived in between

    @property
    def num_pending(self) -> int:
        """How many examples the unfinished chunk has."""
        return len(self._pending_ids)

    @property
    def room(self) -> int:
        """How many examples the unfinished chunk still takes; after a flush the next chunk is the rest of it."""
        return self.stride - (self.num_committed + self.num_pending) % self.stride

    @abstractmethod
    def _extend(self, x: np.ndarray, class_ids: np.ndarray, lags: np.ndarray | None) -> np.ndarray:
        """Extends the current state by examples; log-probabilities (n, capacity), each given those before it.

        `lags` (n,) is how many labels arrived between the prediction of each and its own label; None: none did.
        """

    @abstractmethod
    def _train_chunk(self, x: np.ndarray, class_ids: np.ndarray, lags: np.ndarray | None) -> np.ndarray | None:
        """Trains on a chunk, which commits it; its log-probabilities from before where `predicts_in_training`."""

    def _begin_part(self, count: int) -> None:
        """So many examples, which lie in one chunk, are learned next. By default there is nothing to do."""

    def _prepare_chunk(self, count: int) -> None:
        """Reads what training on the next chunk, of so many examples, needs. Must change nothing; may raise."""

    def flush(self) -> None:
        """Trains on the unfinished chunk now. The next chunk is the rest of it."""
        with self._guard.changing():
            if self._pending_ids:
                self._check_can_learn()
                self._wait()
                self._attempt(1, self._flush)

    def _flush(self) -> None:
        self._prepare_chunk(self.num_pending)
        self._changing = True
        self._commit_chunk()

    def _learn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        self._take_chunks(x, class_ids, report=False)

    def _observe(self, x: np.ndarray, class_ids: np.ndarray) -> np.ndarray:
        num_seen = num_seen_before(class_ids, self.num_seen)
        return join_rows(self._take_chunks(x, class_ids, report=True), num_seen, self.labels.capacity)

    def _begin_call(self, class_ids: np.ndarray) -> None:
        pass  # it grows before the chunk that needs it, so that all before are learned as if they had come alone

    def _take_chunks(
        self, x: np.ndarray, class_ids: np.ndarray, *, report: bool, ask: Ask | None = None
    ) -> list[np.ndarray]:
        """Learns examples chunk by chunk; with `report`, the log-probabilities of each part.

        `ask` is called before each part; what it gives is called when the part is in the current state, but before a
        chunk that is now complete is trained on.
        """
        self._changing = False  # `_take_part` says from when on there is something to undo
        reported = []
        for part in self._parts_of(len(class_ids)):
            lags = None if self._lags is None else self._lags[part]
            if self._ids is not None and lags is not None and not lags.any():
                lags = None  # as if it had come alone
            predict = None if ask is None else ask(part)
            reported.append(self._take_part(x[part], class_ids[part], lags, report, predict))
            if part.stop < len(class_ids) and len(class_ids) > self.stride:  # `_needs_snapshot`: it can be undone
                self._guard.signals.deliver()  # Ctrl-C gives a long call up between two chunks
        return reported

    def _parts_of(self, count: int) -> Iterator[slice]:
        """So many examples in the parts in which they are learned.

        Labels that come by id are learned one by one, so that it does not matter, to the bit, how many of them came in
        one call: a learner that learns its journal again does not know.
        """
        if self._ids is not None:
            return (slice(i, i + 1) for i in range(count))
        return chunk_slices(count, self.num_committed + self.num_pending, self.stride)

    def _take_part(
        self,
        x: np.ndarray,
        class_ids: np.ndarray,
        lags: np.ndarray | None,
        report: bool,
        predict: Callable[[], None] | None,
    ) -> np.ndarray:
        """Learns examples that lie in one chunk."""
        self._begin_part(len(class_ids))
        completes = len(class_ids) == self.room
        whole = completes and not self._pending_ids
        if completes:
            self._prepare_chunk(self.num_pending + len(class_ids))
        self._make_room(class_ids)
        self._changing = True
        log_p = None
        if predict is not None or not (self.predicts_in_training and completes and (whole or not report)):
            log_p = self._extend(x, class_ids, lags)
        if predict is not None:
            predict()
        self._pending_x.append(x.copy())  # it is kept beyond this call, and the array is the user's
        self._pending_ids += class_ids.tolist()
        self._pending_lags += [0] * len(class_ids) if lags is None else lags.tolist()
        if completes:
            trained = self._commit_chunk()
            log_p = trained if log_p is None else log_p
        self._count_labels(class_ids)
        return np.empty(0) if log_p is None else log_p

    def _commit_chunk(self) -> np.ndarray | None:
        """Trains on the pending examples; afterwards none are pending."""
        x = self._pending_x[0] if len(self._pending_x) == 1 else np.concatenate(self._pending_x)
        lags = np.asarray(self._pending_lags, dtype=np.int64) if any(self._pending_lags) else None
        log_p = self._train_chunk(x, np.asarray(self._pending_ids, dtype=np.int64), lags)
        self.num_committed += self.num_pending
        self._pending_x, self._pending_ids, self._pending_lags = [], [], []
        return log_p

    def _chunk_state(self) -> dict[str, Any]:
        """Where it is in its chunk."""
        return {
            "num_committed": self.num_committed,
            "pending_x": np.concatenate(self._pending_x) if self._pending_x else None,
            "pending_class_ids": list(self._pending_ids),
            "pending_lags": list(self._pending_lags),
        }

    def _load_chunk_state(self, state: dict[str, Any]) -> None:
        self.num_committed = int(state["num_committed"])
        self._pending_x = [] if state["pending_x"] is None else [state["pending_x"]]
        self._pending_ids = [int(class_id) for class_id in state["pending_class_ids"]]
        self._pending_lags = [int(lag) for lag in state.get("pending_lags", [0] * len(self._pending_ids))]
