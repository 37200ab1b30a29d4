"""Standardisation with statistics of the past only."""

from __future__ import annotations

from typing import Any

import numpy as np

from prequential.checkpoint import allow

LARGEST = 1e100  # larger values count as this, so that their squares are numbers

# counts of values, their means and their sums of squared distances from these: (n, width) each, or (width,)
Statistics = tuple[np.ndarray, np.ndarray, np.ndarray]


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
        Features can each have their own; infinity is all of them.
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

    def __init__(self, width: int, *, memory: float | np.ndarray | None = None, clip: float = 10.0) -> None:
        self.memory, self.clip = memory, clip
        allow(24 * width, f"the statistics of {width} features")
        self.count = np.zeros(width)  # measured values per feature
        self.mean = np.zeros(width)
        self.square = np.zeros(width)  # sum of squared distances from the mean

    def update(self, x: np.ndarray) -> None:
        """Takes the examples (n, width) into the statistics."""
        if len(x):
            self.take(self._along(*_measured(x)))

    def take(self, after: Statistics) -> None:
        """Goes on with the last of these statistics."""
        self.count, self.mean, self.square = (part[-1].copy() for part in after)

    def forget(self) -> None:
        """Makes the examples so far weigh no more than `memory` of them.

        A step of its own, because when it is done must not depend on the sizes in which the examples come.
        """
        if self.memory is not None:
            kept = np.minimum(1.0, self.memory / np.maximum(self.count, 1))
            self.count, self.square = self.count * kept, self.square * kept

    def transform(self, x: np.ndarray) -> np.ndarray:
        """Consecutive new examples, each by everything before it and itself. Changes nothing."""
        return self.along(x)[0]

    def along(self, x: np.ndarray) -> tuple[np.ndarray, Statistics]:
        """The same, and the statistics after each of them."""
        x64, measured = _measured(x)
        after = self._along(x64, measured)
        return self._scale(x64, measured, after), after

    def each(self, x: np.ndarray) -> np.ndarray:
        """New examples, each as if it were the next one: by the past and itself, not by its neighbours. Changes nothing."""
        return self.following(x)[0]

    def following(self, x: np.ndarray) -> tuple[np.ndarray, Statistics]:
        """The same, and the statistics of which each would be the last. One is as `transform` and `update` have it."""
        x64, measured = _measured(x)
        after = self._after(x64, measured)
        return self._scale(x64, measured, after), after

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Examples of the past, all by the statistics as they are now. Changes nothing."""
        return self._scale(*_measured(x), (self.count, self.mean, self.square))

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "square": self.square}

    def load_state(self, state: dict[str, Any]) -> None:
        self.count, self.mean, self.square = (np.array(state[name]) for name in ("count", "mean", "square"))

    def _along(self, x64: np.ndarray, measured: np.ndarray) -> Statistics:
        """The statistics after each of the rows."""
        if len(x64) == 1:
            return self._after(x64, measured)
        # distances from the old mean (or the first value), not from 0: squares of large offsets would cancel badly
        first = np.take_along_axis(x64, measured.argmax(0)[None], axis=0)[0]
        shift = np.where(self.count > 0, self.mean, first)
        step = np.where(measured, x64 - shift, 0.0)
        more = np.cumsum(measured, 0) if not measured.all() else np.arange(1, len(x64) + 1)[:, None]
        return self._moved(more, shift, np.cumsum(step, 0), np.cumsum(step * step, 0))

    def _after(self, x64: np.ndarray, measured: np.ndarray) -> Statistics:
        """The statistics after each of the rows alone."""
        shift = np.where(self.count > 0, self.mean, x64)
        step = np.where(measured, x64 - shift, 0.0)
        return self._moved(measured, shift, step, step * step)

    def _moved(self, more: np.ndarray, shift: np.ndarray, total: np.ndarray, squares: np.ndarray) -> Statistics:
        """The statistics with so many more values, whose distances from `shift` and their squares have these sums."""
        count = self.count + more
        n = np.maximum(count, 1)
        square = self.square + squares - total * total / n
        return count, shift + total / n, np.maximum(square, 0.0)

    def _scale(self, x64: np.ndarray, measured: np.ndarray, by: Statistics) -> np.ndarray:
        count, mean, square = by
        deviation = np.sqrt(square / np.maximum(count, 1))
        varies = deviation > 1e-9 * np.abs(mean)  # below that it is rounding, not variation
        scaled = (x64 - mean) / np.where(varies, deviation, 1.0)
        return _within(np.where(varies & measured, scaled, 0.0), self.clip).astype(np.float32)


def _measured(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values in float64 with 0 where they are missing, and where they are not."""
    x64 = _within(x.astype(np.float64), LARGEST)
    measured = ~np.isnan(x64)
    return np.where(measured, x64, 0.0), measured


def _within(x: np.ndarray, limit: float) -> np.ndarray:
    # np.clip takes several times as long for one example
    return np.asarray(np.minimum(np.maximum(x, -limit), limit))
