"""An alarm when a running average rises: the Page-Hinkley test (Page, 1954), in constant memory."""

from __future__ import annotations

from typing import Any

FEWEST = 50  # values before the first alarm


class PageHinkley:
    """Says when values are larger than they used to be.

    Parameters
    ----------
    tolerance
        A rise of the average that is no reason for an alarm.
    threshold
        How much the values must exceed the average and the tolerance, in sum.

    Examples
    --------
    >>> test = PageHinkley()
    >>> any(test.update(0.1) for _ in range(500))
    False
    >>> next(i for i in range(500) if test.update(1.0))
    30
    """

    def __init__(self, tolerance: float = 0.05, threshold: float = 25.0) -> None:
        self.tolerance, self.threshold = tolerance, threshold
        self._count, self._mean, self._sum, self._least = 0, 0.0, 0.0, 0.0

    def update(self, value: float) -> bool:
        """Takes a value; whether it raises an alarm, after which the test begins anew."""
        self._count += 1
        self._mean += (value - self._mean) / self._count
        self._sum += value - self._mean - self.tolerance
        self._least = min(self._least, self._sum)
        if self._count < FEWEST or self._sum - self._least <= self.threshold:
            return False
        self._count, self._mean, self._sum, self._least = 0, 0.0, 0.0, 0.0
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"count": self._count, "mean": self._mean, "sum": self._sum, "least": self._least}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._count, self._mean = int(state["count"]), float(state["mean"])
        self._sum, self._least = float(state["sum"]), float(state["least"])
