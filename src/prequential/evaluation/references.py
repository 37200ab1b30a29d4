"""The two simplest predictors beside every result: the most frequent label so far, and the last one."""

from __future__ import annotations

from typing import Any

import numpy as np

from prequential.evaluation.binned_sums import BinnedSums

CURVE_ROWS = 2048  # points of their curves before neighbors are merged
NAMES = ("majority", "last_label")
WIDE = 1 << 31  # more than there are labels


class References:
    """How often the majority class and the last label were right, each predicted from labels that had arrived.

    Where labels come late, that is fewer of them: with `delay` N, row t is asked when the labels before row t - N are
    known; with `label_batches` N, when those of all earlier batches are.

    Parameters
    ----------
    delay, label_batches
        How late labels come, as in `evaluate`.

    Examples
    --------
    >>> references = References()
    >>> references.add(np.array([0, 1, 1, 1]))  # nothing is known before the first
    >>> references.accuracy("majority"), references.accuracy("last_label")
    (0.25, 0.5)
    """

    def __init__(self, delay: int = 0, label_batches: int = 1) -> None:
        self.delay, self.label_batches = delay, label_batches
        self.count = 0  # rows so far
        self.correct = np.zeros(len(NAMES), np.int64)
        self._curve = BinnedSums(CURVE_ROWS, len(NAMES))
        self._counts = np.zeros(0, np.int64)  # of each label among those that have arrived
        self._leader = -1  # the most frequent of them; of several, the one that was seen first
        self._last = -1
        self._waiting = np.zeros(0, np.int64)  # labels that have not arrived before the next row is asked

    def _arrived(self, row: np.ndarray) -> np.ndarray:
        """How many labels had arrived when each of these rows was asked."""
        if self.label_batches > 1:
            return np.asarray(row // self.label_batches * self.label_batches)
        return np.asarray(np.maximum(row - self.delay, 0))

    def add(self, ids: np.ndarray) -> None:
        """Adds the labels of the next rows, as numbers in the order in which labels were first seen."""
        if not len(ids):
            return
        labels = np.concatenate([self._waiting, ids])  # from the first one that has not arrived on
        first = self.count - len(self._waiting)
        if (grown := int(ids.max()) + 1 - len(self._counts)) > 0:
            self._counts = np.pad(self._counts, (0, grown))
        leaders = self._leaders(labels)
        lasts = np.concatenate([[self._last], labels])
        row = np.arange(self.count, self.count + len(ids))
        known = self._arrived(row) - first
        right = np.stack([leaders[known] == ids, lasts[known] == ids], axis=1)  # (n, 2)
        self.correct += right.sum(0)
        twice = np.repeat(row, len(NAMES))
        self._curve.add(twice, np.tile([0, 1], len(ids)), np.zeros(len(twice)), right.ravel())
        self.count += len(ids)
        arrived = int(self._arrived(np.array([self.count]))[0]) - first
        self._leader, self._last = int(leaders[arrived]), int(lasts[arrived])
        np.add.at(self._counts, labels[:arrived], 1)
        self._waiting = labels[arrived:]

    def _leaders(self, labels: np.ndarray) -> np.ndarray:
        """The most frequent label before these labels and after each of them."""
        order = np.argsort(labels, kind="stable")
        ordered = labels[order]
        times = np.empty(len(labels), np.int64)
        # how often each has come in these labels: its place among those that are the same
        times[order] = np.arange(len(labels)) - np.searchsorted(ordered, ordered) + 1
        times += self._counts[labels]
        # counts only grow, so the largest (count, earlier label) so far is that of the most frequent label now
        before = self._counts[self._leader] * WIDE + WIDE - 1 - self._leader if self._leader >= 0 else -1
        best = np.maximum.accumulate(np.concatenate([[before], times * WIDE + WIDE - 1 - labels]))
        return np.where(best < 0, -1, WIDE - 1 - best % WIDE)

    def accuracy(self, name: str) -> float:
        """The share of rows whose label it predicted: "majority" or "last_label"."""
        return float(self.correct[NAMES.index(name)]) / self.count if self.count else float("nan")

    def curve(self) -> dict[str, np.ndarray]:
        """The accuracy of both over all rows so far, at up to 2048 positions."""
        count = np.cumsum(self._curve.count[:, 0])
        correct = np.cumsum(self._curve.correct, axis=0)
        return {"position": count, **{name: correct[:, i] / count for i, name in enumerate(NAMES)}}

    def state_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "correct": self.correct.copy(),
            "curve": self._curve.state_dict(),
            "counts": self._counts.copy(),
            "leader": self._leader,
            "last": self._last,
            "waiting": self._waiting.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.correct = int(state["count"]), np.array(state["correct"])
        self._curve.load_state_dict(state["curve"])
        self._counts, self._waiting = np.array(state["counts"]), np.array(state["waiting"])
        self._leader, self._last = int(state["leader"]), int(state["last"])
