"""Rows that hold their label, such as those of Hugging Face data sets, as pairs of x and y."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from prequential.errors import BadInput, short

LABEL_NAMES = ("label", "y", "target", "class")  # the field to predict, where none is named


def split_rows(rows: Iterable[Mapping[str, Any]], label: str | None = None) -> Iterator[tuple[Any, Hashable]]:
    """The pairs (x, y) of rows with named fields: y is one of them, and x the others.

    Where there is one other field and it holds an array, a tensor or an image, x is that, else a dict.

    Parameters
    ----------
    rows
        Dicts, as they come.
    label
        The field to predict; by default the one called label, y, target or class, else the last of the first row.

    Examples
    --------
    >>> list(split_rows([{"amount": 3.5, "label": "fine"}, {"amount": 9.0, "label": "fraud"}]))
    [({'amount': 3.5}, 'fine'), ({'amount': 9.0}, 'fraud')]
    """
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise BadInput(f"example {i}: got a {type(row).__name__}, expected a dict like the first one")
        if label is None:
            label = next((name for name in row if str(name).lower() in LABEL_NAMES), list(row)[-1] if row else "label")
        if label not in row:
            raise BadInput(f"example {i}: the fields are {short(list(row))}, expected {label!r}, the label, among them")
        x = {name: _plain(value) for name, value in row.items() if name != label}
        first = next(iter(x.values()), None)
        alone = len(x) == 1 and (isinstance(first, list) or hasattr(first, "__array__") or hasattr(first, "detach"))
        yield (_array(first) if alone else x), _plain(row[label])


def rows_of(batches: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of batches, each of which is a dict of columns, as a `DataLoader` over dicts gives them.

    >>> list(rows_of([{"x": [1, 2], "y": ["a", "b"]}]))
    [{'x': 1, 'y': 'a'}, {'x': 2, 'y': 'b'}]
    """
    for batch in batches:
        yield from (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))


def _array(value: Any) -> Any:
    """Arrays and images as NumPy has them; tensors as they are."""
    return value if hasattr(value, "detach") else np.asarray(value)


def _plain(value: Any) -> Any:
    """A number for a tensor or array of none dimensions; others as they are."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
