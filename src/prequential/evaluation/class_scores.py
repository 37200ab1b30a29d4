"""Scores of each class, which classes are taken for which, and how common each label is over time.

Memory grows with the number of classes, not with the stream: a few counters for each class, and the most frequent pairs
of a label and what was predicted for it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from prequential.evaluation.pair_counts import PairCounts

if TYPE_CHECKING:
    import pyarrow as pa

TIME_ROWS = 64  # periods whose label shares are kept apart, an even number; when full, neighbors are merged
FEWEST = 50  # examples in a period whose label shares are shown
TOP = 12  # classes that are shown where there is room for a few only
OTHER = "(other)"


class ClassScores:
    """Counters of every class: how often it came, was predicted, and was predicted rightly.

    Labels are told apart by their text, as in the records of a run.

    Examples
    --------
    >>> scores = ClassScores()
    >>> _ = scores.update(["cat", "cat", "dog", "dog"], np.array([-1, 0, 0, 1]), ["cat", "dog"])
    >>> scores.table()["recall"], scores.table()["precision"]
    (array([0.5, 0.5]), array([0.5, 1. ]))
    >>> scores.balanced_accuracy
    0.5
    >>> scores.confusion()["count"]  # rows: the label; columns: the prediction
    array([[1, 0],
           [1, 1]])
    """

    def __init__(self) -> None:
        self.count = 0
        self._numbers: dict[str, int] = {}  # of each text, in the order in which they came
        self._sums = np.zeros((3, 0), np.int64)  # came, was predicted, was both
        self._confusion = PairCounts()
        self._shares = PairCounts()  # (period, label)
        self._period = 1  # examples in a period

    # Adding.

    def update(self, labels: Sequence[Hashable], predicted: np.ndarray, known_labels: Sequence[Hashable]) -> np.ndarray:
        """Adds the next examples: their labels, and the class ids that were predicted. Returns the labels' numbers."""
        number, texts = self._numbers, {-1: -1}
        pairs = np.empty((len(labels), 2), np.int64)
        for i, (label, class_id) in enumerate(zip(labels, predicted.tolist(), strict=True)):
            pairs[i, 0] = number.setdefault(str(label), len(number))
            if class_id not in texts:
                texts[class_id] = number.setdefault(str(known_labels[class_id]), len(number))
            pairs[i, 1] = texts[class_id]
        return self._add(pairs)

    def update_from_records(self, label: pa.Array, predicted: pa.Array) -> np.ndarray:
        """Adds the next examples of the records of a run. Returns the labels' numbers."""
        import pyarrow as pa

        chunks = [chunk for column in (label, predicted) for chunk in getattr(column, "chunks", [column])]
        both = pa.concat_arrays(chunks).dictionary_encode()
        codes = both.indices.fill_null(-1).to_numpy(zero_copy_only=False).reshape(2, -1).T.astype(np.int64)  # (n, 2)
        texts = both.dictionary.to_pylist()
        seen, first = np.unique(codes.ravel(), return_index=True)  # each label before what was predicted for it
        numbers = np.full(len(texts) + 1, -1)  # the last one: nothing was predicted
        for code in seen[np.argsort(first)].tolist():
            if code >= 0:
                numbers[code] = self._numbers.setdefault(texts[code], len(self._numbers))
        return self._add(numbers[codes])

    def _add(self, pairs: np.ndarray) -> np.ndarray:
        """Adds examples as pairs (n, 2) of numbers: the label, and the prediction or -1."""
        labels, predicted = pairs[:, 0], pairs[:, 1]
        if not len(labels):
            return labels
        if (grown := len(self._numbers) - self._sums.shape[1]) > 0:
            self._sums = np.pad(self._sums, ((0, 0), (0, grown)))
        made = predicted >= 0
        for row, numbers in zip(self._sums, (labels, predicted[made], labels[labels == predicted]), strict=True):
            np.add.at(row, numbers, 1)
        self._confusion.add(labels[made], predicted[made])
        done = 0
        while done < len(labels):
            room = TIME_ROWS * self._period - self.count
            if room == 0:
                self._shares.halve_first()
                self._period *= 2
                continue
            now = labels[done : done + room]
            self._shares.add(np.arange(self.count, self.count + len(now)) // self._period, now)
            self.count += len(now)
            done += len(now)
        return labels

    # Numbers.

    @property
    def num_labels(self) -> int:
        """How many different labels came."""
        return int((self._sums[0] > 0).sum())

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the recalls of all classes that came."""
        came, _, right = self._sums[:, self._sums[0] > 0]
        return float((right / came).mean()) if len(came) else math.nan

    @property
    def macro_f1(self) -> float:
        """The mean of the F1 scores of all classes that came."""
        came, predicted, right = self._sums[:, self._sums[0] > 0]
        return float((2 * right / (came + predicted)).mean()) if len(came) else math.nan

    @property
    def chance_agreement(self) -> float:
        """How often labels and predictions would agree if they came with the same frequencies, but independently."""
        came, predicted, _ = self._sums.astype(float)
        return float((came * predicted).sum()) / self.count**2 if self.count else math.nan

    # Tables.

    def top(self, most: int | None = None) -> list[str]:
        """The labels that came most often, the most frequent first."""
        names, came = list(self._numbers), self._sums[0]
        return [names[i] for i in np.argsort(-came, kind="stable")[:most].tolist() if came[i]]

    def table(self, most: int | None = None) -> dict[str, Any]:
        """Support, recall, precision and F1 of each class, the most frequent first; NaN where nothing was predicted."""
        labels = self.top(most)
        came, predicted, right = self._sums[:, [self._numbers[label] for label in labels]]
        return {
            "label": labels,
            "support": came,
            "predicted": predicted,
            "recall": right / np.maximum(came, 1),
            "precision": np.divide(right, predicted, out=np.full(len(right), np.nan), where=predicted > 0),
            "f1": 2 * right / np.maximum(came + predicted, 1),
        }

    def confusion(self, most: int = TOP) -> dict[str, Any]:
        """How often each label (rows) was predicted as each (columns), for the most frequent classes.

        The last row and column stand for everything else, where there is more: other classes, rare pairs that were
        forgotten, and examples for which nothing was predicted.
        """
        labels = self.top(most)
        at = {self._numbers[label]: i for i, label in enumerate(labels)}
        size = len(labels)
        counts = self._confusion.matrix(at, at, (size, size))
        without_prediction = self.count - self._sums[1].sum()
        if self.count - counts.sum() <= without_prediction:
            return {"label": labels, "count": counts}
        own = [self._numbers[label] for label in labels]
        came, predicted = self._sums[0, own], self._sums[1, own]
        whole = np.zeros((size + 1, size + 1), np.int64)
        whole[:size, :size] = counts
        whole[:size, size] = came - counts.sum(1)
        whole[size, :size] = predicted - counts.sum(0)
        whole[size, size] = self.count - whole.sum()
        return {"label": [*labels, OTHER], "count": whole}

    def mistakes(self, most: int = 5) -> list[tuple[str, str, int]]:
        """The most frequent mistakes: label, prediction, and how often."""
        names = list(self._numbers)
        wrong = [(times, a, b) for (a, b), times in self._confusion.items() if a != b]
        wrong.sort(key=lambda each: (-each[0], each[1], each[2]))
        return [(names[a], names[b], times) for times, a, b in wrong[:most]]

    def shares(self, most: int = TOP) -> dict[str, Any]:
        """How common each of the most frequent labels is over time; the last one stands for all others.

        `position` is how many examples had been seen at the end of each period, `share` is (labels, periods).
        """
        labels = self.top(most)
        join = max(1, -(-FEWEST // self._period))  # a share of a few examples says nothing
        period = join * self._period
        ends = np.minimum(np.arange(1, -(-self.count // period) + 1) * period, self.count)
        periods = {i: i // join for i in range(TIME_ROWS)}
        at = {self._numbers[label]: i for i, label in enumerate(labels)}
        counts = self._shares.matrix(periods, at, (len(ends), len(labels))).T
        length = np.diff(ends, prepend=0)
        if (rest := length - counts.sum(0)).any():
            labels, counts = [*labels, OTHER], np.vstack([counts, rest])
        return {"label": labels, "position": ends, "share": counts / np.maximum(length, 1)}

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "texts": list(self._numbers),
            "sums": self._sums.copy(),
            "confusion": self._confusion.state_dict(),
            "shares": self._shares.state_dict(),
            "period": self._period,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self._period = int(state["count"]), int(state["period"])
        self._numbers = {str(text): number for number, text in enumerate(state["texts"])}
        self._sums = np.array(state["sums"]).reshape(3, -1)
        self._confusion.load_state_dict(state["confusion"])
        self._shares.load_state_dict(state["shares"])
