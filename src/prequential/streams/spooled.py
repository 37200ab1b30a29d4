"""Streams from any iterable: examples are written to a temporary journal as they come, to be read again."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from prequential.errors import BadInput, one_line, short
from prequential.storage.scratch import ScratchDirectory
from prequential.streams.journal.journal import Journal
from prequential.streams.stream import Chunk, Stream


class SpooledStream(Stream):
    """The examples of an iterable, fetched when they are needed and kept on disk.

    Its length is how many examples were fetched so far; `available(stop)` fetches more. The files are removed with the
    stream. Memory does not grow.

    Parameters
    ----------
    examples
        What gives (x, y), one example after the other or, if `batched`, several at once: xs and ys. x is an array, a
        tensor, a list of numbers, or a dict of numbers as River has it, whose keys are those of the first example. Where
        the first dict holds something else, text or dates, it decides how all are read, as for a live learner
        (`Schema.from_rows`).
    batched
        Whether each item holds several examples, as those of a `torch.utils.data.DataLoader` do.

    Examples
    --------
    >>> stream = SpooledStream(((float(i), -1.0), i % 3) for i in range(1000))
    >>> stream.available(10), len(stream)
    (10, 10)
    >>> stream.read(8, 10).y
    [2, 0]
    """

    missing = True  # nobody knows what is still to come

    def __init__(self, examples: Iterable[Any], *, batched: bool = False) -> None:
        self._scratch = ScratchDirectory()
        self._journal = Journal(self._scratch.path, write=True, scratch=True)
        self._names: list[str] = []  # of the features, where x is a dict
        self._batches = self._unpacked(examples) if batched else self._collected(examples)
        self._wanted = 0  # how many examples shall be there

    def __len__(self) -> int:
        return len(self._journal)

    def available(self, stop: int) -> int:
        self._wanted = stop
        while len(self._journal) < stop:
            batch = next(self._batches, None)
            if batch is None:
                break
            self._journal.append(*batch)
        return len(self._journal)

    def _read(self, start: int, stop: int) -> Chunk:
        return self._journal.read(start, stop)

    def fingerprint(self) -> str:
        """That of the examples fetched so far."""
        return self._journal.fingerprint()

    @property
    def feature_names(self) -> list[str] | None:
        """The keys of x, where it is a dict."""
        return self._names or (None if self.schema is None else self.schema.feature_names)

    def _collected(self, examples: Iterable[Any]) -> Iterator[tuple[np.ndarray, list[Hashable]]]:
        """Single examples, collected into batches as large as needed."""
        xs: list[np.ndarray] = []
        ys: list[Hashable] = []
        for item in examples:
            position = len(self) + len(ys)
            x, y = _pair(item, position, "x and y")
            xs.append(self._array(x, position)[None])
            ys.append(_label(y, position))
            self._check_shape(xs[-1], xs[0], position)
            if len(self) + len(ys) >= self._wanted:
                yield np.concatenate(xs), ys
                xs, ys = [], []
        if ys:
            yield np.concatenate(xs), ys

    def _unpacked(self, batches: Iterable[Any]) -> Iterator[tuple[np.ndarray, list[Hashable]]]:
        for item in batches:
            position = len(self)
            xs, ys = _pair(item, position, "a batch of x and one of y")
            x = self._array(xs, position)
            y = [_label(label, position + i) for i, label in enumerate(_listed(ys))]
            if len(x) != len(y):
                raise BadInput(f"example {position}: the batch has {len(x)} inputs and {len(y)} labels")
            if len(y):
                self._check_shape(x, x, position)
                yield x, y

    def _check_shape(self, x: np.ndarray, first: np.ndarray, position: int) -> None:
        """All examples have the shape of the first one, which is a vector or an image."""
        shape = self._journal.shape or first.shape[1:]
        if x.shape[1:] != shape:
            raise BadInput(f"example {position}: x has shape {x.shape[1:]}, but the first example had shape {shape}")
        if not 1 <= len(shape) <= 3 or 0 in shape:
            raise BadInput(f"example {position}: x has shape {shape}, expected a vector or an image")

    def _array(self, x: Any, position: int) -> np.ndarray:
        if isinstance(x, Mapping):
            if self.schema is None and not self._names and not all(map(_is_number, x.values())):
                from prequential.streams.formats.schema import Schema

                self.schema = Schema.from_rows([x])
            if self.schema is not None:
                row: np.ndarray = self.schema.encode([x], position)[0]
                return row
            x = self._values(x, position)
        try:
            array = np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)
            if array.dtype.kind == "O":
                array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise BadInput(
                f"example {position}: x is {short(x)}, expected numbers ({one_line(error, 80)}); "
                "TableStream reads data frames with text and dates"
            ) from None
        if array.dtype.kind not in "fiub":
            raise BadInput(f"example {position}: x is {short(x)}, expected numbers; TableStream reads text and dates")
        return array

    def _values(self, x: Mapping[Any, Any], position: int) -> list[Any]:
        """The values of a dict, in the order of the first one; those that are not there are NaN."""
        names = [str(name) for name in x]
        self._names = self._names or names
        unknown = [name for name in names if name not in self._names]
        if unknown:
            raise BadInput(
                f"example {position}: x has the feature {short(unknown[0])}, which the first example does not have; "
                f"its {len(self._names)} features are {short(self._names)}"
            )
        given = {str(name): value for name, value in x.items()}
        return [given.get(name, np.nan) for name in self._names]


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float, np.number, np.bool_))


def _pair(item: Any, position: int, expected: str) -> tuple[Any, Any]:
    if not isinstance(item, Sequence) or isinstance(item, (str, bytes)) or len(item) != 2:
        kind = f"{type(item).__name__} of {len(item)}" if hasattr(item, "__len__") else type(item).__name__
        raise BadInput(f"example {position}: got a {kind}, expected {expected}")
    return item[0], item[1]


def _listed(labels: Any) -> list[Any]:
    return labels.tolist() if hasattr(labels, "tolist") else list(labels)


def _label(label: Any, position: int) -> Hashable:
    """A label as Python has it: tensors and NumPy scalars are the numbers they hold."""
    if hasattr(label, "item") and getattr(label, "ndim", 0) == 0:
        label = label.item()
    if not isinstance(label, Hashable):
        raise BadInput(f"example {position}: the label is {short(label)}, expected something hashable")
    return label
