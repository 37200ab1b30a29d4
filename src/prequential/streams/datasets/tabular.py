"""Drifting tabular streams that are much used: Electricity, Covertype and Power Supply, from .npz files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput
from prequential.streams.formats.arrays import ArrayStream, load_npz

COVERTYPE = {"num", "wilderness", "soil", "y"}


def electricity(path: str | Path, *, max_bytes: int | None = None) -> ArrayStream:
    """Electricity: whether the price rises or falls, 45,312 half-hours of 8 features, 2 classes.

    Parameters
    ----------
    path
        A .npz file with `X` (n, 8) and `y` (n,), in the order of time.
    max_bytes
        As in `array_stream`.
    """
    arrays = _load(path, {"X", "y"}, max_bytes)
    return ArrayStream(arrays["X"], arrays["y"], classes=2)


def power_supply(path: str | Path, *, max_bytes: int | None = None) -> ArrayStream:
    """Power Supply: the hour of the day from the power of two grids, 29,927 hours, 24 classes.

    Parameters
    ----------
    path
        A .npz file with `X` (n, 2) and `y` (n,), in the order of time.
    max_bytes
        As in `array_stream`.
    """
    arrays = _load(path, {"X", "y"}, max_bytes)
    return ArrayStream(arrays["X"], arrays["y"], classes=24)


def covertype(path: str | Path, *, max_bytes: int | None = None) -> ArrayStream:
    """Covertype: the kind of forest of 581,012 places from 10 numbers, 4 areas and 40 soils, 7 classes.

    Parameters
    ----------
    path
        A .npz file with `num` (n, 10), `wilderness` (n,) in 0..3, `soil` (n,) in 0..39 and `y` (n,), in the order of
        the original file. Area and soil become one feature for each value, 54 features in all.
    max_bytes
        As in `array_stream`.
    """
    arrays = _load(path, COVERTYPE, max_bytes)
    n = len(arrays["y"])
    for name, shape in {"num": (n, 10), "wilderness": (n,), "soil": (n,)}.items():
        if arrays[name].shape != shape:
            raise BadInput(f"{path}: array {name!r} has shape {arrays[name].shape}, expected {shape} beside {n} labels")
    for name, values in {"wilderness": 4, "soil": 40}.items():
        array = arrays[name]
        bad = np.flatnonzero((array < 0) | (array >= values)) if array.dtype.kind in "iu" else [0]
        if len(bad):
            raise BadInput(
                f"{path}, example {bad[0]}: {name} is {array[bad[0]]}, expected a whole number in 0..{values - 1}"
            )
    return ArrayStream(_Covertype(arrays["num"], arrays["wilderness"], arrays["soil"]), arrays["y"], classes=7)


class _Covertype:
    """The 54 features, made when they are read: as one array they would take ten times the memory."""

    dtype = np.dtype(np.float32)

    def __init__(self, numbers: np.ndarray, area: np.ndarray, soil: np.ndarray) -> None:
        self.numbers, self.area, self.soil = numbers, area, soil
        self.shape = (len(numbers), 54)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Any) -> np.ndarray:
        areas, soils = np.eye(4, dtype=np.float32), np.eye(40, dtype=np.float32)
        parts = (self.numbers[rows].astype(np.float32), areas[self.area[rows]], soils[self.soil[rows]])
        return np.concatenate(parts, 1)


def _load(path: str | Path, names: set[str], max_bytes: int | None) -> dict[str, np.ndarray]:
    arrays = load_npz(Path(path), max_bytes)
    if lacking := names - arrays.keys():
        raise BadInput(f"{path} has no array {sorted(lacking)[0]!r}; it holds {', '.join(arrays)}")
    return arrays
