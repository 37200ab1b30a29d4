"""Any scikit-learn classifier with `partial_fit`, by name."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from prequential.baselines.fixed_classes import FixedClassesLearner
from prequential.baselines.libraries import build
from prequential.errors import BadSetting
from prequential.learners.base import check_missing
from prequential.renames import OPTIONS, takes_old_names


@takes_old_names(OPTIONS)
class SklearnLearner(FixedClassesLearner):
    """A classifier of scikit-learn with `partial_fit`, behind this package's interface.

    Its probabilities (its prediction, where it has none) are mixed with a little of the uniform distribution, so that
    no label has probability 0. Images are flattened to vectors of pixels.

    Each `batch` examples are predicted by the model from before the batch and then given to `partial_fit` together;
    examples that do not fill a batch are pending.

    Such a model cannot get new classes. Where their number is not given, it knows a few more than have come; when one
    comes for which there is no room, a model with twice as many is trained on the whole past.

    As with River's models, a loaded learner trains a new model on the whole past again: exact, but loading takes as
    long as the training had taken. Needs the extra "sklearn".

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    model
        Path of the class inside scikit-learn: "linear_model.SGDClassifier", "naive_bayes.GaussianNB", ...
    settings
        Its arguments: plain values. {"class": "...", ...} is itself an object of scikit-learn.
    batch
        Examples per `partial_fit`.
    smoothing
        Weight of the uniform distribution in the probabilities.
    standardize
        Whether features are standardized by past statistics first.
    missing
        Whether features may be NaN; needs `standardize`, which puts the mean there.
    seed
        Given to the model where it takes a random state.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(300, 3))
    >>> y = (x[:, 0] > 0).astype(int)
    >>> learner = SklearnLearner(2, model="naive_bayes.GaussianNB")
    >>> charges = learner.observe(x, y)
    >>> print(f"{charges.correct.mean():.2f}")
    0.96
    """

    library = "sklearn"

    def __init__(
        self,
        classes: int | Sequence[Hashable] | None = None,
        *,
        model: str = "linear_model.SGDClassifier",
        settings: dict[str, Any] | None = None,
        batch: int = 1,
        smoothing: float = 0.01,
        standardize: bool = True,
        missing: bool = False,
        seed: int = 0,
    ) -> None:
        check_missing(missing, standardize)
        if model == "linear_model.SGDClassifier" and isinstance(
            settings, dict | None
        ):  # its own default is a hinge, which knows no probabilities
            settings = {"loss": "log_loss", **(settings or {})}
        super().__init__(
            classes, model=model, settings=settings, batch=batch, smoothing=smoothing, standardize=standardize,
            missing=missing, seed=seed,
        )  # fmt: skip

    def config(self) -> dict[str, Any]:
        return {**self._common(), "batch": self.stride}

    def _make(self) -> Any:
        made = build(self.library, self.path, self.settings, self.seed)
        if not hasattr(made, "partial_fit"):
            raise BadSetting(f"model {self.path!r} has no partial_fit: it cannot learn from a stream")
        self._names_classes = "classes" in inspect.signature(made.partial_fit).parameters
        self._outputs = self.labels.capacity  # the class ids that this model will know
        return made

    def _proba(self, x: np.ndarray) -> np.ndarray:
        p = np.zeros((len(x), self._outputs))
        class_ids = np.asarray(self.model.classes_, dtype=np.int64)
        with np.errstate(all="ignore"):  # logarithms of 0 for labels not seen yet; the smoothing takes care of them
            at = np.arange(len(x)), np.asarray(self.model.predict(x), dtype=np.int64)
            if hasattr(self.model, "predict_proba"):
                p[:, class_ids] = self.model.predict_proba(x)
        # probabilities that round to the same number, or none at all: the prediction stays the model's own
        p[at] = np.where(p.max(1) > 0, np.fmax(p[at], p.max(1) * (1 + 1e-9)), 1.0)
        return p

    def _fit(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        # all classes are named beforehand, since the model cannot get new ones later
        named = {"classes": np.arange(self._outputs)} if self._names_classes and not self._fitted else {}
        self.model.partial_fit(x, class_ids, **named)
