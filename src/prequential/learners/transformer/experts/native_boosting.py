"""Boosting in the native core: the same trees and scores as in NumPy, to the bit."""

from __future__ import annotations

from operator import attrgetter, is_not
from typing import Any

import numpy as np

from prequential.learners.transformer.experts.boosting import (
    BINS,
    EXP_HIGH,
    EXP_LOW,
    GRADIENT,
    LARGEST,
    LEAST_GAIN,
    LEAST_HESSIAN,
    LEAST_ROWS,
    LEAVES,
    PENALTY,
    Forest,
    Grower,
    Growth,
    Version,
    rate,
)
from prequential.native.experts import address, as_float64, as_int64
from prequential.native.native_trees import Arrays, GrowthArguments, TreeFunctions, address_of, pointers, tree_functions

ARRAYS = (
    "x", "bins", "cuts", "num_cuts", "class_ids", "scores", "bias", "feature", "threshold", "child", "num_leaves", "value",
)  # fmt: skip
_arrays_of = attrgetter(*ARRAYS)


class NativeGrower(Grower):
    """`Grower` by the functions of `trees.cpp`.

    Parameters
    ----------
    functions
        Those of the library.
    log_probs
        Whether it also makes log-probabilities of scores. They differ from those of NumPy in the last bits, as
        exponentials and logarithms do; all else is the same.
    """

    def __init__(self, functions: TreeFunctions, *, log_probs: bool = True) -> None:
        self._functions, self._makes_log_probs = functions, log_probs
        self._of: tuple[np.ndarray, ...] = ()  # the arrays that the addresses are of
        self._forest: Forest | None = None
        self._arrays_of = Arrays()
        self._address = address_of(self._arrays_of)

    def __deepcopy__(self, memo: dict[int, Any]) -> NativeGrower:
        return NativeGrower(self._functions, log_probs=self._makes_log_probs)

    def scores(self, forest: Forest, trees: range, x: np.ndarray) -> np.ndarray:
        x, found = np.require(x, np.float32, ["C", "W"]), np.empty((len(x), forest.num_classes), np.int32)
        if found.size:
            self._functions.scores(self._arrays(forest), trees.start, len(trees), address(x), len(x), address(found))
        return found

    def bin(self, forest: Forest, x: np.ndarray) -> np.ndarray:
        x, found = np.require(x, np.float32, ["C", "W"]), np.empty(x.shape, np.uint8)
        if found.size:
            self._functions.bin(self._arrays(forest), address(x), len(x), address(found))
        return found

    def grow(self, forest: Forest, growth: Growth, tree: int, old: int | None, count: int) -> None:
        if count > len(forest.x):
            raise IndexError(f"{count} rows of {len(forest.x)}")
        room = len(forest.num_leaves)
        given = GrowthArguments(
            address(growth.rows), len(growth.rows), address(growth.features), len(growth.features), growth.seed,
            PENALTY * GRADIENT, LEAST_ROWS, int(LEAST_HESSIAN * GRADIENT), LEAST_GAIN * GRADIENT,
            rate(forest.num_classes), LARGEST,
        )  # fmt: skip
        if self._functions.grow(
            self._arrays(forest), address_of(given), tree % room, -1 if old is None else old % room, count
        ):
            raise MemoryError("no memory for a tree")

    def log_probs(
        self, forest: Forest, version: Version, x: np.ndarray, origin: np.ndarray, num_seen: np.ndarray, K: int
    ) -> np.ndarray:
        if not self._makes_log_probs:
            return super().log_probs(forest, version, x, origin, num_seen, K)
        x, num_seen = as_float64(x), as_int64(num_seen)
        found, trees, bias = np.empty((len(x), K), np.float32), version.trees, version.bias_of(forest.num_classes)
        if len(x) and self._functions.predict(
            self._arrays(forest), trees.start, len(trees), address(bias), address(x), len(x), address(origin),
            version.scale, version.rest, address(num_seen), K, address(found),
        ):  # fmt: skip
            raise MemoryError("no memory for the scores of a row")
        return found

    def _arrays(self, forest: Forest) -> int:
        """Where the addresses of its arrays are."""
        arrays = _arrays_of(forest)
        if self._forest is not forest or any(map(is_not, self._of, arrays)):
            (N, F), K, T = forest.x.shape, forest.num_classes, len(forest.num_leaves)
            exp = {"exp_high": EXP_HIGH, "exp_low": EXP_LOW}
            self._arrays_of = Arrays(
                N, F, K, T, LEAVES, BINS, len(EXP_HIGH), **pointers({**dict(zip(ARRAYS, arrays, strict=True)), **exp})
            )
            self._address = address_of(self._arrays_of)
            self._forest, self._of = forest, arrays
        return self._address


def make_grower(*, log_probs: bool) -> Grower:
    """The native core where there is one; `log_probs` where the rest of the learner uses it as well."""
    functions = tree_functions()
    return Grower() if functions is None else NativeGrower(functions, log_probs=log_probs)
