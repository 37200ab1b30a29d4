"""Running sums in a table of fixed size, whose resolution halves whenever it is full."""

from __future__ import annotations

from typing import Any

import numpy as np


class BinnedSums:
    """Sums in a table of fixed size. A row holds one index at first; when the table is full, neighbors are merged.

    Parameters
    ----------
    rows
        How many rows there are, an even number. An index past the last row makes neighboring rows merge.
    columns
        How many columns there are.

    Examples
    --------
    >>> sums = BinnedSums(rows=2)
    >>> sums.add(np.array([0, 1, 2]), np.zeros(3, int), np.array([1.0, 2.0, 4.0]), np.array([True, True, False]))
    >>> sums.group, sums.nats[:, 0]
    (2, array([3., 4.]))
    """

    def __init__(self, rows: int, columns: int = 1) -> None:
        self.group = 1  # how many indices share a row
        self.used = 0  # how many rows hold something
        self._sums = np.zeros((3, rows, columns))  # of examples, right answers and nats

    @property
    def count(self) -> np.ndarray:
        return self._sums[0, : self.used].astype(np.int64)

    @property
    def correct(self) -> np.ndarray:
        return self._sums[1, : self.used].astype(np.int64)

    @property
    def nats(self) -> np.ndarray:
        return self._sums[2, : self.used]

    def add(self, index: np.ndarray, column: np.ndarray, nats: np.ndarray, correct: np.ndarray) -> None:
        """Adds examples to their rows; the indices must not fall, neither here nor from call to call."""
        done = 0
        while done < len(index):
            # merge exactly when the first example beyond the table comes, never before: else the order of the additions
            # and with it their last bit would depend on the chunks
            stop = int(np.searchsorted(index, self._sums.shape[1] * self.group))
            if stop == done:
                self._merge_rows()
                continue
            row = index[done:stop] // self.group
            at = row * self._sums.shape[2] + column[done:stop]  # in the flat table: `add.at` is fastest there
            added = (np.ones(stop - done), correct[done:stop], nats[done:stop])
            for table, values in zip(self._sums.reshape(3, -1), added, strict=True):
                np.add.at(table, at, values)
            self.used = int(row[-1]) + 1
            done = stop

    def _merge_rows(self) -> None:
        half = self._sums.shape[1] // 2
        self._sums[:, :half] = self._sums[:, 0::2] + self._sums[:, 1::2]
        self._sums[:, half:] = 0
        self.group *= 2
        self.used = (self.used + 1) // 2

    def state_dict(self) -> dict[str, Any]:
        return {"group": self.group, "sums": self._sums[:, : self.used].copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.group, self.used = int(state["group"]), state["sums"].shape[1]
        self._sums[:, : self.used] = state["sums"]
        self._sums[:, self.used :] = 0
