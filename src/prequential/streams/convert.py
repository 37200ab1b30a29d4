"""Making a stream from any source of examples: frames, data loaders, iterables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from prequential.errors import BadInput, short
from prequential.streams.labeled_rows import rows_of, split_rows
from prequential.streams.open import open_stream
from prequential.streams.spooled import SpooledStream
from prequential.streams.stream import Stream


def as_stream(source: Any, *, label: str | None = None) -> Stream:
    """Makes a stream from any source of examples.

    Parameters
    ----------
    source
        A `Stream`; the name or path of one; a pandas, polars or Arrow data frame; a `torch.utils.data.DataLoader`,
        whose batches are unpacked, an `IterableDataset` or another data set of torch; a data set of Hugging Face,
        streamed or not, or any other iterable of dicts that hold the label; or any iterable of (x, y), such as a list,
        a generator or a data set of River. What is not re-readable is written to a temporary file as it is read.
    label
        The column to predict, where the source is a table or gives dicts; by default the one called label, y, target or class, else
        the last one.

    Examples
    --------
    >>> stream = as_stream([([0.0, 1.0], "a"), ([2.0, 3.0], "b")])
    >>> [y for x, y in stream]
    ['a', 'b']
    """
    if isinstance(source, (str, Path)):
        return open_stream(source, label=label)
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__dataframe__"):
        from prequential.streams.formats.tables import TableStream

        return TableStream(source, label=label)
    if label is not None and not isinstance(source, Iterable):
        raise _no_columns(source, label)
    if isinstance(source, Stream):
        if label is not None:
            raise _no_columns(source, label)
        return source
    if isinstance(source, Mapping):  # such as a data set of Hugging Face that has splits
        raise BadInput(f"the stream is a {type(source).__name__} of {short(list(source))}, expected one of them")
    if isinstance(source, Iterable):
        return _spooled(source, label)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):  # a map-style data set of torch
        return _spooled((source[i] for i in range(len(source))), label)
    raise BadInput(
        f"the stream is a {type(source).__name__}, expected a Stream, a path, a data frame, a DataLoader or an "
        "iterable of (x, y)"
    )


def _spooled(source: Iterable[Any], label: str | None) -> SpooledStream:
    batched = _is_batched(source)
    items = iter(source)
    first = next(items, None)
    items = items if first is None else chain([first], items)
    if isinstance(first, Mapping):
        return SpooledStream(split_rows(rows_of(items) if batched else items, label))
    if label is not None:
        raise _no_columns(source, label)
    return SpooledStream(items, batched=batched)


def _no_columns(source: Any, label: str) -> BadInput:
    return BadInput(f"label ({label!r}) names a column, but the stream is a {type(source).__name__} and has none")


def _is_batched(source: Any) -> bool:
    """Whether it is a DataLoader that makes batches; one with batch_size=None gives single examples."""
    torch_data = sys.modules.get("torch.utils.data")  # what was never imported cannot be the type of anything
    if torch_data is None or not isinstance(source, torch_data.DataLoader):
        return False
    return source.batch_sampler is not None
