"""Metrics beside the scores: any callable, and those of River, updated with predictions made before the label."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from prequential.errors import BadInput, BadSetting, one_line, short
from prequential.evaluation.metric_state import NotStorable, decode, encode
from prequential.imports import import_object, is_object_name
from prequential.specs import parse_call

if TYPE_CHECKING:
    from prequential.learners.charges import Charges


class Mean:
    """The mean of a function of the label and the prediction, as a metric.

    >>> metric = Mean(lambda y_true, y_pred: float(y_true == y_pred))
    >>> metric.update("a", "a")
    >>> metric.update("a", "b")
    >>> metric.get()
    0.5
    """

    def __init__(self, function: Callable[[Any, Any], float]) -> None:
        self.function = function
        self.requires_labels = getattr(function, "requires_labels", True)
        self.total = 0.0
        self.count = 0

    def update(self, y_true: Hashable, y_pred: Any) -> None:
        self.total += float(self.function(y_true, y_pred))
        self.count += 1

    def get(self) -> float:
        return self.total / self.count if self.count else math.nan


class Metrics:
    """Metrics that are updated with every example, none left out.

    Parameters
    ----------
    metrics
        Each one a metric of River or another object with `update(y_true, y_pred)` and `get()`, or a callable of y_true
        and y_pred that gives a number, of which the mean is taken. y_pred is the most probable label seen so far, None
        before there is one. A metric whose `requires_labels` is False (River's CrossEntropy and LogLoss, or a function
        with this attribute) gets a dict of probabilities instead.

    Examples
    --------
    >>> from prequential import digits, evaluate
    >>> from prequential.baselines import Majority
    >>> evaluate(digits(tasks=1), Majority(10), metrics=[lambda y_true, y_pred: y_true == y_pred]).metrics.values()
    {'<lambda>': 0.09}
    """

    def __init__(self, metrics: Iterable[Any] = ()) -> None:
        self._metrics: dict[str, Any] = {}
        self._new: dict[str, Any] = {}  # the same ones without any example, whose state is loaded into
        self.count = 0  # examples so far
        for given in metrics:
            metric = _as_metric(given)
            name = _name(given)
            number = 2
            while name in self._metrics:
                name, number = f"{_name(given)}-{number}", number + 1
            self._metrics[name] = metric
            self._new[name] = _copied(metric)

    def __len__(self) -> int:
        return len(self._metrics)

    def update(self, labels: Sequence[Hashable], charges: Charges, known_labels: Sequence[Hashable]) -> None:
        """Adds consecutive examples.

        Parameters
        ----------
        labels
            Their labels.
        charges
            What was predicted for them before these labels were known.
        known_labels
            The label of each class id.
        """
        if not self._metrics:
            return
        predicted = [None if k < 0 else known_labels[k] for k in charges.predicted.tolist()]
        for i, (y_true, y_pred) in enumerate(zip(labels, predicted, strict=True)):
            probabilities = None
            for name, metric in self._metrics.items():
                if getattr(metric, "requires_labels", True):
                    self._update(name, self.count, y_true, y_pred)
                    continue
                if probabilities is None:
                    probabilities = _probabilities(name, charges, i, y_true, known_labels)
                self._update(name, self.count, y_true, dict(probabilities))
            self.count += 1

    def _update(self, name: str, position: int, y_true: Hashable, y_pred: Any) -> None:
        try:
            self._metrics[name].update(y_true, y_pred)
        except Exception as error:  # whatever the user's own code raises
            raise BadInput(
                f"example {position}: metric {name} failed for label {short(y_true)} and prediction {short(y_pred)}: "
                f"{type(error).__name__}: {one_line(error, 100)}"
            ) from error

    def values(self) -> dict[str, float | str | None]:
        """What each metric is now: a number, None where that is not finite, or a text where it is none."""
        return {name: _value(metric) for name, metric in self._metrics.items()}

    def __repr__(self) -> str:
        return ", ".join(
            f"{name} {value:.4f}" if isinstance(value, float) else name for name, value in self.values().items()
        )

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """The state of each metric as JSON values and arrays; None for one whose state cannot be stored."""
        return {"count": self.count, "states": {name: self._state(name) for name in self._metrics}}

    def _state(self, name: str) -> Any:
        try:
            state = encode(self._metrics[name])
            back = encode(decode(_copied(self._new[name]), state))
        except NotStorable:
            return None
        return state if _same(state, back) else None

    def load_state_dict(self, state: dict[str, Any] | None) -> list[str]:
        """Goes on from where `state_dict()` was taken; the names of the metrics whose state is not in it."""
        states: dict[str, Any] = {} if state is None else state["states"]
        unknown = []
        for name in self._metrics:
            fresh = _copied(self._new[name])
            try:
                if states.get(name) is None:
                    raise NotStorable(name)
                self._metrics[name] = decode(fresh, states[name])
            except NotStorable:
                self._metrics[name] = _copied(self._new[name])
                unknown.append(name)
        self.count = 0 if state is None else int(state["count"])
        return unknown

    def recompute(
        self, names: Sequence[str], rows: Iterable[tuple[str, str | None]], known_labels: Sequence[Hashable]
    ) -> list[str]:
        """Computes metrics again from records; sentences on those that cannot be.

        Parameters
        ----------
        names
            The metrics.
        rows
            The texts of the label and of the prediction of every example so far.
        known_labels
            The label of each class id, which tells what a text means.
        """
        sentences = [
            f"metric {name} needs probabilities, which records do not hold, and its state cannot be stored: "
            "it begins anew here"
            for name in names
            if not getattr(self._metrics[name], "requires_labels", True)
        ]
        again = [name for name in names if getattr(self._metrics[name], "requires_labels", True)]
        if again:
            meaning: dict[str | None, Hashable] = {None: None}
            for label in known_labels:
                meaning.setdefault(str(label), label)
            for position, (y_true, y_pred) in enumerate(rows):
                for name in again:
                    self._update(name, position, meaning.get(y_true, y_true), meaning.get(y_pred, y_pred))
        return sentences


def make_metric(spec: str) -> Any:
    """The metric that a text means: `my_module:my_metric`, `river.metrics:FBeta(beta=2)`.

    Metrics of River need no trust where the name was stored: they are the classes that `river.metrics` lists.

    >>> make_metric("river.metrics:FBeta(beta=2)")
    FBeta: 0.00%
    >>> make_metric("accuracy")
    Traceback (most recent call last):
    prequential.errors.BadSetting: metric 'accuracy' is no name of an object; expected one such as 'river.metrics:MacroF1'
    """
    name, options = parse_call(spec)
    if not is_object_name(name):
        raise BadSetting(f"metric {name!r} is no name of an object; expected one such as 'river.metrics:MacroF1'")
    found = _of_river(name) or import_object(name, "metric")
    if not isinstance(found, type) and not options:
        return found
    try:
        return found(**options)
    except Exception as error:  # whatever the user's own code raises
        raise BadSetting(f"metric {spec!r} cannot be made: {type(error).__name__}: {one_line(error, 120)}") from error


def _of_river(name: str) -> type | None:
    """A metric that comes with River, if that is what a name means."""
    module, _, attribute = name.partition(":")
    if module != "river.metrics":
        return None
    try:
        from river import metrics
    except ImportError:
        return None
    found = getattr(metrics, attribute, None) if attribute in metrics.__all__ else None
    return found if isinstance(found, type) and issubclass(found, metrics.base.Metric) else None


def _as_metric(given: Any) -> Any:
    made = given() if isinstance(given, type) else given
    if hasattr(made, "update") and hasattr(made, "get"):
        return made
    if callable(made):
        return Mean(made)
    raise BadSetting(
        f"metric {short(given)} is a {type(given).__name__}, expected an object with update(y_true, y_pred) and get(), "
        "as River has them, or a function of y_true and y_pred"
    )


def _name(given: Any) -> str:
    return str(getattr(given, "__name__", None) or type(given).__name__)


def _copied(metric: Any) -> Any:
    """A metric of its own with the same state; one that cannot be copied is used as it is."""
    try:
        return copy.deepcopy(metric)
    except Exception:  # whatever an object of the user's raises
        return metric


def _value(metric: Any) -> float | str | None:
    try:
        value = metric.get()
    except Exception:  # River's reports have no single number
        return one_line(repr(metric), 1000)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return one_line(value, 1000)
    return number if math.isfinite(number) else None


def _probabilities(
    name: str, charges: Charges, i: int, y_true: Hashable, known_labels: Sequence[Hashable]
) -> dict[Hashable, float]:
    """The probability of each label seen before example i, and of its own label where that is new."""
    if charges.log_proba is None or charges.num_seen is None:
        raise BadInput(f"metric {name} needs probabilities, which this learner does not give")
    num_seen = int(charges.num_seen[i])
    p = np.exp(charges.log_proba[i, :num_seen])
    found = dict(zip(known_labels[:num_seen], p.tolist(), strict=True))
    found.setdefault(y_true, float(np.exp(-charges.log_loss[i])))
    return found


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return (
            isinstance(a, np.ndarray)
            and isinstance(b, np.ndarray)
            and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        )
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and a == b
