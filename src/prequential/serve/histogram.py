"""Counts of values in fixed ranges: how Prometheus and the page see delays and latencies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

LATENCY = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # seconds
DELAY = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 7 * 86400.0, 30 * 86400.0)


class Histogram:
    """How many values lie below each bound, and their sum.

    >>> seen = Histogram((1.0, 10.0))
    >>> for value in (0.5, 0.7, 3.0, 100.0):
    ...     seen.add(value)
    >>> seen.counts, seen.sum, seen.quantile(0.5)
    ([2, 1, 1], 104.2, 1.0)
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def quantile(self, q: float) -> float | None:
        """The bound below which at least this share of the values lies; None where there are none or no such bound."""
        left = q * self.count
        if not left:
            return None
        for bound, count in zip(self.bounds, self.counts, strict=False):
            left -= count
            if left <= 0:
                return bound
        return None

    def to_dict(self) -> dict[str, Any]:
        return {"bounds": list(self.bounds), "counts": list(self.counts), "sum": self.sum}

    def load(self, state: dict[str, Any]) -> None:
        """Takes counts that were kept, if they are of the same ranges."""
        if tuple(state["bounds"]) == self.bounds:
            self.counts, self.sum = [int(count) for count in state["counts"]], float(state["sum"])
