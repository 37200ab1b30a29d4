"""The labels a learner has met, in the order it met them."""

from __future__ import annotations

import base64
import datetime
import decimal
import uuid
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from prequential.errors import BadCheckpoint, BadInput, BadSetting, short


class Labels:
    """Gives each label an output unit, first come first served; a unit once given never moves.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves where they are known beforehand.

    Examples
    --------
    >>> labels = Labels(3)
    >>> labels.assign(["cat", "dog", "cat"])
    [0, 1, 0]
    >>> labels.known
    ['cat', 'dog']
    """

    def __init__(self, classes: int | Sequence[Hashable]) -> None:
        given = [] if isinstance(classes, (int, np.integer)) else [_plain(label) for label in classes]
        self.capacity = int(classes) if isinstance(classes, (int, np.integer)) else len(given)
        if self.capacity < 1:
            raise BadSetting(f"classes ({self.capacity}) must be at least 1")
        self._slots: dict[Hashable, int] = {}
        self._names: list[Hashable] = []
        self.assign(given)

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, slot: int) -> Hashable:
        return self._names[slot]

    def __contains__(self, label: Hashable) -> bool:
        return _plain(label) in self._slots

    @property
    def known(self) -> list[Hashable]:
        """The labels met so far; the position in this list is the output unit."""
        return list(self._names)

    def slot(self, label: Hashable) -> int | None:
        """The output unit of a label, or None if it has not been met."""
        return self._slots.get(_plain(label))

    def check(self, labels: Iterable[Hashable], first: int = 0) -> None:
        """Raises the sentence a user needs if these labels cannot all be taken; changes nothing."""
        new: dict[Hashable, None] = {}
        for i, raw in enumerate(labels):
            try:
                label = _plain(raw)
                hash(label)
            except TypeError:
                raise BadInput(
                    f"example {first + i}: label {short(raw)} is a {type(raw).__name__}, not a hashable value"
                ) from None
            if label not in self._slots:
                try:
                    encode(label)
                except BadInput as error:
                    raise BadInput(f"example {first + i}: {error}") from None
            if label != label:
                raise BadInput(f"example {first + i}: label is {short(raw)}, which is not equal to itself")
            if label not in self._slots and label not in new:
                new[label] = None
                if len(self) + len(new) > self.capacity:
                    raise BadInput(
                        f"example {first + i}: label {short(raw)} is new, but all {self.capacity} classes are taken; "
                        f"start anew with classes={self.capacity + 1} or more (--classes {self.capacity + 1} on the "
                        "command line)"
                    )

    def assign(self, labels: Iterable[Hashable]) -> list[int]:
        """The output units of these labels, giving free ones to labels met for the first time."""
        slots = []
        for raw in labels:
            label = _plain(raw)
            slot = self._slots.get(label)
            if slot is None:
                if len(self._slots) >= self.capacity:
                    raise BadInput(f"label {short(raw)} is new, but all {self.capacity} classes are taken")
                slot = self._slots[label] = len(self._slots)
                self._names.append(label)
            slots.append(slot)
        return slots

    def state(self) -> dict[str, Any]:
        return {"capacity": self.capacity, "known": [encode(label) for label in self._names]}

    def load_state(self, state: dict[str, Any]) -> None:
        self.capacity = int(state["capacity"])
        self._names = [decode(code) for code in state["known"]]
        self._slots = {label: slot for slot, label in enumerate(self._names)}


def _plain(label: Any) -> Any:
    """NumPy scalars as the Python values they equal, so that 3 and np.int64(3) are one label everywhere."""
    return label.item() if isinstance(label, np.generic) else label


def encode(label: Any) -> Any:
    """A label as JSON. Plain JSON values stay as they are; the others are tagged."""
    label = _plain(label)
    if label is None or isinstance(label, (bool, int, float, str)):
        return label
    if isinstance(label, bytes):
        return {"bytes": base64.b64encode(label).decode("ascii")}
    if isinstance(label, tuple):
        return {"tuple": [encode(part) for part in label]}
    if isinstance(label, frozenset):
        return {"frozenset": sorted((encode(part) for part in label), key=repr)}
    if isinstance(label, (datetime.datetime, datetime.date)):
        return {type(label).__name__: label.isoformat()}
    if isinstance(label, (uuid.UUID, decimal.Decimal)):
        return {type(label).__name__: str(label)}
    raise BadInput(
        f"label {short(label)} of type {type(label).__name__} cannot be kept on disk; "
        "use numbers, text, bytes, dates, UUIDs, or tuples and frozensets of them"
    )


def decode(code: Any) -> Any:
    """The label that `encode` turned into this JSON."""
    if not isinstance(code, dict):
        return code
    ((kind, value),) = code.items()
    match kind:
        case "bytes":
            return base64.b64decode(value)
        case "tuple":
            return tuple(decode(part) for part in value)
        case "frozenset":
            return frozenset(decode(part) for part in value)
        case "datetime":
            return datetime.datetime.fromisoformat(value)
        case "UUID":
            return uuid.UUID(value)
        case "Decimal":
            return decimal.Decimal(value)
        case "date":
            return datetime.date.fromisoformat(value)
    raise BadCheckpoint(f"unknown kind of label {kind!r} in the checkpoint")
