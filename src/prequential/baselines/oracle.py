"""How often the label is among the last W labels: a property of the stream, and no predictor.

To be "right iff y_t is among the last W labels" one must know y_t, so the oracle cannot be a learner. It is a count,
made in one pass: an upper bound on the accuracy of any learner that only copies recent labels.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from prequential.errors import BadSetting
from prequential.labels import decode, encode
from prequential.streams.stream import Stream


class Oracle:
    """Counts, for several windows at once, how often a label was among the labels just before it.

    It keeps the last position of each label and drops labels older than the longest window: its memory is bounded by
    that window, however many different labels come.

    Parameters
    ----------
    windows
        The window lengths W.

    Examples
    --------
    >>> oracle = Oracle([1, 2])
    >>> oracle.observe(["a", "b", "a", "a", "b"]).T.astype(int)
    array([[0, 0, 0, 1, 0],
           [0, 0, 1, 1, 0]])
    >>> oracle.accuracy()
    {1: 0.2, 2: 0.4}
    """

    def __init__(self, windows: Sequence[int] = (1, 10, 100, 1000)) -> None:
        if not windows or min(windows) < 1:
            raise BadSetting(f"windows ({list(windows)}) must be numbers of at least 1")
        self.windows = [int(window) for window in windows]
        self.position = 0
        self.hits = np.zeros(len(self.windows), dtype=np.int64)
        self._last: dict[Hashable, int] = {}  # label -> where it was last seen, oldest first

    def observe(self, ys: Iterable[Hashable]) -> np.ndarray:
        """For each label (n) and window (len(windows)), whether the label was among the last labels; counts them."""
        ages = []
        longest = max(self.windows)
        for raw in ys:
            label = raw.item() if isinstance(raw, np.generic) else raw
            last = self._last.pop(label, None)
            ages.append(np.inf if last is None else self.position - last)
            self._last[label] = self.position  # popped and put back, so the dict stays in order of age
            self.position += 1
            if len(self._last) > 2 * longest:
                self._last = {k: t for k, t in self._last.items() if t >= self.position - longest}
        correct = np.asarray(ages)[:, None] <= np.asarray(self.windows)
        self.hits += correct.sum(0)
        return correct

    def accuracy(self) -> dict[int, float]:
        """The share of labels that were among the last W, for each window W."""
        return {
            window: float(hits) / max(self.position, 1) for window, hits in zip(self.windows, self.hits, strict=True)
        }

    def state_dict(self) -> dict[str, Any]:
        """Counts and recent labels."""
        return {
            "windows": self.windows,
            "position": self.position,
            "hits": self.hits.copy(),
            "labels": [encode(label) for label in self._last],
            "seen": list(self._last.values()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict()` returned."""
        self.windows, self.position = [int(window) for window in state["windows"]], int(state["position"])
        self.hits = state["hits"].copy()
        self._last = {decode(code): int(t) for code, t in zip(state["labels"], state["seen"], strict=True)}


def oracle_accuracy(
    stream: Stream, windows: Sequence[int] = (1, 10, 100, 1000), *, batch: int = 4096
) -> dict[int, float]:
    """The accuracy of the oracle on a stream, for each window; one pass.

    Examples
    --------
    >>> from prequential.streams.stream import Chunk, Stream
    >>> class Letters(Stream):
    ...     def __len__(self): return 6
    ...     def _read(self, start, stop): return Chunk(np.zeros((stop - start, 1)), "aabaab"[start:stop])
    ...     def fingerprint(self): return "letters"
    >>> oracle_accuracy(Letters(), [1, 3])
    {1: 0.3333333333333333, 3: 0.6666666666666666}
    """
    oracle = Oracle(windows)
    for start in range(0, len(stream), batch):
        oracle.observe(stream.read(start, start + batch).y)
    return oracle.accuracy()
