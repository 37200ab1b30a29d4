"""Predicts the previous label."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from prequential.labels import num_seen_before, spread_unseen
from prequential.learners.base import OnlineLearner, check_seed


class LastLabel(OnlineLearner):
    """Predicts that the last label is repeated, with a probability estimated from how often that happened so far.

    The probability of a repeat is (repeats + 1/2) / (steps + 1), and never so low that another label would be the
    prediction; the remaining mass is spread equally over the other labels seen, and as much as one of them gets over all
    that were not. x is ignored.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    missing
        Whether features may be NaN.
    seed
        Not used: nothing here is random. Taken so that all learners are built alike.

    Examples
    --------
    >>> learner = LastLabel(2)
    >>> charges = learner.observe([[0.0]] * 6, ["rain", "rain", "rain", "sun", "sun", "sun"])
    >>> int(charges.correct.sum())
    4
    """

    stride = 1024
    small_state = True

    def __init__(
        self, classes: int | Sequence[Hashable] | None = None, *, missing: bool = False, seed: int = 0
    ) -> None:
        super().__init__(classes, missing=missing)
        check_seed(seed)
        self.seed = seed
        self.last = -1  # class id of the last label, -1 before the first
        self.repeats = 0
        self.steps = 0  # pairs of consecutive labels

    def macs_per_example(self) -> float:
        return 0.0

    def _log_proba(self, last: np.ndarray, repeats: np.ndarray, steps: np.ndarray, num_seen: np.ndarray) -> np.ndarray:
        """Log-probabilities (n, capacity) for n states of the counters, when so many labels had been seen."""
        K = np.minimum(num_seen + 1, self.labels.capacity)  # (n,) the labels seen, and one for all others
        repeat = np.maximum((repeats + 0.5) / (steps + 1.0), 1.001 / K)
        repeat = np.where((last < 0) | (K == 1), 1 / K, repeat)
        other = np.where(K == 1, 1.0, (1 - repeat) / np.maximum(K - 1, 1))
        log_p = np.repeat(np.log(other)[:, None], self.labels.capacity, axis=1)
        log_p[np.arange(len(last)), np.maximum(last, 0)] = np.log(repeat)
        return spread_unseen(log_p, num_seen, self.labels.capacity)

    def _predict(self, x: np.ndarray) -> np.ndarray:
        numbers = (self.last, self.repeats, self.steps, self.num_seen)
        return self._log_proba(*(np.array([number]) for number in numbers)).repeat(len(x), axis=0)

    def _learn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        before = np.concatenate([[self.last], class_ids[:-1]])
        self.repeats += int((before == class_ids).sum())
        self.steps += int((before >= 0).sum())
        self.last = int(class_ids[-1])

    def _observe(self, x: np.ndarray, class_ids: np.ndarray) -> np.ndarray:
        last = np.concatenate([[self.last], class_ids[:-1]])
        repeats = self.repeats + np.concatenate([[0], np.cumsum(last == class_ids)[:-1]])
        steps = self.steps + np.concatenate([[0], np.cumsum(last >= 0)[:-1]])
        num_seen = num_seen_before(class_ids, self.num_seen)
        self._learn(x, class_ids)
        return self._log_proba(last, repeats, steps, num_seen)

    def _state_dict(self) -> dict[str, Any]:
        return {"last": self.last, "repeats": self.repeats, "steps": self.steps}

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self.last, self.repeats, self.steps = int(state["last"]), int(state["repeats"]), int(state["steps"])
