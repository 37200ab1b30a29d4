"""Gradient boosting that never ends: small trees over a memory of labeled rows, each new one in place of the oldest.

All sums are of integers, so that they do not depend on their order: `native/trees.cpp` grows the same trees to the bit.
Scores are in units of 2^-16, gradients and Hessians in units of 2^-12.

Letters: N rows of memory, F features, K classes, T trees of at most L leaves, B bins, C features that a tree may use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

SCORE = 65536  # the unit of scores
GRADIENT = 4096  # the unit of gradients
LEAVES = 16  # of a tree, at most
BINS = 32  # of a feature, at most
OUTPUTS = 6  # in histograms: all but one of K <= 7 classes, otherwise random projections of the gradients
LANES = OUTPUTS + 2  # the outputs, the Hessian, the number of rows
SHRINKAGE = 0.15
PENALTY = 1.0  # L2 on the values of leaves
LEAST_ROWS = 10  # in a leaf
LEAST_HESSIAN = 0.01  # in a leaf
LEAST_GAIN = 1e-3  # of a split
MOST_CLASSES = 64  # more are one class for the trees
LARGEST_VALUE = 1e30
NEVER = -(2**30)  # a score
LARGEST = 5.0  # Newton step of a leaf, before it is shrunk

EXP_HIGH = np.exp(-np.arange(21 * 64) / 64)  # exp(-d) of a difference of scores d is a product of two of these
EXP_LOW = np.exp(-np.arange(1024) / SCORE)


@dataclass
class Forest:
    """The trees and the rows that they are grown on; with the same rows and trees, all else in it is the same."""

    x: np.ndarray  # (N, F) float32
    class_ids: np.ndarray  # (N,) int64
    cuts: np.ndarray  # (F, B - 1) float32: a value is in bin b where cuts[b - 1] < value <= cuts[b]
    num_cuts: np.ndarray  # (F,) int32
    bias: np.ndarray  # (K,) int32, added to all scores
    feature: np.ndarray  # (T, L - 1) int32
    threshold: np.ndarray  # (T, L - 1) float32: left where x <= threshold
    child: np.ndarray  # (T, L - 1, 2) int32: a later node, or ~leaf
    num_leaves: np.ndarray  # (T,) int32
    value: np.ndarray  # (T, L, K) int32
    bins: np.ndarray = field(init=False)  # (N, F) uint8
    scores: np.ndarray = field(init=False)  # (N, K) int32: the sums of the trees' values

    def __post_init__(self) -> None:
        self.bins = np.zeros(self.x.shape, np.uint8)
        self.scores = np.zeros((len(self.x), self.num_classes), np.int32)

    @staticmethod
    def empty(*, rows: int, features: int, num_trees: int) -> Forest:
        """For no class yet."""
        N, F, T, L = rows, features, num_trees, LEAVES
        return Forest(
            np.zeros((N, F), np.float32),
            np.zeros(N, np.int64),
            np.zeros((F, BINS - 1), np.float32),
            np.zeros(F, np.int32),
            np.zeros(0, np.int32),
            np.zeros((T, L - 1), np.int32),
            np.zeros((T, L - 1), np.float32),
            np.zeros((T, L - 1, 2), np.int32),
            np.zeros(T, np.int32),
            np.zeros((T, L, 0), np.int32),
        )

    @property
    def num_classes(self) -> int:
        return len(self.bias)

    def add_classes(self, count: int) -> None:
        """More classes, which no tree knows yet."""
        self.bias = np.pad(self.bias, (0, count))
        self.value = np.pad(self.value, ((0, 0), (0, 0), (0, count)))
        self.scores = np.pad(self.scores, ((0, 0), (0, count)))


@dataclass(frozen=True)
class Growth:
    """What the next tree is grown from."""

    rows: np.ndarray  # (R,) int32, of the memory
    features: np.ndarray  # (C,) int32, in order
    seed: int  # of the random projections


@dataclass(frozen=True)
class Version:
    """What predicts from one chunk boundary on."""

    num_rows: int  # learned so far
    trees: range  # those whose scores count, numbered from the first one ever
    bias: np.ndarray  # (classes then,)
    log_scale: float
    rest: float  # how much of the probabilities goes to the prior

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return float(np.exp(self.log_scale))

    def bias_of(self, num_classes: int) -> np.ndarray:
        """With a bias that forbids them for classes that came later."""
        return (
            self.bias
            if len(self.bias) == num_classes
            else np.pad(self.bias, (0, num_classes - len(self.bias)), constant_values=NEVER)
        )


class Grower:
    """What computes, in NumPy; `NativeTrees` does the same in the native core."""

    def scores(self, forest: Forest, trees: range, x: np.ndarray) -> np.ndarray:
        """Int32 (n, K): the sums of the values of trees for rows (n, F)."""
        total = np.zeros((len(x), forest.num_classes), np.int32)
        for t in trees:
            total += _values(forest, t, x)
        return total

    def bin(self, forest: Forest, x: np.ndarray) -> np.ndarray:
        """Uint8 (n, F): the bins of rows (n, F)."""
        found = np.empty(x.shape, np.uint8)
        for f, count in enumerate(forest.num_cuts):
            found[:, f] = np.searchsorted(forest.cuts[f, :count], x[:, f], side="left")  # a NaN is in the last bin
        return found

    def grow(self, forest: Forest, growth: Growth, tree: int, old: int | None, count: int) -> None:
        """Grows a tree, whose values the `count` rows of memory get; they lose those of the tree `old`."""
        x, scores = forest.x[:count], forest.scores[:count]
        if old is not None:
            scores -= _values(forest, old, x)
        _grow(forest, growth, tree % len(forest.num_leaves))
        scores += _values(forest, tree, x)

    def log_probs(
        self, forest: Forest, version: Version, x: np.ndarray, origin: np.ndarray, num_seen: np.ndarray, K: int
    ) -> np.ndarray:
        """Float32 (n, K): log-probabilities of rows (n, F) as they came, of which the origin (F,) is subtracted.

        All labels from `num_seen` (n,) on weigh as one in the prior.
        """
        rest, scores = version.rest, self.scores(forest, version.trees, shifted(x, origin))
        z = (version.scale * scores + version.bias_of(forest.num_classes)) / SCORE
        probs = np.exp(z - z.max(1, keepdims=True, initial=-1e300))
        probs /= probs.sum(1, keepdims=True)
        column, seen, last = np.arange(K), np.minimum(num_seen, K)[:, None], forest.num_classes - 1
        wide = probs[:, np.minimum(column, last)]
        if forest.num_classes == MOST_CLASSES:  # the last one stands for all class ids from there on
            wide = np.where(column < last, wide, np.where(column < seen, wide / np.maximum(seen - last, 1), 0))
        else:
            wide = np.where(column <= last, wide, 0)
        weights = seen + (seen < K)
        prior = 1 / np.where(column < seen, weights, weights * np.maximum(K - seen, 1))
        return np.asarray(np.log(wide * (1 - rest) + rest * prior).astype(np.float32))


def shifted(x: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """Rows less those of the origin as float32: large values that differ little, such as times, stay apart."""
    return np.asarray(np.clip(x - origin, -LARGEST_VALUE, LARGEST_VALUE).astype(np.float32))


def hashed(seed: int, count: int) -> np.ndarray:
    """Random uint64 (count,): splitmix64 of seed, seed + 1, ..."""
    z = np.uint64(seed) + np.arange(count, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def quantile_cuts(column: np.ndarray) -> np.ndarray:
    """Where a feature with these values can be split: between any two, or at quantiles where there are many."""
    column = np.sort(column[~np.isnan(column)])
    different = np.flatnonzero(column[1:] > column[:-1]) + 1  # where a new value begins
    if len(different) >= BINS:
        wanted = np.arange(1, BINS) * len(column) // BINS
        at = np.unique(np.searchsorted(different, wanted, side="left").clip(max=len(different) - 1))
        different = different[at]
    half = np.float32(0.5)
    return np.unique(column[different] * half + column[different - 1] * half)


def _values(forest: Forest, number: int, x: np.ndarray) -> np.ndarray:
    """The values (n, K) of the tree of this number."""
    t = number % len(forest.num_leaves)
    return np.asarray(forest.value[t, _leaves(forest, t, x)])


def _leaves(forest: Forest, t: int, x: np.ndarray) -> np.ndarray:
    """The leaf (n,) of each row in a tree."""
    if forest.num_leaves[t] < 2:
        return np.zeros(len(x), np.int64)
    node, rows = np.zeros(len(x), np.int64), np.arange(len(x))
    while len(rows):
        at = node[rows]
        right = ~(x[rows, forest.feature[t, at]] <= forest.threshold[t, at])
        node[rows] = forest.child[t, at, right.astype(np.int64)]
        rows = rows[node[rows] >= 0]
    return ~node


def _probabilities(scores: np.ndarray) -> np.ndarray:
    """Int64 (n, K) in units of gradients."""
    below = scores.max(1, keepdims=True).astype(np.int64) - scores
    high = below >> 10
    inside = high < len(EXP_HIGH)
    e = EXP_HIGH[np.where(inside, high, 0)] * EXP_LOW[below & 1023] * 2.0**30
    e = np.where(inside, e, 0).astype(np.int64)
    return np.asarray((e * GRADIENT) / e.sum(1, keepdims=True) + 0.5).astype(np.int64)


@dataclass
class _Leaf:
    rows: np.ndarray  # (r,) which of the R
    total: np.ndarray  # (LANES,)
    hist: np.ndarray  # (C, B, LANES)
    gain: float = 0.0
    feature: int = 0  # which of the C
    bin: int = 0
    parent: tuple[int, int] | None = None  # node and side


def _grow(forest: Forest, growth: Growth, t: int) -> None:
    K, rows, C = forest.num_classes, growth.rows, len(growth.features)
    p = _probabilities(forest.scores[rows] + forest.bias)
    hessian = (p * (GRADIENT - p)) >> 12
    gradient = np.where(forest.class_ids[rows, None].clip(max=K - 1) == np.arange(K), GRADIENT, 0) - p
    derived = K <= OUTPUTS + 1
    outputs = gradient[:, : K - 1] if derived else _project(gradient, growth.seed)
    room = np.zeros((len(rows), OUTPUTS - outputs.shape[1]), np.int64)
    lanes = np.concatenate([outputs, room, hessian.sum(1, keepdims=True), np.ones((len(rows), 1), np.int64)], 1)
    bins = forest.bins[rows][:, growth.features].astype(np.int64)  # (R, C)
    place = bins + np.arange(C) * BINS

    def histogram(chosen: np.ndarray) -> np.ndarray:
        at = (place[chosen, :, None] * LANES + np.arange(LANES)).ravel()
        weights = np.broadcast_to(lanes[chosen, None], (len(chosen), C, LANES)).ravel()
        return np.bincount(at, weights, C * BINS * LANES).astype(np.int64).reshape(C, BINS, LANES)

    def find(leaf: _Leaf) -> _Leaf:
        _find_split(leaf, forest.num_cuts[growth.features], derived)
        return leaf

    every = np.arange(len(rows))
    leaves = [find(_Leaf(every, lanes.sum(0), histogram(every)))]
    while len(leaves) < LEAVES:
        best = int(np.argmax([leaf.gain for leaf in leaves]))
        leaf = leaves[best]
        if not leaf.gain > 0:
            break
        node, f = len(leaves) - 1, int(growth.features[leaf.feature])
        forest.feature[t, node], forest.threshold[t, node] = f, forest.cuts[f, leaf.bin]
        if leaf.parent is not None:
            forest.child[t, leaf.parent[0], leaf.parent[1]] = node
        forest.child[t, node] = ~best, ~len(leaves)
        goes_left = bins[leaf.rows, leaf.feature] <= leaf.bin
        parts = leaf.rows[goes_left], leaf.rows[~goes_left]
        smaller = int(len(parts[1]) < len(parts[0]))
        hist = histogram(parts[smaller])
        hists = (leaf.hist - hist, hist) if smaller else (hist, leaf.hist - hist)
        left, right = (
            find(_Leaf(parts[side], lanes[parts[side]].sum(0), hists[side], parent=(node, side))) for side in (0, 1)
        )
        leaves[best] = left
        leaves.append(right)
    forest.num_leaves[t] = len(leaves)
    for i, leaf in enumerate(leaves):
        step = gradient[leaf.rows].sum(0) / (hessian[leaf.rows].sum(0) + PENALTY * GRADIENT)
        forest.value[t, i] = (step.clip(-LARGEST, LARGEST) * rate(K)).astype(np.int32)


def rate(num_classes: int) -> float:
    """What the Newton step of a leaf is multiplied by to give its values."""
    return SHRINKAGE * SCORE * ((num_classes - 1) / num_classes)


def _project(gradient: np.ndarray, seed: int) -> np.ndarray:
    """Sums (n, OUTPUTS) of the gradients (n, K) with random signs: they keep squared lengths on average."""
    signs = hashed(seed, gradient.shape[1])[:, None] >> np.arange(OUTPUTS, dtype=np.uint64) & np.uint64(1)
    return np.asarray(gradient @ (1 - 2 * signs.astype(np.int64)))


def _squares(sums: np.ndarray, derived: bool) -> np.ndarray:
    outputs = sums[..., :OUTPUTS]
    squares = (outputs * outputs).sum(-1)
    if derived:  # one more output is minus the sum of the others
        squares = squares + outputs.sum(-1) ** 2
    return np.asarray(squares.astype(np.float64))


def _find_split(leaf: _Leaf, num_cuts: np.ndarray, derived: bool) -> None:
    """The split of a leaf with the most gain; of equal ones, that of the first feature and the lowest bin."""
    left = leaf.hist.cumsum(1)
    right = leaf.total - left
    penalty = PENALTY * GRADIENT
    gain = _squares(left, derived) / (left[..., -2] + penalty) + _squares(right, derived) / (right[..., -2] + penalty)
    gain -= _squares(leaf.total, derived) / (leaf.total[-2] + penalty)
    allowed = np.arange(BINS) < num_cuts[:, None]
    for side in (left, right):
        allowed &= (side[..., -1] >= LEAST_ROWS) & (side[..., -2] >= int(LEAST_HESSIAN * GRADIENT))
    gain = np.where(allowed, gain, -np.inf)
    leaf.feature, leaf.bin = (int(i) for i in np.unravel_index(np.argmax(gain), gain.shape))
    best = float(gain[leaf.feature, leaf.bin])
    leaf.gain = best if best > LEAST_GAIN * GRADIENT else 0.0


def check_trees(forest: Forest) -> str | None:
    """What is wrong with trees that were read from a file; None: nothing."""
    trees: dict[str, Any] = {"feature": (0, forest.x.shape[1]), "num_leaves": (0, LEAVES + 1)}
    for name, (low, stop) in trees.items():
        values = getattr(forest, name)
        if ((values < low) | (values >= stop)).any():
            return f"{name} of a tree is not within {low} to {stop - 1}"
    node = np.arange(LEAVES - 1)[None, :, None]
    used = node < forest.num_leaves[:, None, None] - 1
    is_node = (forest.child > node) & (forest.child < forest.num_leaves[:, None, None] - 1)
    is_leaf = (forest.child < 0) & (~forest.child < forest.num_leaves[:, None, None])
    if (used & ~(is_node | is_leaf)).any():
        return "a node of a tree has no such child"
    if (forest.num_cuts < 0).any() or (forest.num_cuts >= BINS).any():
        return f"num_cuts of a feature is not within 0 to {BINS - 1}"
    return None if (forest.class_ids >= 0).all() else "a class id is negative"
