"""Predicts the most frequent label of the last W."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from prequential.errors import BadSetting
from prequential.labels import num_seen_before, spread_unseen
from prequential.learners.base import OnlineLearner, check_seed
from prequential.storage.checkpoint import allow


class Majority(OnlineLearner):
    """Predicts the most frequent label of the last `window` examples, with probabilities from the smoothed counts.

    x is ignored. Of equally frequent labels the one seen first is predicted.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    window
        How many labels are counted.
    smoothing
        Pseudo-counts added to the counts, spread equally over the labels seen and one more, for all others; above 0,
        so that a label outside the window keeps a probability.
    missing
        Whether features may be NaN.
    seed
        Not used: nothing here is random. Taken so that all learners are built alike.

    Examples
    --------
    >>> learner = Majority(3, window=4)
    >>> charges = learner.observe([[0.0]] * 7, ["a", "b", "b", "b", "c", "b", "c"])
    >>> int(charges.correct.sum())
    2
    """

    stride = 1024
    small_state = True

    def __init__(
        self,
        classes: int | Sequence[Hashable] | None = None,
        *,
        window: int = 100,
        smoothing: float = 1.0,
        missing: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(classes, missing=missing)
        check_seed(seed)
        if window < 1:
            raise BadSetting(f"window ({window}) must be at least 1")
        if not smoothing > 0:
            raise BadSetting(
                f"smoothing ({smoothing}) must be above 0: otherwise an unseen label costs infinitely much"
            )
        self.window, self.smoothing, self.seed = window, smoothing, seed
        allow(8 * window, f"a window of {window}")
        self.recent = np.full(window, -1, dtype=np.int64)  # ring buffer of class ids; -1 is empty
        self.next = 0  # index of the next label
        self.counts = np.zeros(self.labels.capacity, dtype=np.int64)

    def macs_per_example(self) -> float:
        return 0.0

    def _log_proba(self, counts: np.ndarray, num_seen: np.ndarray) -> np.ndarray:
        """Log-probabilities (n, capacity) from counts (n, capacity), when so many labels had been seen (n,)."""
        K = np.minimum(num_seen + 1, self.labels.capacity)[:, None]  # the labels seen, and one for all others
        p = np.where(np.arange(counts.shape[1]) < K, counts + self.smoothing / K, 0.0)
        p = p / p.sum(-1, keepdims=True)
        return spread_unseen(np.log(np.where(p > 0, p, 1.0)), num_seen, self.labels.capacity)

    def _predict(self, x: np.ndarray) -> np.ndarray:
        return self._log_proba(self.counts[None], np.array([self.num_seen])).repeat(len(x), axis=0)

    def _grow(self, capacity: int) -> None:
        self.counts = np.pad(self.counts, (0, capacity - len(self.counts)))

    def _learn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        for class_id in class_ids.tolist():
            gone = self.recent[self.next]
            if gone >= 0:
                self.counts[gone] -= 1
            self.recent[self.next] = class_id
            self.counts[class_id] += 1
            self.next = (self.next + 1) % self.window

    def _observe(self, x: np.ndarray, class_ids: np.ndarray) -> np.ndarray:
        num_seen = num_seen_before(class_ids, self.num_seen)
        before = np.empty((len(class_ids), self.labels.capacity), dtype=np.int64)
        for i in range(len(class_ids)):
            before[i] = self.counts
            self._learn(x[i : i + 1], class_ids[i : i + 1])
        return self._log_proba(before, num_seen)

    def _state_dict(self) -> dict[str, Any]:
        return {"recent": self.recent.copy(), "next": self.next, "counts": self.counts.copy()}

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self.recent, self.next, self.counts = state["recent"].copy(), int(state["next"]), state["counts"].copy()
