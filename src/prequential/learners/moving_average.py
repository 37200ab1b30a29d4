"""How far each feature is from its recent average: what a row alone does not tell about a stream."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from prequential.errors import BadCheckpoint
from prequential.native.experts import NativeExperts, as_float64

BOUND = 20.0  # a value moves the average as if it were at most so many average distances away from it
LARGEST = 1e100  # of values and of distances


class MovingAverage:
    """An exponential moving average of each feature, and how far values are from it on average.

    A single broken value hardly moves it: distances count up to `BOUND` times their average. After a real jump that
    average grows by half with every row, so that the average follows within a dozen rows. Missing values (NaN) change
    nothing. It is replaced, never changed in place.

    Parameters
    ----------
    width
        How many features there are.
    half_life
        The weight of a row halves with so many later ones.
    native
        What computes in the native core, where it does.

    Examples
    --------
    >>> average = MovingAverage(1, half_life=16)
    >>> rows, average = average.widen(np.array([[5.0], [5.0], [7.0]]))
    >>> rows.tolist()
    [[5.0, 0.0], [5.0, 0.0], [7.0, 2.0]]
    """

    def __init__(self, width: int, *, half_life: float, native: NativeExperts | None = None) -> None:
        self.width, self.rate = width, 1 - 0.5 ** (1 / half_life)
        self._native = native
        self._state = np.zeros((3, width))  # how many values came, their average, and the average distance from it

    def widen_each(self, x: np.ndarray) -> np.ndarray:
        """Float64 (n, 2 width): rows (n, width), each as the next one, and their differences from the average."""
        x = _within(x)
        count, mean, _ = self._state
        return np.concatenate([x, np.where(count > 0, x - mean, x * 0.0)], 1)

    def widen(self, x: np.ndarray) -> tuple[np.ndarray, Self]:
        """The same for consecutive rows, each by those before it; and the average after them."""
        x = as_float64(_within(x))
        after = object.__new__(type(self))
        after.__dict__.update(self.__dict__)
        after._state = state = self._state.copy()
        out = np.empty((len(x), 2 * self.width))
        if self._native is not None:
            self._native.widen(x, state, rate=self.rate, bound=BOUND, out=out)
            return out, after
        count, mean, distance = state
        for row, wide in zip(x, out, strict=True):
            measured = ~np.isnan(row)
            new = measured & (count == 0)
            mean[new] = row[new]
            difference = row - mean
            wide[: self.width], wide[self.width :] = row, difference
            count += measured
            rate = np.maximum(self.rate, 1 / np.maximum(count, 1))
            far = np.where(measured, np.abs(difference), 0.0)
            bound = BOUND * distance
            moved = np.minimum(far, bound)
            step = np.where(difference < 0, -moved, moved)
            mean += np.where(measured, rate * step, 0.0)
            distance += np.where(measured, rate * (np.where(distance > 0, moved, far) - distance), 0.0)
        return out, after

    def state_dict(self) -> dict[str, Any]:
        return dict(zip(("count", "mean", "distance"), self._state.copy(), strict=True))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        found = np.array([np.asarray(state[name], np.float64) for name in ("count", "mean", "distance")])
        if found.shape != (3, self.width):
            raise BadCheckpoint(f"a moving average has shape {found.shape[1:]}, expected {(self.width,)}")
        self._state = found


def _within(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return np.asarray(np.minimum(np.maximum(x, -LARGEST), LARGEST))
