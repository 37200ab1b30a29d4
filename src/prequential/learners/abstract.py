"""What every learner has, what a subclass writes, and how examples are checked before anything changes."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from prequential.errors import BadInput
from prequential.labels import Labels, join_rows, num_seen_before
from prequential.learners.asked import Asked
from prequential.learners.gate import as_examples, as_labels, check_float32, check_labels, check_shape
from prequential.learners.outliers import Hint
from prequential.learners.row_reader import RowReader
from prequential.learners.transaction import Guard
from prequential.memory_limits import check_fits, ran_out
from prequential.streams.stream import Stream


class AbstractLearner(ABC):
    """The attributes of a learner and what it computes; users see its subclass `OnlineLearner`.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    missing
        Whether features may be NaN, meaning "not measured".
    """

    # names for `make_learner`, each with the options it stands for; by default the class's own name
    names: ClassVar[dict[str, dict[str, Any]]] = {}
    stride: int = 1  # how many examples `observe` processes best at once
    standardize: bool | None = None  # False: features are used as they are, which float32 must hold
    small_state = False  # whether copying the state before every call costs next to nothing

    def __init__(self, classes: int | Sequence[Hashable] | None = None, *, missing: bool = False) -> None:
        self.labels = Labels(classes)
        check_fits(32.0 * self.labels.capacity, f"classes ({self.labels.capacity})")
        self.missing = missing
        self.position = 0  # how many examples it has learned
        self.shape: tuple[int, ...] | None = None  # of one x, as in the first example
        self._rows = RowReader()
        self._guard = Guard()
        self._changing = False  # inside a call: whether there is something to undo
        self.num_seen = len(self.labels)  # labels; inside a call, before the example that comes next
        self._is_snapshot = False  # whether it only predicts
        # inside a call: how many labels arrived between the prediction of each example and its own; None: none did
        self._lags: np.ndarray | None = None
        self.asked = Asked()  # what it was asked by id, and how that went
        # inside a call, of each example: the id by which its label came, and where it came from; None: of none
        self._ids: Sequence[str] | None = None
        self._origins: Sequence[str] | None = None

    @property
    def schema(self) -> Any:
        """How rows with named fields become x: a `Schema`; None as long as there were none."""
        return self._rows.schema

    @schema.setter
    def schema(self, schema: Any) -> None:
        with self._guard.changing(), self._guard.inside():
            self._rows.give(schema, self.shape)

    def read_like(self, stream: Stream) -> None:
        """Reads rows with named fields as this stream does, whose examples come next; no-op for streams without any."""
        if stream.schema is not None:
            with self._guard.changing(), self._guard.inside():
                self._rows.follow(stream.schema, self.position, self.shape)

    # What a subclass writes. x is checked, (n, *shape); class_ids are those of the labels, (n,) int64.

    def config(self) -> dict[str, Any]:
        """The arguments that build this learner anew, as JSON values; by default its attributes of the same names."""
        names = [name for name in inspect.signature(type(self)).parameters if name != "classes"]
        return {"classes": self.labels.classes, **{name: getattr(self, name) for name in names}}

    def _prepare(self, x: np.ndarray) -> None:
        """Makes what depends on the shape of x, before the first example is learned; may refuse it."""

    @abstractmethod
    def _predict(self, x: np.ndarray) -> np.ndarray:
        """Log-probabilities (n, capacity), each example on its own; must not change the learner."""

    def _predict_late(self, x: np.ndarray, waiting: np.ndarray, since: int) -> np.ndarray:
        """The same for examples asked one after another behind others, all without labels; by default no different.

        The last `since` of those others were asked after the newest label arrived.
        """
        return self._predict(x)

    @abstractmethod
    def _learn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        """Learns from the examples in order."""

    def _observe(self, x: np.ndarray, class_ids: np.ndarray) -> np.ndarray:
        """Log-probabilities (n, capacity), row i predicted after learning the rows before it; learns them all."""
        rows = []
        for i in range(len(class_ids)):
            rows.append(self._predict(x[i : i + 1]))
            self._learn(x[i : i + 1], class_ids[i : i + 1])
            self._count_labels(class_ids[i : i + 1])
        return np.concatenate(rows)

    def _observe_late(self, rows: np.ndarray, class_ids: np.ndarray, since: int) -> np.ndarray:
        """Predicts each of the last n rows, and then learns the next of the first n, which have these labels."""
        asked, waiting = rows[len(rows) - len(class_ids) :], len(rows) - len(class_ids)
        predicted, num_seen = [], num_seen_before(class_ids, self.num_seen)
        for i in range(len(class_ids)):
            predicted.append(self._predict_late(asked[i : i + 1], rows[i : i + waiting], 0 if i else since))
            self._learn(rows[i : i + 1], class_ids[i : i + 1])
            self._count_labels(class_ids[i : i + 1])
        return join_rows(predicted, num_seen, self.labels.capacity)

    def _count_labels(self, class_ids: np.ndarray) -> None:
        """These examples have been learned: what is predicted next knows their labels."""
        self.num_seen = max(self.num_seen, largest(class_ids) + 1)

    def _grow(self, capacity: int) -> None:
        """Makes room for this many class ids: the free ones are all alike. Does it, or where something is raised, not.

        Probabilities of labels that were seen must not change by it, and neither may that of all others together.
        """

    @abstractmethod
    def _state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load_state_dict(self, state: dict[str, Any]) -> None: ...

    def _hints(self) -> list[Hint]:
        """Suspicious values in the features. By default none are looked for."""
        return []

    # Checking, before anything changes.

    def _checked(self, xs: Any) -> np.ndarray:
        """xs as an array, after all checks of examples."""
        rows = self._rows.find(xs)
        missing = self._takes_missing(rows=rows is not None)
        if rows is not None:
            xs = self._rows.encoded(rows, first=self.position, shape=self.shape)
        return self._check(as_examples(xs, self.position, missing=missing, names=self._names))

    def _checked_one(self, x: Any) -> np.ndarray:
        """One example as an array (1, *shape), after all checks."""
        rows = self._rows.find(x, one=True)
        return self._checked(rows) if rows is not None else self._check(self._one_array(x))

    def _check(self, x: np.ndarray) -> np.ndarray:
        """The same examples, as `as_examples` gives them, if they are like those before."""
        if len(x) == 0:
            raise BadInput(f"example {self.position}: got 0 inputs and 0 labels")
        check_shape(x, self.shape, self.position)
        if self.standardize is False:
            check_float32(x, self.position)
        return x

    @property
    def _relearning(self) -> bool:
        """Whether it is learning its own journal again, in which version 0.1 may have kept the label None."""
        return False

    def _make_ready(self, x: np.ndarray) -> None:
        """`_prepare`, where too little memory gives a sentence as well."""
        try:
            self._prepare(x)
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            shape = x.shape[1:]
            raise BadInput(
                f"example {self.position}: x has shape {shape}, for which there is not enough memory"
            ) from None

    def _takes_missing(self, *, rows: bool = False) -> bool:
        """Whether x may hold NaN: where the user says so, and in rows, if the learner can be made to take it."""
        if self.missing or self._relearning:
            return True
        return (rows or self.schema is not None or self._rows.decides) and self._fills_missing

    @property
    def _fills_missing(self) -> bool:
        """Whether something takes the place of missing values."""
        return self.standardize is not False and _knows_missing(type(self))

    @property
    def _names(self) -> list[str] | None:
        """The names of the features, where they have some."""
        return None if self.schema is None else self.schema.feature_names

    def _one(self, x: Any) -> Any:
        """One example as several: rows with named fields, or an array that `as_examples` has checked."""
        rows = self._rows.find(x, one=True)
        return rows if rows is not None else self._one_array(x)

    def _one_array(self, x: Any) -> np.ndarray:
        return as_examples(x, self.position, missing=self._takes_missing(), one=True, names=self._names)

    def _admitted(self, xs: Any, ys: Any, *, one: bool) -> tuple[np.ndarray, list[Hashable]]:
        """Examples and labels to learn from, converted and checked; `one` is what `_one` gives."""
        if one and type(xs) is np.ndarray:
            x = xs
        else:
            xs = self._rows.learnable(xs, first=self.position, shape=self.shape)
            x = as_examples(xs, self.position, missing=self._takes_missing(), names=self._names)
        y = ys if one else as_labels(ys, len(x), self.position)
        x = self._check(x)
        check_labels(self.labels, y, self.position, allow_none=self._relearning)
        return x, y


def largest(class_ids: np.ndarray) -> int:
    """The largest of some class ids; of one alone without NumPy, which takes ten times as long."""
    return int(class_ids[0]) if len(class_ids) == 1 else int(class_ids.max())


@lru_cache
def _knows_missing(kind: type) -> bool:
    """Whether learners of a class can be made to take missing values."""
    return "missing" in inspect.signature(kind).parameters
