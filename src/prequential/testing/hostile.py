"""Inputs that every learner must refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def hostile_inputs(x: np.ndarray) -> list[tuple[str, Any, Any]]:
    """Pairs (xs, ys) that are no two examples with labels, each with a name."""
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = 1.0
    for _ in range(2_000):
        deep = [deep]
    masked = np.ma.MaskedArray(x, mask=np.zeros(x.shape, bool), dtype="M8[s]")
    bad_x = {
        "ragged rows": [x[0], x[1, :-1]],
        "deeply ragged rows": [[[1.0, 2.0], [3.0]], [[1.0, 2.0], [3.0, 4.0]]],
        "rows of different dimensions": [x[0], x.reshape(2, 2, -1)],
        "rows that are generators": [(value for value in row) for row in x],
        "a generator": (row for row in x),
        "a list that holds itself": loop,
        "a list 2,000 deep": deep,
        "a row 2,000 deep": [x[0].tolist(), deep],
        "nothing": None,
        "a word": "two",
        "a dict": {"a": x[0], "b": x[1]},
        "dicts of dicts": [{"a": {"b": 1.0}}, {"a": {"b": 2.0}}],
        "complex numbers": x.astype(np.complex64),
        "dates": x.astype("M8[s]"),
        "masked dates": masked,
        "words": x.astype("U8"),
        "bytes": x.astype("S8"),
        "records": np.zeros(2, dtype=[("a", float), ("b", float)]),
        "a sparse tensor": torch.tensor(x).to_sparse(),
        "a complex tensor": torch.tensor(x, dtype=torch.complex64),
        "a tensor without data": torch.empty(x.shape, device="meta"),
        "numbers beyond float64": [[10**400] * x.shape[1], x[1].tolist()],
        "an object that raises": _Hostile(),
        "objects that raise": [[_Hostile()] * x.shape[1]] * 2,
        "five dimensions": x.reshape(2, 1, 1, 1, -1),
        "no features": x[:, :0],
    }
    if np.finfo(np.longdouble).max > np.finfo(np.float64).max:
        bad_x["long doubles beyond float64"] = x.astype(np.longdouble) * np.longdouble("1e4000")
    bad_y = {
        "no labels": None,
        "a label None": [0, None],
        "labels in a word": "01",
        "labels in a dict": {0: 0, 1: 1},
        "labels in a set": {0, 1},
        "a generator of labels": (label for label in (0, 1)),
        "a number for labels": 1,
        "an array of one label": np.array(1),
        "labels in a table": np.array([[0], [1]]),
        "masked labels": np.ma.MaskedArray([0, 1], mask=[False, True]),
        "a label that raises": [0, _Hostile()],
        "an endless label": [0, loop],
        "too many labels": range(10**9),
    }
    return [
        *((what, xs, [0, 1]) for what, xs in bad_x.items()),
        *((what, x, ys) for what, ys in bad_y.items()),
    ]


class _Hostile:
    """An object that raises whatever it is asked."""

    def _raise(self, *given: Any, **more: Any) -> Any:
        raise RuntimeError("never " * 50_000)

    __array__ = __len__ = __iter__ = __hash__ = __eq__ = __repr__ = __str__ = __float__ = __getitem__ = _raise
