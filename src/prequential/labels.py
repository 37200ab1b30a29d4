"""The labels a learner has seen, in the order it saw them, and the class id of each."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import uuid
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from prequential.errors import BadCheckpoint, BadInput, BadSetting, short

LONGEST = 65_536  # bytes of a label's text on disk
DEEPEST = 32  # tuples in tuples
FIRST_CAPACITY = 8  # class ids of a learner whose number of labels is not given, before it grows
MOST_FRACTIONS = 20  # different labels such as 0.25: with more of them the label is a quantity, and not a class


class Labels:
    """Gives each label a class id 0, 1, 2, ... in the order of first appearance; an id never changes.

    Labels that are equal are one label, as keys of a dict are: 1, 1.0 and True share a class id, and the first of them
    names it.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves where they are known beforehand. None: any number; the
        capacity grows with the labels, so that there is always a class id for one more (`capacity_for`).

    Examples
    --------
    >>> labels = Labels()
    >>> labels.assign(["cat", "dog", "cat"])
    [0, 1, 0]
    >>> labels.known, labels.capacity
    (['cat', 'dog'], 8)
    >>> Labels(2).assign(["cat", "dog", "fox"])
    Traceback (most recent call last):
    prequential.errors.BadInput: label 'fox' is new, but all 2 classes are taken
    """

    def __init__(self, classes: int | Sequence[Hashable] | None = None) -> None:
        self.open_ended = classes is None
        if classes is None:
            classes = FIRST_CAPACITY
        given = [] if isinstance(classes, (int, np.integer)) else [_plain(label) for label in classes]
        self.capacity = int(classes) if isinstance(classes, (int, np.integer)) else len(given)
        if self.capacity < 1:
            raise BadSetting(f"classes ({self.capacity}) must be at least 1")
        self._class_ids: dict[Hashable, int] = {}
        self._names: list[Hashable] = []
        self._fractions = 0  # labels such as 0.25
        self.assign(given)

    def __len__(self) -> int:
        return len(self._class_ids)

    def __getitem__(self, class_id: int) -> Hashable:
        return self._names[class_id]

    def __contains__(self, label: Hashable) -> bool:
        return _plain(label) in self._class_ids

    @property
    def classes(self) -> int | None:
        """How many labels there can be; None: any number."""
        return None if self.open_ended else self.capacity

    def capacity_for(self, count: int) -> int:
        """How many class ids a learner has that has seen so many labels.

        It depends on that number alone, so learners that got the same examples in other sizes have grown alike.

        >>> [Labels().capacity_for(count) for count in (0, 7, 8, 15, 16)]
        [8, 8, 16, 16, 32]
        """
        if not self.open_ended:
            return self.capacity
        capacity = FIRST_CAPACITY
        while capacity <= count:
            capacity *= 2
        return capacity

    @property
    def known(self) -> list[Hashable]:
        """The labels seen so far; the index in this list is the class id."""
        return list(self._names)

    def first(self, count: int) -> list[Hashable]:
        """The first so many labels; not to be changed."""
        return self._names if count == len(self._names) else self._names[:count]

    def class_id(self, label: Hashable) -> int | None:
        """The class id of a label, or None if it has not been seen."""
        return self._class_ids.get(_plain(label))

    def check(self, labels: Iterable[Hashable], first: int = 0) -> None:
        """Raises the sentence a user needs if these labels cannot all be taken; changes nothing.

        A label is taken only if it comes back from disk as the same value of the same type.
        """
        new: dict[Hashable, None] = {}
        fractions = self._fractions
        for i, raw in enumerate(labels):
            try:
                label = _plain(raw)
                known = label in self._class_ids
            except Exception:  # TypeError, or whatever a label's own code raises
                raise BadInput(
                    f"example {first + i}: label {short(raw)} is a {type(raw).__name__}, not a hashable value"
                ) from None
            if known or label in new:
                continue
            if not _equals_itself(label):
                raise BadInput(f"example {first + i}: label is {short(raw)}, which is not equal to itself")
            try:
                label_text(label)
            except BadInput as error:
                raise BadInput(f"example {first + i}: {error}") from None
            new[label] = None
            fractions += _is_fraction(label)
            if self.open_ended and fractions > MOST_FRACTIONS:
                raise BadInput(
                    f"example {first + i}: label {short(raw)} is the {fractions}st different number with a fraction: the "
                    "label is a quantity, but this learner predicts classes; put the label into bins, or give the number "
                    "of classes (--classes on the command line) if every value is one"
                )
            if not self.open_ended and len(self) + len(new) > self.capacity:
                raise BadInput(
                    f"example {first + i}: label {short(raw)} is new, but all {self.capacity} classes are taken; "
                    f"start anew with classes={self.capacity + 1} or more (--classes {self.capacity + 1} on the "
                    "command line)"
                )

    def assign(self, labels: Iterable[Hashable]) -> list[int]:
        """The class ids of these labels; labels seen for the first time get the next free ones."""
        class_ids = []
        for raw in labels:
            label = _plain(raw)
            class_id = self._class_ids.get(label)
            if class_id is None:
                if not self.open_ended and len(self._class_ids) >= self.capacity:
                    raise BadInput(f"label {short(raw)} is new, but all {self.capacity} classes are taken")
                class_id = self._class_ids[label] = len(self._class_ids)
                self._names.append(label)
                self._fractions += _is_fraction(label)
            class_ids.append(class_id)
        return class_ids

    def state_dict(self) -> dict[str, Any]:
        known = [encode(label) for label in self._names]
        return {"capacity": self.capacity, "known": known, "open_ended": self.open_ended}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        names = [decode(code) for code in state["known"]]
        self.capacity, self._names = int(state["capacity"]), names
        self.open_ended = bool(state.get("open_ended", False))  # in an earlier version the number was always given
        self._class_ids = {label: class_id for class_id, label in enumerate(names)}
        self._fractions = sum(map(_is_fraction, names))

    def forget(self, known: int) -> None:
        """Takes back all but the first `known` labels."""
        for label in self._names[known:]:
            del self._class_ids[label]
            self._fractions -= _is_fraction(label)
        del self._names[known:]


def num_seen_before(class_ids: np.ndarray, num_seen: int) -> np.ndarray:
    """How many labels had been seen before each of consecutive examples (n,), if so many before the first.

    >>> num_seen_before(np.array([0, 0, 2, 1]), 2).tolist()
    [2, 2, 2, 3]
    """
    if len(class_ids) == 1:
        return np.array([num_seen])
    return np.maximum.accumulate(np.concatenate([[num_seen], class_ids[:-1] + 1]))


# Labels that have not come yet. All of them together weigh as much as one label that has come would by default, before
# anything is known of it: with a weight of its own each, they would outweigh the few that came wherever the number of
# classes is generous. So a learner computes with the labels it has seen and one more, which stands for all others. That
# one's mass is spread equally over the free class ids, of which there may be few or many without any other change.


def log_class_prior(num_seen: np.ndarray, num_classes: int) -> np.ndarray | None:
    """Unnormalized log-prior (n, K) of the labels, when so many (n,) had been seen; None: all had been.

    0 for a label that was seen; all others together weigh as much as one of these.
    """
    return None if num_seen[0] >= num_classes else _log_weights(num_seen, num_classes).astype(np.float32)


def _log_weights(num_seen: np.ndarray, num_classes: int) -> np.ndarray:
    unseen = np.arange(num_classes) >= num_seen[:, None]
    return np.where(unseen, -np.log(np.maximum(num_classes - num_seen, 1))[:, None], 0.0)


def spread_unseen(log_p: np.ndarray, num_seen: np.ndarray, capacity: int) -> np.ndarray:
    """Log-probabilities (n, capacity) from those in which a column stands for all labels not seen yet.

    Row i of `log_p` (n, columns) has one column for each of the `num_seen[i]` labels and one for the others; what comes
    after that is not used. Where all labels of the capacity have been seen, there is no such column.

    >>> np.exp(spread_unseen(np.log([[0.5, 0.3, 0.2]]), np.array([2]), 4)).round(2).tolist()
    [[0.5, 0.3, 0.1, 0.1]]
    """
    n, columns = log_p.shape
    if columns == capacity and num_seen[0] >= capacity - 1:
        return log_p
    column = np.arange(capacity)
    wide = log_p[np.arange(n)[:, None], np.minimum(column, num_seen[:, None])]
    free = np.log(np.maximum(capacity - num_seen, 1))[:, None]
    return np.asarray(np.where(column < num_seen[:, None], wide, wide - free))


def widen(log_p: np.ndarray, num_seen: np.ndarray, capacity: int) -> np.ndarray:
    """Log-probabilities (n, capacity) from those of a smaller capacity; what all free class ids share stays the same.

    >>> np.exp(widen(np.log([[0.5, 0.25, 0.25]]), np.array([1]), 5)).round(3).tolist()
    [[0.5, 0.125, 0.125, 0.125, 0.125]]
    """
    rows, free = np.arange(len(log_p)), log_p.shape[1] - num_seen
    unseen = np.where(np.arange(log_p.shape[1]) >= num_seen[:, None], log_p, -np.inf)
    narrow = np.concatenate([log_p, np.full((len(log_p), 1), -np.inf)], 1)  # one more, where none was free
    narrow[rows, num_seen] = np.where(free > 0, np.logaddexp.reduce(unseen, axis=1), -np.inf)
    return spread_unseen(narrow, num_seen, capacity)


def join_rows(parts: list[np.ndarray], num_seen: np.ndarray, capacity: int) -> np.ndarray:
    """Log-probabilities (n, capacity) of parts, some of which were predicted when there were fewer class ids."""
    if parts[0].shape[1] == parts[-1].shape[1]:
        return np.concatenate(parts)
    starts = np.cumsum([0, *map(len, parts)])
    return np.concatenate(
        [widen(part, num_seen[i : i + len(part)], capacity) for part, i in zip(parts, starts, strict=False)]
    )


def weigh_unseen(log_p: np.ndarray, num_seen: np.ndarray) -> np.ndarray:
    """Log-probabilities (n, capacity) of a model in which every class id, free or not, weighs as one: now as agreed.

    >>> np.exp(weigh_unseen(np.log([[0.25, 0.25, 0.25, 0.25]]), np.array([1]))).round(3).tolist()
    [[0.5, 0.167, 0.167, 0.167]]
    """
    if num_seen[0] >= log_p.shape[1] - 1:  # at most one is free
        return log_p
    weighed = log_p + _log_weights(num_seen, log_p.shape[1])
    return np.asarray(weighed - np.logaddexp.reduce(weighed, axis=1, keepdims=True), log_p.dtype)


def _plain(label: Any) -> Any:
    """NumPy scalars as the Python values they equal, so that 3 and np.int64(3) are one label everywhere."""
    if not isinstance(label, np.generic):
        return label
    if isinstance(label, np.datetime64):  # finer than microseconds, Python has no value for it
        micro = label.astype("datetime64[us]")
        if micro == label and np.datetime_data(label.dtype)[0] in ("ns", "ps", "fs", "as"):
            label = micro
        value = label.item()
        return label if isinstance(value, int) or value is None else value
    if isinstance(label, np.timedelta64):
        value = label.item()
        return label if isinstance(value, int) or value is None else value
    return label.item()


def _is_fraction(label: Any) -> bool:
    return type(label) is float and not label.is_integer()


def _equals_itself(label: Any) -> bool:
    try:
        return bool(label == label)
    except Exception:  # whatever a label's own code raises
        return False


def label_text(label: Any) -> str:
    """A label as JSON text, which `read_label` turns into a label of the same type and value; others are refused."""
    label = _plain(label)
    text = json.dumps(encode(label))
    if len(text) > LONGEST:
        raise BadInput(f"label {short(label)} takes {len(text)} bytes on disk, expected at most {LONGEST}")
    back = read_label(text)
    if type(back) is not type(label) or back != label:
        raise BadInput(f"label {short(label)} would come back from disk as {short(back)}")
    return text


def read_label(text: str | bytes) -> Any:
    """The label of which this is the text."""
    try:
        return decode(json.loads(text))
    except BadCheckpoint:
        raise
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise BadCheckpoint(f"{text[:40]!r} is not a label: {str(error)[:80]}") from None


def encode(label: Any, depth: int = 0) -> Any:
    """A label as JSON. Plain JSON values stay as they are; the others are tagged.

    Types are taken exactly: a subclass (an enum, a named tuple, a pandas time) would come back as something else.
    """
    label = _plain(label)
    kind = type(label)
    if label is None or kind in (bool, float, str):
        return label
    if kind is int:  # beyond 64 bits other readers lose digits, and Python limits how many it prints
        return label if -(2**63) <= label < 2**63 else {"int": hex(label)}
    if kind is bytes:
        return {"bytes": base64.b64encode(label).decode("ascii")}
    if kind in (tuple, frozenset):
        if depth >= DEEPEST:
            raise BadInput(f"label {short(label)} is nested more than {DEEPEST} deep")
        parts = [encode(part, depth + 1) for part in label]
        return {"tuple": parts} if kind is tuple else {"frozenset": sorted(parts, key=repr)}
    if kind in (datetime.datetime, datetime.date, datetime.time):
        return {kind.__name__: label.isoformat()}
    if kind is datetime.timedelta:
        return {"timedelta": [label.days, label.seconds, label.microseconds]}
    if kind in (uuid.UUID, decimal.Decimal):
        return {kind.__name__: str(label)}
    raise BadInput(
        f"label {short(label)} of type {kind.__name__} cannot be kept on disk; "
        "use numbers, text, bytes, dates, UUIDs, or tuples and frozensets of them"
    )


def decode(code: Any) -> Any:
    """The label that `encode` turned into this JSON."""
    if not isinstance(code, dict):
        if isinstance(code, list):
            raise BadCheckpoint(f"{str(code)[:40]!r} is not a label")
        return code
    if len(code) != 1:
        raise BadCheckpoint(f"a label has the parts {str(sorted(code))[:60]}, expected one")
    ((kind, value),) = code.items()
    match kind:
        case "bytes":
            return base64.b64decode(value)
        case "int":
            return int(value, 16)
        case "tuple":
            return tuple(decode(part) for part in value)
        case "frozenset":
            return frozenset(decode(part) for part in value)
        case "datetime":
            return datetime.datetime.fromisoformat(value)
        case "date":
            return datetime.date.fromisoformat(value)
        case "time":
            return datetime.time.fromisoformat(value)
        case "timedelta":
            return datetime.timedelta(*value)
        case "UUID":
            return uuid.UUID(value)
        case "Decimal":
            return decimal.Decimal(value)
    raise BadCheckpoint(f"unknown kind of label {kind[:40]!r} in the checkpoint")
