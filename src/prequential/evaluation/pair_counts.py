"""How often pairs of numbers came, in memory that does not grow without bound."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

LIMIT = 65536  # pairs: exact for 256 × 256, or 64 × 1024
SHIFT = 32  # a pair is one number: the first part above so many bits, the second part below them


class PairCounts:
    """Counts pairs of numbers. When there are too many different ones, the rarer half is forgotten.

    What is left does not depend on how the pairs were cut into chunks.

    Parameters
    ----------
    limit
        How many different pairs are kept.

    Examples
    --------
    >>> counts = PairCounts()
    >>> counts.add(np.array([0, 0, 1]), np.array([2, 2, 0]))
    >>> counts.items()
    [((0, 2), 2), ((1, 0), 1)]
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._counts: dict[int, int] = {}

    def add(self, first: np.ndarray, second: np.ndarray) -> None:
        """Adds the pairs (first[i], second[i]); none of the numbers is below 0."""
        codes = (np.asarray(first, np.int64) << SHIFT) | np.asarray(second, np.int64)
        different, times = np.unique(codes, return_counts=True)
        pairs = list(zip(different.tolist(), times.tolist(), strict=True))
        if len(self._counts) + sum(code not in self._counts for code, _ in pairs) <= self.limit:
            self._add(pairs)
        else:
            self._add((code, 1) for code in codes.tolist())  # in their order: what is forgotten depends on it

    def _add(self, pairs: Iterable[tuple[int, int]]) -> None:
        counts = self._counts
        for code, times in pairs:
            if code not in counts and len(counts) >= self.limit:
                kept = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[: self.limit // 2]
                counts.clear()
                counts.update(kept)
            counts[code] = counts.get(code, 0) + times

    def halve_first(self) -> None:
        """The first number of each pair becomes half of it, rounded down; pairs that are then the same are joined."""
        before, self._counts = self._counts, {}
        for code, times in before.items():
            halved = (code >> SHIFT) // 2 << SHIFT | code & ((1 << SHIFT) - 1)
            self._counts[halved] = self._counts.get(halved, 0) + times

    def items(self) -> list[tuple[tuple[int, int], int]]:
        """All pairs and how often they came, in order."""
        mask = (1 << SHIFT) - 1
        return [((code >> SHIFT, code & mask), times) for code, times in sorted(self._counts.items())]

    def matrix(self, first: dict[int, int], second: dict[int, int], shape: tuple[int, int]) -> np.ndarray:
        """The counts in a table: `first` and `second` give the row and the column of a number; others are left out."""
        table = np.zeros(shape, np.int64)
        for (a, b), times in self.items():
            if a in first and b in second:
                table[first[a], second[b]] += times
        return table

    def state_dict(self) -> dict[str, Any]:
        codes = sorted(self._counts)
        return {
            "pairs": np.array(codes, np.int64),
            "counts": np.array([self._counts[code] for code in codes], np.int64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._counts = dict(zip(state["pairs"].tolist(), state["counts"].tolist(), strict=True))
