"""Standardisation with statistics of the past only."""

from __future__ import annotations

from typing import Any

import numpy as np

LARGEST = 1e100  # larger values count as this, so that their squares are numbers


class Normaliser:
    """Brings each feature to mean 0 and deviation 1, by the statistics of what has been seen up to that example.

    x_t itself counts (it is known when y_t is predicted), which bounds the result from the very first example on:
    no value among the first n can be more than sqrt(n) deviations from their mean. A feature that has never varied
    gives 0, and so does a missing one (NaN), which is its mean.

    Parameters
    ----------
    width
        How many features.
    memory
        About how many of the latest examples the statistics are of, where `forget` is called; by default all of them.
    clip
        The largest result, in deviations; keeps one broken measurement from drowning everything.

    Examples
    --------
    >>> normaliser = Normaliser(1)
    >>> x = np.array([[10.0], [20.0], [30.0]])
    >>> normaliser.transform(x).ravel().tolist() == [0, 1, np.float32(1.5**0.5)]
    True
    >>> normaliser.update(x)
    >>> normaliser.apply(x).ravel().astype(int).tolist()
    [-1, 0, 1]
    """

    def __init__(self, width: int, *, memory: int | None = None, clip: float = 10.0) -> None:
        self.memory, self.clip = memory, clip
        self.count = np.zeros(width)  # measured values per feature
        self.mean = np.zeros(width)
        self.square = np.zeros(width)  # sum of squared distances from the mean

    def update(self, x: np.ndarray) -> None:
        """Takes the examples (n, width) into the statistics."""
        if not len(x):
            return
        count, mean, square = self._along(x)
        self.count, self.mean, self.square = count[-1].copy(), mean[-1].copy(), square[-1].copy()

    def forget(self) -> None:
        """Makes the examples so far weigh no more than `memory` of them.

        A step of its own, because when it is done must not depend on the sizes in which the examples come.
        """
        if self.memory is not None:
            kept = np.minimum(1.0, self.memory / np.maximum(self.count, 1))
            self.count, self.square = self.count * kept, self.square * kept

    def transform(self, x: np.ndarray) -> np.ndarray:
        """Consecutive new examples, each by everything before it and itself. Changes nothing."""
        return self._scale(x, *self._along(x))

    def each(self, x: np.ndarray) -> np.ndarray:
        """New examples, each as if it were the next one: by the past and itself, not by its neighbours. Changes nothing."""
        x64, measured = _measured(x)
        count = self.count + measured
        shift = np.where(self.count > 0, self.mean, x64)
        step = np.where(measured, x64 - shift, 0.0)
        mean = shift + step / np.maximum(count, 1)
        square = self.square + step * step - step * step / np.maximum(count, 1)
        return self._scale(x, count, mean, square)

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Examples of the past, all by the statistics as they are now. Changes nothing."""
        return self._scale(x, self.count, self.mean, self.square)

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "square": self.square}

    def load_state(self, state: dict[str, Any]) -> None:
        self.count, self.mean, self.square = (np.array(state[name]) for name in ("count", "mean", "square"))

    def _along(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The statistics after each of the rows, (n, width) each."""
        x64, measured = _measured(x)
        count = self.count + np.cumsum(measured, axis=0)
        # distances from the old mean (or the first value), not from 0: squares of large offsets would cancel badly
        first = np.take_along_axis(x64, measured.argmax(0)[None], axis=0)[0]
        shift = np.where(self.count > 0, self.mean, first)
        step = np.where(measured, x64 - shift, 0.0)
        total = np.cumsum(step, axis=0)
        n = np.maximum(count, 1)
        square = self.square + np.cumsum(step * step, axis=0) - total * total / n
        return count, shift + total / n, np.maximum(square, 0.0)

    def _scale(self, x: np.ndarray, count: np.ndarray, mean: np.ndarray, square: np.ndarray) -> np.ndarray:
        deviation = np.sqrt(square / np.maximum(count, 1))
        varies = deviation > 1e-9 * np.abs(mean)  # below that it is rounding, not variation
        scaled = (np.clip(x, -LARGEST, LARGEST, dtype=np.float64) - mean) / np.where(varies, deviation, 1.0)
        scaled = np.where(varies & ~np.isnan(scaled), scaled, 0.0)
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)


def _measured(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values in float64 with 0 where they are missing, and where they are not."""
    x64 = np.clip(x.astype(np.float64), -LARGEST, LARGEST)
    measured = ~np.isnan(x64)
    return np.where(measured, x64, 0.0), measured
