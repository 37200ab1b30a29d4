"""Predictions from the latest labels alone, whatever the inputs are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from prequential.errors import BadCheckpoint
from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.experts.expert import Predicted
from prequential.models.lookback import MAX_LAG
from prequential.native.experts import NativeExperts, RecentLabels, address

HALF_LIVES = (1.0, 10.0)  # of the counts, in examples
SMALLEST = 1e-4  # a label that counts less than this is left out, and all before it
PRIOR_WEIGHT = 1.0  # of the prior of the labels, in labels that have just come
KEEP = 0.99  # how much of the counts of what followed a label is kept each time that it is followed by another one
FOLLOWER_PRIOR_WEIGHT = 2.0  # of the prior of the labels, in times that a label followed
BUCKETS = 8  # of lags: 0, 1 and 2, 3 to 6, ...; what followed is counted for each of them
SLOTS = 32  # how many labels that followed are counted; the rarest makes room for a new one
KEPT = MAX_LAG + 1  # labels before the chunk boundary that are kept


class RecentLabelsExpert:
    """Predicts from the latest labels: what came often lately, and what followed the latest label so far.

    Streams often have long runs of one label, or labels in a fixed order; this sees it at once, with three predictions of
    each example:

    * two by counts of the labels, which halve with each example, or every 10 examples. Examples whose labels have not
      arrived make them smaller as well, so that late labels say less;
    * one by counts of which labels followed the latest label, slowly forgetting. Where labels come late, what comes
      1 or 2, 3 to 6, 7 to 14, ... examples after it is counted apart.

    Alone they say little. So the mixer takes them as auxiliary: they start with a small weight and without influence on
    its products.

    Parameters
    ----------
    chunk_size
        How many examples a chunk has.
    num_classes
        How many labels there can be.
    native
        What computes in the native core, where it does.

    Examples
    --------
    >>> expert = RecentLabelsExpert(chunk_size=4, num_classes=2)
    >>> _ = expert.commit(Batch(np.zeros((4, 1)), np.array([0, 1, 0, 1]), np.array([0, 1, 2, 2])))
    >>> log_probs = expert.predict(Queries(np.zeros((1, 1)), num_seen=np.array([2]))).log_probs
    >>> [f"{p:.2f}" for p in np.exp(log_probs[:, 0, 0])]  # 1 came last, and 0 followed it
    ['0.39', '0.49', '0.67']
    """

    num_predictions = len(HALF_LIVES) + 1
    auxiliary = True

    def __init__(self, *, chunk_size: int, num_classes: int, native: NativeExperts | None = None) -> None:
        self.num_classes, self._native = num_classes, native
        self._arrays: RecentLabels | None = None  # where these are, for the native core
        self._labels = np.full(KEPT + chunk_size, -1)  # committed ones, and from KEPT on those after the boundary
        self._lags = np.zeros(chunk_size, np.int64)  # of those after the boundary
        self._num_fresh = 0  # how many these are
        # which labels followed a label; -1: a slot is empty
        self._followers = np.full((BUCKETS, num_classes, SLOTS), -1, np.int32)
        self._counts = np.zeros((BUCKETS, num_classes, SLOTS), np.float32)

    def predict(self, queries: Queries) -> Predicted:
        stop = KEPT + self._num_fresh
        if queries.missing is None or queries.position is None:
            n = len(queries)
            return Predicted(self._log_probs(np.array([stop] * n), np.array([0] * n), queries.num_seen))
        lags = np.minimum(queries.missing + queries.position, MAX_LAG)
        return Predicted(self._log_probs(stop - queries.missing, lags, queries.num_seen))

    def extend(self, batch: Batch, predicted: Predicted | None = None) -> np.ndarray:
        first = KEPT + self._num_fresh
        self._append(batch)
        if predicted is not None and batch.lags is None:
            return predicted.log_probs
        return self._of_labeled(batch, first)

    def commit(self, batch: Batch) -> np.ndarray:
        self._num_fresh = 0
        self._append(batch)
        log_probs, n = self._of_labeled(batch, KEPT), len(batch)
        self._count()
        self._labels[:KEPT] = self._labels[n : n + KEPT]
        self._num_fresh = 0
        return log_probs

    def grow(self, num_classes: int) -> None:
        more = ((0, 0), (0, num_classes - self.num_classes), (0, 0))
        self._followers = np.pad(self._followers, more, constant_values=-1)
        self._counts = np.pad(self._counts, more)
        self.num_classes, self._arrays = num_classes, None

    def macs(self) -> float:
        return sum(half_life * -math.log2(SMALLEST) for half_life in HALF_LIVES) + SLOTS

    def state_dict(self) -> dict[str, Any]:
        labels, lags = self._labels.copy(), self._lags.copy()
        labels[KEPT + self._num_fresh :], lags[self._num_fresh :] = -1, 0
        followers, counts = self._followers.copy(), self._counts.copy()
        return {
            "class_ids": labels, "lags": lags, "num_fresh": self._num_fresh, "followers": followers, "counts": counts,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = self.state_dict()
        loaded = {name: np.array(state[name], own[name].dtype) for name in own if name != "num_fresh"}
        for name, array in loaded.items():
            if array.shape != own[name].shape:
                raise BadCheckpoint(f"{name} of recent labels has shape {array.shape}, expected {own[name].shape}")
        num_fresh = int(state["num_fresh"])
        if not 0 <= num_fresh <= len(self._lags):
            raise BadCheckpoint(f"num_fresh ({num_fresh}) of recent labels must be from 0 to {len(self._lags)}")
        last = self.num_classes - 1
        for name, least, most in (("class_ids", -1, last), ("followers", -1, last), ("lags", 0, MAX_LAG)):
            if loaded[name].max(initial=0) > most or loaded[name].min(initial=0) < least:
                raise BadCheckpoint(f"{name} of recent labels must be from {least} to {most}")
        self._labels, self._lags, self._num_fresh = loaded["class_ids"], loaded["lags"], num_fresh
        self._followers, self._counts, self._arrays = loaded["followers"], loaded["counts"], None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": None}  # a copy has arrays of its own

    def _native_arrays(self) -> RecentLabels:
        if self._arrays is None:
            self._arrays = RecentLabels(
                *map(address, (self._labels, self._lags, self._followers, self._counts, DECAYS)),
                KEPT, SLOTS, self.num_classes, len(DECAYS), SMALLEST, PRIOR_WEIGHT, KEEP, FOLLOWER_PRIOR_WEIGHT,
            )  # fmt: skip
        return self._arrays

    def _append(self, batch: Batch) -> None:
        first, self._num_fresh = self._num_fresh, self._num_fresh + len(batch)
        more = self._num_fresh - len(self._lags)
        if more > 0:  # a chunk is longer than it was said to be
            self._labels, self._lags = (
                np.pad(self._labels, (0, more), constant_values=-1),
                np.pad(self._lags, (0, more)),
            )
            self._arrays = None
        self._labels[KEPT + first : KEPT + self._num_fresh] = batch.class_ids
        self._lags[first : self._num_fresh] = 0 if batch.lags is None else batch.lags

    def _of_labeled(self, batch: Batch, first: int) -> np.ndarray:
        """Log-probabilities (3, n, K) of labeled examples, each as it was asked; `first` is where the labels begin."""
        lags = np.zeros(len(batch), np.int64) if batch.lags is None else batch.lags
        return self._log_probs(first + np.arange(len(batch)) - lags, lags, batch.num_seen)

    def _log_probs(self, stop: np.ndarray, lags: np.ndarray, num_seen: np.ndarray) -> np.ndarray:
        """Log-probabilities (3, n, K) by the labels before `stop` (n,), asked so many (n,) examples after the last one."""
        if self._native is not None:
            return self._native.recent_labels(self._native_arrays(), KEPT + self._num_fresh, stop, lags, num_seen)
        prior = _prior(num_seen, self.num_classes)
        probs = np.empty((self.num_predictions, len(stop), self.num_classes))
        for i, (end, lag) in enumerate(zip(stop.tolist(), lags.tolist(), strict=True)):
            for d, decay in enumerate(DECAYS):
                probs[d, i] = _smoothed(self._decayed(end, lag, decay), prior[i], PRIOR_WEIGHT)
            last = int(self._labels[end - 1])
            if last < 0:
                probs[-1, i] = prior[i]
                continue
            followers, counts = (table[_bucket(lag), last].copy() for table in (self._followers, self._counts))
            for s in range(KEPT, end):
                if (self._latest_of(s), _bucket(int(self._lags[s - KEPT]))) == (last, _bucket(lag)):
                    _count_follower(followers, counts, int(self._labels[s]))
            filled = followers >= 0
            found = np.bincount(followers[filled], counts[filled].astype(np.float64), self.num_classes)
            probs[-1, i] = _smoothed(found, prior[i], FOLLOWER_PRIOR_WEIGHT)
        return np.log(probs).astype(np.float32)

    def _decayed(self, stop: int, lag: int, decay: float) -> np.ndarray:
        """Counts (K,) of the labels before `stop`, each weighing less by how many examples ago it was."""
        horizon = max(math.floor(math.log(SMALLEST) / math.log(decay)) + 1 - lag, 0)
        labels = self._labels[max(stop - horizon, 0) : stop][::-1]
        labels = labels[: np.argmax(labels < 0) if (labels < 0).any() else len(labels)]
        return np.bincount(labels, decay ** (lag + np.arange(len(labels))), self.num_classes)

    def _latest_of(self, s: int) -> int:
        """The latest label that was there when the example at `s` was asked; -1: there was none."""
        return int(self._labels[s - 1 - self._lags[s - KEPT]])

    def _count(self) -> None:
        """Counts what the labels after the boundary followed."""
        if self._native is not None:
            self._native.count_followers(self._native_arrays(), KEPT + self._num_fresh)
            return
        for s in range(KEPT, KEPT + self._num_fresh):
            before = self._latest_of(s)
            if before >= 0:
                at = _bucket(int(self._lags[s - KEPT])), before
                _count_follower(self._followers[at], self._counts[at], int(self._labels[s]))


DECAYS = 0.5 ** (1 / np.array(HALF_LIVES))


def _bucket(lag: int) -> int:
    return min((1 + lag).bit_length() - 1, BUCKETS - 1)


def _count_follower(followers: np.ndarray, counts: np.ndarray, label: int) -> None:
    """One more time, this label came. Of full slots the lowest count is replaced."""
    counts *= np.float32(KEEP)
    at = np.flatnonzero((followers == label) | (followers < 0))
    if len(at):
        counts[at[0]] += 1
        followers[at[0]] = label
    else:
        lowest = counts.argmin()
        followers[lowest], counts[lowest] = label, 1


def _prior(num_seen: np.ndarray, num_classes: int) -> np.ndarray:
    """The prior (n, K) of the labels: all that have not been seen together weigh as much as one that was."""
    seen = np.minimum(num_seen, num_classes)[:, None]
    weights = np.where(np.arange(num_classes) < seen, 1.0, 1 / np.maximum(num_classes - seen, 1))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def _smoothed(counts: np.ndarray, prior: np.ndarray, weight: float) -> np.ndarray:
    return np.asarray((counts + weight * prior) / (counts.sum() + weight))
