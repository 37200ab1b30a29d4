"""Predicts the most frequent label of the last W."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from prequential.errors import BadSetting
from prequential.learners.base import OnlineLearner, check_seed
from prequential.storage.checkpoint import allow


class Majority(OnlineLearner):
    """Predicts the most frequent label of the last `window` examples, with probabilities from the smoothed counts.

    x is ignored. Of equally frequent labels the one seen first is predicted.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves.
    window
        How many labels are counted.
    smoothing
        Pseudo-counts added to the counts, spread equally over all classes; above 0, so that a label outside the
        window keeps a probability.
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
        classes: int | Sequence[Hashable],
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

    def _log_proba(self, counts: np.ndarray) -> np.ndarray:
        p = counts + self.smoothing / self.labels.capacity
        log_p: np.ndarray = np.log(p / p.sum(-1, keepdims=True))
        return log_p

    def _predict(self, x: np.ndarray) -> np.ndarray:
        return self._log_proba(self.counts[None]).repeat(len(x), axis=0)

    def _learn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        for class_id in class_ids.tolist():
            gone = self.recent[self.next]
            if gone >= 0:
                self.counts[gone] -= 1
            self.recent[self.next] = class_id
            self.counts[class_id] += 1
            self.next = (self.next + 1) % self.window

    def _observe(self, x: np.ndarray, class_ids: np.ndarray) -> np.ndarray:
        before = np.empty((len(class_ids), self.labels.capacity), dtype=np.int64)
        for i in range(len(class_ids)):
            before[i] = self.counts
            self._learn(x[i : i + 1], class_ids[i : i + 1])
        return self._log_proba(before)

    def _state_dict(self) -> dict[str, Any]:
        return {"recent": self.recent.copy(), "next": self.next, "counts": self.counts.copy()}

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self.recent, self.next, self.counts = state["recent"].copy(), int(state["next"]), state["counts"].copy()
