"""Labels in JSON: texts, whole numbers, numbers and true/false. In replies a label is named by its text."""

from __future__ import annotations

import json
import math
from typing import Any

from prequential.errors import short
from prequential.learners.base import OnlineLearner
from prequential.serve.failures import Failure

LONGEST = 1000  # characters


def label_name(label: Any) -> str:
    """What a label is called among probabilities: a text is itself, all else is its JSON.

    >>> label_name("spam"), label_name(3), label_name(True)
    ('spam', '3', 'true')
    """
    return label if isinstance(label, str) else json.dumps(label)


def check_label(y: Any, field: str = "y") -> None:
    """Refuses what is no label in JSON."""
    if y is None:
        raise Failure(422, f"{field} is missing or null, expected a label: a text, a number, true or false", field)
    if not isinstance(y, (str, int, float)):
        raise Failure(422, f"{field} is {short(y)}, expected a label: a text, a number, true or false", field)
    if isinstance(y, str) and len(y) > LONGEST:
        raise Failure(422, f"{field} has {len(y)} characters, expected at most {LONGEST}", field)
    if isinstance(y, float) and not math.isfinite(y):
        raise Failure(422, f"{field} is {y}, expected a finite number", field)


class LabelNames:
    """The labels of a tenant by their names, so that "1" and 1, or 1 and true, do not get mixed up.

    Parameters
    ----------
    learner
        The learner.
    """

    def __init__(self, learner: OnlineLearner) -> None:
        self._learner = learner
        self._kinds: dict[str, type] = {}
        self._names: list[str] = []

    @property
    def names(self) -> list[str]:
        """The names of the labels seen so far, in their order."""
        labels = self._learner.labels
        if len(labels) < len(self._names):  # some were taken back
            self._names, self._kinds = [], {}
        for class_id in range(len(self._names), len(labels)):
            self._names.append(label_name(labels[class_id]))
            self._kinds[self._names[-1]] = type(labels[class_id])
        return self._names

    def name(self, label: Any) -> str:
        """The name of a label that was seen; equal ones have that of the first."""
        class_id = self._learner.labels.class_id(label)
        return label_name(label) if class_id is None else self.names[class_id]

    def check(self, y: Any, field: str = "y") -> str:
        """Refuses a label that would be confused with another; its name."""
        check_label(y, field)
        labels, name = self._learner.labels, label_name(y)
        kind = self._kinds.get(name) if len(self.names) else None
        class_id = None if kind is not None or isinstance(y, str) else labels.class_id(y)
        if class_id is not None:
            first = labels[class_id]
            raise Failure(422, f"{field} is {name}, but the same label came as {label_name(first)} before", field)
        if kind is not None and kind is not type(y):
            raise Failure(
                422, f"{field} is {short(y)} of type {type(y).__name__}, but came as a {kind.__name__} before", field
            )
        return name
