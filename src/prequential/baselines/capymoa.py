"""Any classifier of CapyMOA, by name."""

from __future__ import annotations

import copy
import numbers
from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np

from prequential.baselines.fixed_classes import FixedClassesLearner
from prequential.baselines.libraries import build, check_buildable
from prequential.errors import BadSetting, MissingExtra, one_line


class CapyMOALearner(FixedClassesLearner):
    """A classifier of CapyMOA, which runs MOA in a Java machine, behind this package's interface.

    Its probabilities are mixed with a little of the uniform distribution, so that no label has probability 0. Where the
    number of classes is not given, it knows a few more than have come; when one comes for which there is no room, a
    model with twice as many is trained on the whole past.

    As with River's models, a loaded learner trains a new model on the whole past again: exact, but loading takes as
    long as the training had taken. Needs the extra "capymoa" and Java 17 or later.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    model
        Path of the class inside CapyMOA: "classifier.AdaptiveRandomForestClassifier", ...
    settings
        Its arguments: numbers, true and false. Words are refused, as MOA would run what they describe.
    smoothing
        Weight of the uniform distribution in the probabilities.
    standardize
        Whether features are standardized by past statistics first.
    missing
        Whether features may be NaN.
    seed
        Given to the model.
    """

    library = "capymoa"
    _names_classes = True

    def __init__(
        self,
        classes: int | Sequence[Hashable] | None = None,
        *,
        model: str = "classifier.AdaptiveRandomForestClassifier",
        settings: dict[str, Any] | None = None,
        smoothing: float = 0.01,
        standardize: bool = False,
        missing: bool = False,
        seed: int = 0,
    ) -> None:
        _start(model)
        for name, value in settings.items() if isinstance(settings, dict) else ():
            if not isinstance(value, numbers.Real):
                raise BadSetting(f"model {model!r}: {name} is {value!r}, expected a number, true or false")
        super().__init__(
            classes, model=model, settings=settings, batch=1, smoothing=smoothing, standardize=standardize,
            missing=missing, seed=seed,
        )  # fmt: skip
        check_buildable(self.library, self.path, self.settings, seed)

    def config(self) -> dict[str, Any]:
        return self._common()

    def _make(self) -> Any:
        self._outputs = max(self.labels.capacity, 2)
        self._schema: Any = None
        return None  # it needs to know how many features there are

    def _fit(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        from capymoa.core import LabeledInstance
        from capymoa.stream import Schema

        if self.model is None:
            features = [f"x{i}" for i in range(x.shape[1])]
            labels = {"y": [str(i) for i in range(self._outputs)]}
            self._schema = Schema.from_custom([*features, "y"], "y", labels)
            self.model = build(self.library, self.path, self.settings, self.seed, schema=self._schema)
        self.model.train(LabeledInstance.from_array(self._schema, x[0], int(class_ids[0])))

    def _proba(self, x: np.ndarray) -> np.ndarray:
        from capymoa.core import Instance

        p = np.zeros((len(x), max(self._outputs, self.labels.capacity)))
        for row, values in zip(p, x, strict=True):
            found = self.model.predict_proba(Instance.from_array(self._schema, values))
            if found is not None:
                row[: len(found)] = found
        return p[:, : self.labels.capacity]

    def _take_copy(self, other: Self, *, snapshot: bool) -> None:
        if snapshot:
            other._relearn()
        model, schema = other.model, other._schema
        try:
            other.model = other._schema = None  # Python cannot copy objects of Java
            super()._take_copy(other, snapshot=snapshot)
        finally:
            other.model, other._schema = model, schema
        self.model, self._schema = _copied(model), schema


def _start(path: str) -> None:
    """Starts the Java machine, or says what is missing for it."""
    try:
        import capymoa  # noqa: F401
    except ImportError:
        raise MissingExtra(f"the model {path!r}", "capymoa") from None
    except Exception as error:
        raise BadSetting(
            f"model {path!r}: CapyMOA cannot start, it needs Java 17 or later: {one_line(error, 120)}"
        ) from None


def _copied(model: Any) -> Any:
    """A copy of a model whose state is in Java."""
    if not hasattr(model, "moa_learner"):
        return copy.deepcopy(model)
    copied = copy.copy(model)
    copied.moa_learner = model.moa_learner.copy()
    return copied
