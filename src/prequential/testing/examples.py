"""Examples and streams that the checks use."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from prequential.learners.base import OnlineLearner
from prequential.streams.stream import Chunk, Stream

FEATURES = 4
TOLERANCE = 2e-4  # between ways of computing the same thing; between equal computations there is none

Make = Callable[[int | Sequence[Hashable] | None], OnlineLearner]


def make_examples(n: int) -> tuple[np.ndarray, list[int]]:
    """n vectors with labels 0, 1, 2 that depend on them, the same every time."""
    random = np.random.default_rng(3)
    x = random.normal(size=(n, FEATURES)).astype(np.float32)
    y = np.digitize(x[:, 0] + 0.3 * random.normal(size=n), [-0.5, 0.5])
    return x, y.tolist()


class RecordedStream(Stream):
    """A stream in memory that records which reads went beyond its present."""

    classes = 3

    def __init__(self, x: np.ndarray, y: Sequence[Hashable]) -> None:
        self.x, self.y, self.present = x, y, len(y)
        self.violations: list[tuple[int, int]] = []  # the last example that was read, and the present at that time

    def __len__(self) -> int:
        return len(self.y)

    def _read(self, start: int, stop: int) -> Chunk:
        if stop > self.present:  # raising would not do: whoever reads may catch it, or be in another thread
            self.violations.append((stop - 1, self.present))
        return Chunk(self.x[start:stop], self.y[start:stop])

    def fingerprint(self) -> str:
        return "checks"
