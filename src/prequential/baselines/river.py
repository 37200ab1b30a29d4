"""Any classifier of River, by name."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from prequential.baselines.libraries import build
from prequential.baselines.library_learner import LibraryLearner
from prequential.renames import OPTIONS, takes_old_names

TIE = 1e-9  # by so much the label that River names is above others that are as probable


@takes_old_names(OPTIONS)
class RiverLearner(LibraryLearner):
    """A classifier of River behind this package's interface.

    River's probabilities are normalized and mixed with a little of the uniform distribution, so that no label has
    probability 0. The predicted label stays the one that River predicts, also where several are equally probable.
    Missing features are left out of the dict that River gets.

    A River model cannot be saved without pickle. A loaded learner trains a new model on the whole past again, from the
    stream or its journal: exact, but loading takes as long as the training had taken. Needs the extra "river".

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    model
        Path of the class inside River: "forest.ARFClassifier", "naive_bayes.GaussianNB", ...
    settings
        Its arguments: plain values. {"class": "...", ...} is itself an object of River.
    smoothing
        Weight of the uniform distribution in the probabilities.
    standardize
        Whether features are standardized by past statistics first; River's own scalers are not needed then.
    missing
        Whether features may be NaN.
    seed
        Given to the model where it takes a seed.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(300, 3))
    >>> y = (x[:, 0] > 0).astype(int)
    >>> learner = RiverLearner(2, model="naive_bayes.GaussianNB")
    >>> charges = learner.observe(x, y)
    >>> print(f"{charges.correct.mean():.2f}")
    0.97
    """

    library = "river"

    def __init__(
        self,
        classes: int | Sequence[Hashable] | None = None,
        *,
        model: str = "forest.ARFClassifier",
        settings: dict[str, Any] | None = None,
        smoothing: float = 0.01,
        standardize: bool = False,
        missing: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            classes, model=model, settings=settings, batch=1, smoothing=smoothing, standardize=standardize,
            missing=missing, seed=seed,
        )  # fmt: skip

    def config(self) -> dict[str, Any]:
        return self._common()

    def _make(self) -> Any:
        made = build(self.library, self.path, self.settings, self.seed)
        # some models (nearest neighbors) draw random numbers while predicting; predicting must change nothing
        self._generators = generators(made)
        return made

    def _proba(self, x: np.ndarray) -> np.ndarray:
        p = np.zeros((len(x), self.labels.capacity))
        before = [generator.getstate() for generator in self._generators]
        for row, values in zip(p, x, strict=True):
            for generator, state in zip(self._generators, before, strict=True):
                generator.setstate(state)
            for class_id, value in self._ask(_as_dict(values)).items():
                row[int(class_id)] = value
        for generator, state in zip(self._generators, before, strict=True):
            generator.setstate(state)
        return p

    def _ask(self, x: dict[int, float]) -> dict[Any, float]:
        """What River says; of several labels that are the most probable, the one that it predicts a little more so."""
        try:
            p: dict[Any, float] = dict(self.model.predict_proba_one(x))
        except NotImplementedError:
            label = self.model.predict_one(x)
            return {} if label is None else {label: 1.0}
        if p and not any(p.values()):  # nothing is probable, so everything is alike
            p = dict.fromkeys(p, 1.0)
        if p:
            best = max(p.values())
            tied = [label for label, value in p.items() if value == best]
            label = self.model.predict_one(x) if len(tied) != 1 else tied[0]
            if tied:  # a NaN is equal to nothing
                p[label if label in tied else tied[0]] *= 1 + TIE
        return p

    def _fit(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        self.model.learn_one(_as_dict(x[0]), int(class_ids[0]))


def _as_dict(values: np.ndarray) -> dict[int, float]:
    return {i: value for i, value in enumerate(values.tolist()) if value == value}


def generators(thing: Any) -> list[random.Random]:
    """The random generators inside a River object."""
    found: list[random.Random] = []
    seen: set[int] = set()
    todo = [thing]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, random.Random):
            found.append(one)
        elif isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, (list, tuple)):
            todo += one
        elif type(one).__module__.startswith("river."):
            todo += getattr(one, "__dict__", {}).values()
    return found
