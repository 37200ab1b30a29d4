"""Gradient-boosted trees of the native core, on the arrays of `experts/boosting.py`."""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_double, c_int64, c_uint64, c_void_p
from typing import Any

import numpy as np

from prequential.native.experts import address
from prequential.native.library import library

SIZES = ("N", "F", "K", "T", "L", "B", "H")
POINTERS = (
    "x", "bins", "cuts", "num_cuts", "class_ids", "scores", "bias", "feature", "threshold", "child", "num_leaves",
    "value", "exp_high", "exp_low",
)  # fmt: skip


class Arrays(ctypes.Structure):
    """The arrays of a forest, as `trees.cpp` takes them."""

    _fields_ = (*((name, c_int64) for name in SIZES), *((name, c_void_p) for name in POINTERS))


class GrowthArguments(ctypes.Structure):
    """What the next tree is grown from, as `trees.cpp` takes it."""

    _fields_ = (
        ("rows", c_void_p),
        ("R", c_int64),
        ("features", c_void_p),
        ("C", c_int64),
        ("seed", c_uint64),
        ("penalty", c_double),
        ("min_rows", c_int64),
        ("min_hessian", c_int64),
        ("min_gain", c_double),
        ("rate", c_double),
        ("largest", c_double),
    )


class TreeFunctions:
    """The functions of `trees.cpp`.

    Parameters
    ----------
    loaded
        The library.
    """

    def __init__(self, loaded: ctypes.CDLL) -> None:
        pointer, number, real = c_void_p, c_int64, c_double
        self.scores, self.bin, self.grow = (
            getattr(loaded, f"prequential_trees_{name}") for name in ("scores", "bin", "grow")
        )
        self.predict = loaded.prequential_trees_predict
        self.scores.restype, self.scores.argtypes = None, [pointer, number, number, pointer, number, pointer]
        self.bin.restype, self.bin.argtypes = None, [pointer, pointer, number, pointer]
        self.grow.restype, self.grow.argtypes = ctypes.c_int, [pointer, pointer, number, number, number]
        self.predict.restype = ctypes.c_int
        self.predict.argtypes = [
            pointer, number, number, pointer, pointer, number, pointer, real, real, pointer, number, pointer,
        ]  # fmt: skip

    def __deepcopy__(self, memo: dict[int, Any]) -> TreeFunctions:
        return self  # it has no state


def pointers(arrays: dict[str, np.ndarray]) -> dict[str, int]:
    """Where each array, which its owner holds as long as the addresses are used, begins."""
    return {name: address(array) if array.size else 0 for name, array in arrays.items()}


def address_of(structure: ctypes.Structure) -> int:
    return addressof(structure)


_made: TreeFunctions | None = None


def tree_functions() -> TreeFunctions | None:
    """The native functions; None where the library is not there."""
    global _made
    if _made is None:
        found = library().library
        _made = None if found is None else TreeFunctions(found)
    return _made
