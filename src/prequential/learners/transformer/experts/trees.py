"""Gradient-boosted trees, renewed with every chunk: an expert that is good at tables from a few hundred rows on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np

from prequential.errors import BadCheckpoint
from prequential.labels import log_class_prior
from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.experts.boosting import (
    LANES,
    MOST_CLASSES,
    SCORE,
    Forest,
    Grower,
    Growth,
    Version,
    check_trees,
    hashed,
    quantile_cuts,
    shifted,
)
from prequential.learners.transformer.experts.expert import Predicted

MEMORY = 4096  # rows, at most
LEAST_MEMORY = 256
VALUES = 2**20  # of single features in memory, for wide rows
FEW = 8  # so many features, or half of them, may be in one tree
PACE = 32  # rows for which there are so many new trees:
OLD, YOUNG = 2, 8  # with a full memory; with an empty one
WORK = 8192  # in between, so many rows over the rows there are
SCORED = 2**17  # probabilities of which a tree is grown, at most: one for each class and row
CELLS = 2**17  # of rows and features of which a tree is grown, at most
ROUND = 64  # chunks in which the bins of all features are found again, once the memory is full
KEPT = 64  # trees that are taken out but kept, for rows that were asked when they were in
PRIOR_WEIGHT = 0.5  # of the prior of the labels, in rows
LEARNING_RATE = 0.1  # of the logarithm of the scale
SMALLEST = -3.0  # of that logarithm; the largest is 0
STEEPEST = 4.0  # gradient of a row
ARRAYS = ("x", "class_ids", "cuts", "num_cuts", "feature", "threshold", "child", "num_leaves", "value")


class TreesExpert:
    """Predicts by small decision trees that are boosted on the latest examples.

    At the end of every chunk a few trees are grown on the gradients of the loss over all rows in memory, and as many of
    the oldest are taken out: cost does not vary over time, and the trees follow what changes. Features are used as they
    came, for a split depends on their order alone. A tree gives values to all classes at once (Iosipoi and Vakhrushev
    2022: with many classes, splits are chosen by random projections of the gradients).

    Scores grown on rows in memory are too sure about new ones where a stream changes. So they are multiplied by a
    scale of at most 1, which is learned from the labels of each chunk before trees are grown on it.

    Parameters
    ----------
    num_trees
        How many trees there are.
    width
        How many of the features of each example it uses: the first ones.
    num_classes
        How many labels there can be.
    grower
        What computes; by default NumPy.

    Examples
    --------
    >>> trees = TreesExpert(num_trees=8, width=1, num_classes=2)
    >>> x, y = np.arange(64.0)[:, None], np.repeat([0, 1], 32)
    >>> _ = trees.commit(Batch(np.float32(x), y, np.full(64, 2), raw=x))
    >>> trees.predict(Queries(np.float32([[50]]), np.array([2]), raw=np.array([[50.0]]))).log_probs.argmax().item()
    1
    """

    num_predictions = 1

    def __init__(self, *, num_trees: int, width: int, num_classes: int, grower: Grower | None = None) -> None:
        self.num_trees, self.width, self.num_classes = num_trees, width, num_classes
        self._grower = grower or Grower()
        self._rows = min(MEMORY, max(LEAST_MEMORY, VALUES // width))
        self._forest = Forest.empty(rows=self._rows, features=width, num_trees=num_trees + KEPT)
        self._origin = np.zeros(width)
        self._num_rows = 0  # learned so far
        self._num_grown = 0  # trees so far
        self._owed = 0  # trees times `PACE`
        self._binned = 0  # rows in memory when bins were found last; then the next feature to find them for
        self._log_scale = 0.0
        self._num_pending = 0  # rows after the chunk boundary
        self._versions = [self._version(0, 0, np.zeros(0, np.int32), 0.0)]  # the latest ones, oldest first

    @property
    def _count(self) -> int:
        """Rows in memory."""
        return min(self._num_rows, self._rows)

    def predict(self, queries: Queries) -> Predicted:
        return Predicted(self._log_probs(self._versions[-1], queries.raw, queries.num_seen)[None])

    def extend(self, batch: Batch, predicted: Predicted | None = None) -> np.ndarray:
        log_probs = self._predict_as_asked(batch, self._num_pending) if predicted is None else predicted.log_probs
        self._num_pending += len(batch)
        return log_probs

    def commit(self, batch: Batch) -> np.ndarray:
        log_probs = self._predict_as_asked(batch, 0)
        self._num_pending = 0
        self._learn(batch)
        return log_probs

    def grow(self, num_classes: int) -> None:
        self.num_classes = num_classes

    def macs(self) -> float:
        """Additions to histograms: about three for each row, feature and tree."""
        cells = self._rows * self._num_columns / self._every(self._rows)
        return 3.0 * OLD / PACE * cells * LANES + self.num_trees * self._forest.num_classes

    def state_dict(self) -> dict[str, Any]:
        K = self._forest.num_classes
        return {
            **{name: getattr(self._forest, name).copy() for name in ARRAYS},
            "origin": self._origin.copy(),
            "num_rows": self._num_rows,
            "num_pending": self._num_pending,
            "num_grown": self._num_grown,
            "owed": self._owed,
            "binned": self._binned,
            "log_scale": self._log_scale,
            "versions": {
                "num_rows": np.array([version.num_rows for version in self._versions]),
                "num_grown": np.array([version.trees.stop for version in self._versions]),
                "log_scale": np.array([version.log_scale for version in self._versions]),
                "bias": np.stack([version.bias_of(K) for version in self._versions]),
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        forest = Forest.empty(rows=self._rows, features=self.width, num_trees=self.num_trees + KEPT)
        K = np.asarray(state["value"]).shape[-1]
        forest.add_classes(K if K <= MOST_CLASSES else 0)
        for name in ARRAYS:
            found, own = np.asarray(state[name]), getattr(forest, name)
            if found.shape != own.shape:
                raise BadCheckpoint(f"{name} of the trees has shape {found.shape}, expected {own.shape}")
            own[...] = found
        wrong = check_trees(forest)
        if wrong is not None:
            raise BadCheckpoint(wrong)
        self._forest, self._origin = forest, np.array(state["origin"], np.float64)
        self._num_rows, self._num_grown = int(state["num_rows"]), int(state["num_grown"])
        self._owed, self._binned, self._log_scale = int(state["owed"]), int(state["binned"]), float(state["log_scale"])
        self._num_pending, versions = int(state["num_pending"]), state["versions"]
        self._versions = [
            self._version(int(num_rows), int(num_grown), np.array(bias, np.int32), float(log_scale))
            for num_rows, num_grown, bias, log_scale in zip(
                *(np.asarray(versions[name]) for name in ("num_rows", "num_grown", "bias", "log_scale")), strict=True
            )
        ]
        x = forest.x[: self._count]
        forest.bins[: self._count] = self._grower.bin(forest, x)
        forest.scores[: self._count] = self._grower.scores(forest, self._trees, x)
        forest.bias[:] = self._versions[-1].bias

    @property
    def _trees(self) -> range:
        return range(max(0, self._num_grown - self.num_trees), self._num_grown)

    def _version(self, num_rows: int, num_grown: int, bias: np.ndarray, log_scale: float) -> Version:
        trees = range(max(0, num_grown - self.num_trees), num_grown)
        return Version(num_rows, trees, bias, log_scale, PRIOR_WEIGHT / (min(num_rows, self._rows) + 1))

    def _log_probs(self, version: Version, x: np.ndarray | None, num_seen: np.ndarray) -> np.ndarray:
        assert x is not None
        if not version.num_rows:
            prior = log_class_prior(num_seen, self.num_classes)
            weights = np.ones((len(x), self.num_classes)) if prior is None else np.exp(prior)
            return np.asarray(np.log(weights / weights.sum(1, keepdims=True)).astype(np.float32))
        return self._grower.log_probs(self._forest, version, self._columns(x), self._origin, num_seen, self.num_classes)

    def _columns(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), -1)[:, : self.width]

    def _predict_as_asked(self, batch: Batch, position: int) -> np.ndarray:
        """Log-probabilities (1, n, K) of rows from this one of the chunk on, each by the trees of when it was asked."""
        assert batch.raw is not None
        if len(batch) == 1:
            lag = 0 if batch.lags is None else int(batch.lags[0])
            version = self._version_at(self._num_rows + position - lag) if lag else self._versions[-1]
            return self._log_probs(version, batch.raw, batch.num_seen)[None]
        found = np.empty((1, len(batch), self.num_classes), np.float32)
        for version, rows in self._asked(batch, position):
            found[0, rows] = self._log_probs(version, batch.raw[rows], batch.num_seen[rows])
        return found

    def _version_at(self, known: int) -> Version:
        """The version that there was when so many labels had arrived, or the oldest that there still is."""
        number = bisect_right(self._versions, known, key=lambda version: version.num_rows)
        return self._versions[max(number - 1, 0)]

    def _asked(self, batch: Batch, position: int) -> Iterator[tuple[Version, slice | np.ndarray]]:
        """Rows of a batch by the version that there was when they were asked, or the oldest that there still is."""
        if batch.lags is None:
            yield self._versions[-1], slice(None)
            return
        known = self._num_rows + position + np.arange(len(batch)) - batch.lags  # labels that had arrived
        boundaries = [version.num_rows for version in self._versions]
        of_row = np.maximum(np.searchsorted(boundaries, known, side="right") - 1, 0)
        for number in np.unique(of_row):
            yield self._versions[number], np.flatnonzero(of_row == number)

    @property
    def _num_columns(self) -> int:
        """Features that a tree may use."""
        return max(min(self.width, FEW), (self.width + 1) // 2)

    def _learn(self, batch: Batch) -> None:
        assert batch.raw is not None
        raw, class_ids = self._columns(batch.raw), batch.class_ids
        forest = self._forest
        if not self._num_rows:
            self._origin = np.nan_to_num(raw[0].astype(np.float64))
        known = min(int(class_ids.max()) + 1, MOST_CLASSES)
        if known > forest.num_classes:
            forest.add_classes(known - forest.num_classes)
        x = shifted(raw, self._origin)
        self._learn_scale(batch, x)
        scores = self._grower.scores(forest, self._trees, x)
        latest = slice(max(0, len(x) - self._rows), None)
        at = np.arange(self._num_rows, self._num_rows + len(x))[latest] % self._rows
        forest.x[at], forest.class_ids[at], forest.scores[at] = x[latest], class_ids[latest], scores[latest]
        forest.bins[at] = self._grower.bin(forest, x[latest])
        self._num_rows += len(x)
        self._find_bins()
        self._count_labels()
        self._owed += len(x) * min(YOUNG, max(OLD, WORK // self._count))
        due, self._owed = divmod(self._owed, PACE)
        if forest.num_classes > 1:
            for _ in range(min(due, self.num_trees)):
                self._grow_tree()
        new = self._version(self._num_rows, self._num_grown, forest.bias.copy(), self._log_scale)
        oldest = self._num_grown - KEPT
        self._versions = [*(version for version in self._versions if version.trees.stop >= oldest), new][-KEPT:]

    def _learn_scale(self, batch: Batch, x: np.ndarray) -> None:
        """A gradient step on labels that the trees by which they were predicted had not seen."""
        K, gradient = self._forest.num_classes, 0.0
        scale = float(np.exp(self._log_scale))
        for version, rows in self._asked(batch, 0):
            scores = self._grower.scores(self._forest, version.trees, x[rows])
            z = (scale * scores + version.bias_of(K)) / SCORE
            probs = np.exp(z - z.max(1, keepdims=True))
            probs /= probs.sum(1, keepdims=True)
            probs[np.arange(len(probs)), np.minimum(batch.class_ids[rows], K - 1)] -= 1
            gradient += float((probs * (scale * scores / SCORE)).sum(1).clip(-STEEPEST, STEEPEST).sum())
        self._log_scale = min(0.0, max(SMALLEST, self._log_scale - LEARNING_RATE * gradient / max(PACE, len(batch))))

    def _find_bins(self) -> None:
        """Finds the bins of all features while the memory grows by half; then those of a few of them in each chunk."""
        forest, count = self._forest, self._count
        if self._num_rows < self._rows or self._binned < self._rows:
            if count < self._rows and 2 * count < 3 * self._binned:
                return
            columns = np.arange(self.width)
            self._binned = count
        else:
            start, several = self._binned - self._rows, -(-self.width // ROUND)
            columns = np.unique((start + np.arange(several)) % self.width)
            self._binned = self._rows + (start + several) % self.width
        x = forest.x[:count]
        for f in columns:
            cuts = quantile_cuts(x[:, f])
            forest.cuts[f, : len(cuts)], forest.num_cuts[f] = cuts, len(cuts)
            forest.bins[:count, f] = np.searchsorted(cuts, x[:, f], side="left")

    def _count_labels(self) -> None:
        """The bias of each class is the logarithm of its share in memory."""
        K = self._forest.num_classes
        labels = np.minimum(self._forest.class_ids[: self._count], K - 1)
        share = (np.bincount(labels, minlength=K) + 0.5) / (self._count + 0.5 * K) if K else np.ones(0)
        self._forest.bias[:] = np.rint(np.log(share) * SCORE)

    def _every(self, count: int) -> int:
        """A tree is grown of one row in so many."""
        return max(1, -(-count * self._forest.num_classes // SCORED), -(-count * self._num_columns // CELLS))

    def _grow_tree(self) -> None:
        every = self._every(self._count)
        rows = np.arange(self._num_grown % every, self._count, every, dtype=np.int32)
        seed = self._num_grown * 1_000_003
        features = np.sort(np.argsort(hashed(seed, self.width), kind="stable")[: self._num_columns]).astype(np.int32)
        growth = Growth(rows, features, seed + self.width)
        old = self._num_grown - self.num_trees
        self._grower.grow(self._forest, growth, self._num_grown, old if old >= 0 else None, self._count)
        self._num_grown += 1
