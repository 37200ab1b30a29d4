"""How long predictions took, over the life of the web process, in bounded memory."""

from __future__ import annotations

from typing import Any

from prequential.serve.clock import STEADY
from prequential.serve.histogram import LATENCY, Histogram

MOST_POINTS = 64


class LatencyCurve(Histogram):
    """A histogram of seconds that also keeps their mean and maximum over time.

    When there are too many points, each two become one.

    >>> curve = LatencyCurve()
    >>> for seconds in (0.002, 0.004):
    ...     curve.add(seconds)
    >>> curve.curve()["mean"], curve.curve()["slowest"]
    ([0.003], [0.004])
    """

    def __init__(self) -> None:
        super().__init__(LATENCY)
        self._width = 8  # values in a point
        self._points: list[list[float]] = []  # number of values so far, when, how many in this point, sum, maximum
        self._total = 0

    def add(self, value: float) -> None:
        super().add(value)
        self._total += 1
        points = self._points
        if not points or points[-1][2] >= self._width:
            if len(points) >= MOST_POINTS:
                self._width *= 2
                pairs = zip(points[::2], points[1::2], strict=True)
                points[:] = [[b[0], b[1], a[2] + b[2], a[3] + b[3], max(a[4], b[4])] for a, b in pairs]
            points.append([0.0, 0.0, 0.0, 0.0, 0.0])
        last = points[-1]
        last[0], last[1] = self._total, STEADY.now()
        last[2] += 1
        last[3] += value
        last[4] = max(last[4], value)

    def curve(self) -> dict[str, Any]:
        """One entry for each point: how many predictions there had been, when, the mean and the maximum."""
        return {
            "count": [int(point[0]) for point in self._points],
            "time": [point[1] for point in self._points],
            "mean": [point[3] / point[2] for point in self._points],
            "slowest": [point[4] for point in self._points],
        }
