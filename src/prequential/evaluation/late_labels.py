"""Protocols in which labels come late: what is asked, what is learned, and what each prediction is charged."""

from __future__ import annotations

from typing import Any

import numpy as np

from prequential.errors import BadSetting
from prequential.learners.base import OnlineLearner
from prequential.learners.charges import Charges, charge
from prequential.streams.stream import Chunk, Stream


class LateLabels:
    """Asks a learner for rows of a stream and gives it their labels later, in the order of the rows.

    With `delay` N, the label of row t is given after the prediction of row t + N. With `batch` N, N rows are predicted,
    then their labels arrive together. Every row is charged for the prediction made when it was asked.

    The predictions whose labels are out are part of its state: a run that is resumed charges them.

    Parameters
    ----------
    delay
        How many rows are asked after a row before its label arrives. 0: labels come at once.
    batch
        How many labels arrive together.

    Examples
    --------
    >>> from prequential import ArrayStream, LastLabel
    >>> stream, learner = ArrayStream([[0.0], [0.0], [0.0]], ["a", "b", "b"]), LastLabel(2)
    >>> chunk, charges = LateLabels(delay=1).step(stream, learner, 0, 3, stop=3)
    >>> charges.predicted.tolist()  # nothing was known when the second row was asked, and "a" at the third
    [-1, -1, 0]
    """

    def __init__(self, *, delay: int = 0, batch: int = 1) -> None:
        if delay < 0:
            raise BadSetting(f"delay ({delay}) must be at least 0")
        if batch < 1:
            raise BadSetting(f"label_batches ({batch}) must be at least 1")
        if delay and batch > 1:
            raise BadSetting(f"delay ({delay}) and label_batches ({batch}) cannot both be given")
        self.delay, self.batch = delay, batch
        self._rows: Chunk | None = None  # asked, without a label yet
        self._log_p = np.empty((0, 0))  # what was predicted for them
        self._num_seen = np.empty(0, dtype=np.int64)  # how many labels had been seen then
        self._first: int | None = None  # how many labels the learner had when it was asked first

    def __bool__(self) -> bool:
        """Whether labels come late at all."""
        return self.delay > 0 or self.batch > 1

    def describe(self) -> str:
        """How late labels come, for a title; nothing where they come at once."""
        if self.batch > 1:
            return f", labels in batches of {self.batch:,}"
        return f", labels {self.delay:,} rows late" if self.delay else ""

    def next_stop(self, position: int, stride: int) -> int:
        """Up to where the labels after this position are best given in one step."""
        piece = self.batch if self.batch > 1 else stride
        return position + piece - position % piece

    def step(self, stream: Stream, learner: OnlineLearner, position: int, end: int, stop: int) -> tuple[Chunk, Charges]:
        """Gives the learner the labels of rows position..end-1 and asks it for what comes meanwhile, up to row `stop`.

        Returns these rows and what their predictions are charged.
        """
        if self._first is None:
            self._first = learner.position
        return (
            self._give_batch(stream, learner, position, end)
            if self.batch > 1
            else self._give_delayed(stream, learner, position, end, stop)
        )

    def _give_batch(self, stream: Stream, learner: OnlineLearner, position: int, end: int) -> tuple[Chunk, Charges]:
        chunk = stream.read(position, end)
        num_seen = np.full(len(chunk), learner.num_seen)
        log_p = learner.predict_log_proba_late(chunk.x)
        learner.learn_many(chunk.x, chunk.y, np.full(len(chunk), learner.position))
        return chunk, _charged(log_p, learner, chunk, num_seen)

    def _give_delayed(
        self, stream: Stream, learner: OnlineLearner, position: int, end: int, stop: int
    ) -> tuple[Chunk, Charges]:
        asked = position + (0 if self._rows is None else len(self._rows))
        if asked < min(position + self.delay, stop):  # at the start: the first rows are asked before any label arrives
            first = stream.read(asked, min(position + self.delay, stop))
            waiting_x = None if self._rows is None else self._rows.x
            log_p = learner.predict_log_proba_late(first.x, waiting_x, since=0 if waiting_x is None else len(waiting_x))
            self._keep(first, log_p, np.full(len(first), learner.num_seen))
            asked += len(first)
        assert self._rows is not None
        assert self._first is not None
        waiting, count = self._rows, end - position
        asked_at = np.maximum(self._first, learner.position + np.arange(count) - self.delay)
        num_new = min(count, stop - asked)
        if num_new > 0:
            new = stream.read(asked, asked + num_new)
            answered = [*waiting.y, *new.y][:num_new]
            since = len(waiting) if learner.position == self._first else 0  # all were asked before the first label
            log_p, num_seen = learner.observe_late(waiting.x, new.x, answered, asked_at[:num_new], since=since)
            self._keep(new, log_p, num_seen)
        rows = self._rows
        if num_new < count:  # the stream is over, the labels are not
            left = slice(max(num_new, 0), count)
            learner.learn_many(rows.x[left], rows.y[left], asked_at[left])
        chunk, self._rows = _part(rows, slice(count)), _part(rows, slice(count, None))
        charges = _charged(self._log_p[:count], learner, chunk, self._num_seen[:count])
        self._log_p, self._num_seen = self._log_p[count:], self._num_seen[count:]
        return chunk, charges

    def _keep(self, rows: Chunk, log_p: np.ndarray, num_seen: np.ndarray) -> None:
        """Remembers what was asked."""
        if self._rows is None or not len(self._rows):
            self._rows, self._log_p, self._num_seen = rows, log_p, num_seen
            return
        self._rows = Chunk(np.concatenate([self._rows.x, rows.x]), [*self._rows.y, *rows.y])
        grown = log_p.shape[1] - self._log_p.shape[1]  # class ids that did not exist when the older ones were asked
        self._log_p = np.concatenate([np.pad(self._log_p, ((0, 0), (0, grown)), constant_values=-np.inf), log_p])
        self._num_seen = np.concatenate([self._num_seen, num_seen])

    def state_dict(self) -> dict[str, Any]:
        """What was asked and is not charged yet; the rows themselves are read again."""
        return {"first": self._first, "log_p": self._log_p.copy(), "num_seen": self._num_seen.copy()}

    def load_state_dict(self, state: dict[str, Any], stream: Stream, position: int) -> None:
        """Goes on from a state at this position of the stream."""
        self._first = None if state["first"] is None else int(state["first"])
        self._log_p, self._num_seen = np.array(state["log_p"]), np.array(state["num_seen"])
        self._rows = stream.read(position, position + len(self._log_p)) if len(self._log_p) else None


def _charged(log_p: np.ndarray, learner: OnlineLearner, chunk: Chunk, num_seen: np.ndarray) -> Charges:
    """What predictions are charged whose labels have arrived."""
    class_ids = np.asarray([learner.labels.class_id(label) for label in chunk.y], dtype=np.int64)
    return charge(log_p, class_ids, num_seen, open_ended=learner.labels.open_ended)


def _part(chunk: Chunk, part: slice) -> Chunk:
    return Chunk(chunk.x[part], chunk.y[part])
