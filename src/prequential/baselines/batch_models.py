"""Batch learners of scikit-learn and LightGBM: fitted once on rows and their labels, then used as they are."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch

from prequential.baselines.libraries import build
from prequential.errors import BadSetting, PrequentialError
from prequential.learners.normalizer import Normalizer

LIGHTGBM = ("lightgbm", "sklearn.LGBMClassifier")
EXAMPLES = "lightgbm or sklearn:ensemble.RandomForestClassifier"


class FittedModel(ABC):
    """A model that was fitted and does not change any more: copies of a learner share it."""

    @abstractmethod
    def proba(self, x: np.ndarray, lagged: np.ndarray, capacity: int) -> np.ndarray:
        """Probabilities (n, capacity) of rows (n, features) with lagged labels (n, lags), before smoothing."""


class Frequencies(FittedModel):
    """How often each label came: where there is too little to fit a model on."""

    def __init__(self, class_ids: np.ndarray) -> None:
        self.counts = np.bincount(class_ids)

    def proba(self, x: np.ndarray, lagged: np.ndarray, capacity: int) -> np.ndarray:
        return np.tile(np.pad(self.counts.astype(np.float64), (0, capacity - len(self.counts))), (len(x), 1))


class BatchModel(FittedModel):
    """A classifier with `fit` and `predict_proba` that was fitted on rows, lagged labels and class ids.

    LightGBM gets the lagged labels as categories and missing features as they are. Models of scikit-learn get one
    column per lag and label that came, and, where wanted, features standardized by the rows of the fit, a missing one
    as the mean.

    Parameters
    ----------
    library, path, settings, seed
        Which model, as for `libraries.build`.
    standardize
        Whether features are standardized.
    x, lagged, class_ids
        What it is fitted on: (n, features), (n, lags) class ids or -1, and (n,).
    """

    def __init__(
        self,
        library: str,
        path: str,
        settings: dict[str, Any],
        seed: int,
        *,
        standardize: bool,
        x: np.ndarray,
        lagged: np.ndarray,
        class_ids: np.ndarray,
    ) -> None:
        self.boosted = library == LIGHTGBM[0]
        self._normalizer = Normalizer(x.shape[1]) if standardize else None
        if self._normalizer is not None:
            for start in range(0, len(x), 4096):  # what it computes along the way is larger than the rows
                self._normalizer.update(x[start : start + 4096])
        self._lagged_ids = np.unique(lagged[lagged >= 0])
        if self.boosted:
            # the same trees on any number of threads
            threads = {
                "n_jobs": torch.get_num_threads(),
                "verbosity": -1,
                "deterministic": True,
                "force_col_wise": True,
            }
            self.model = build(library, path, settings, seed).set_params(**{**threads, **_given_jobs(settings)})
        else:
            self.model = build(library, path, settings, seed)
        columns = self._columns(x, lagged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on few examples models warn that they did not converge, and the like
            if self.boosted and lagged.shape[1]:
                self.model.fit(columns, class_ids, categorical_feature=list(range(x.shape[1], columns.shape[1])))
            else:
                self.model.fit(columns, class_ids)
        self.class_ids = np.asarray(self.model.classes_, dtype=np.int64)
        if self.boosted:
            self.model = self.model.booster_  # the wrapper would take ten times as long to predict one row

    def proba(self, x: np.ndarray, lagged: np.ndarray, capacity: int) -> np.ndarray:
        p, columns = np.zeros((len(x), capacity)), self._columns(x, lagged)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self.boosted:
                found = np.asarray(self.model.predict(columns))
                p[:, self.class_ids] = np.stack([1 - found, found], 1) if found.ndim == 1 else found
            elif hasattr(self.model, "predict_proba"):
                p[:, self.class_ids] = self.model.predict_proba(columns)
            else:
                p[np.arange(len(x)), np.asarray(self.model.predict(columns), dtype=np.int64)] = 1.0
        return p

    def _columns(self, x: np.ndarray, lagged: np.ndarray) -> np.ndarray:
        """Features and lagged labels in one array (n, columns)."""
        if self._normalizer is not None:
            x = self._normalizer.apply(x).astype(np.float64)
        if not lagged.shape[1]:
            return x
        if self.boosted:
            return np.concatenate([x, lagged], 1)
        one_hot = lagged[:, :, None] == self._lagged_ids  # (n, lags, labels)
        return np.concatenate([x, one_hot.reshape(len(x), -1)], 1)


def find_model(name: str) -> tuple[str, str]:
    """The library and the path in it that the name of a batch learner means.

    >>> find_model("sklearn:ensemble.RandomForestClassifier")
    ('sklearn', 'ensemble.RandomForestClassifier')
    >>> find_model("river:forest.ARFClassifier")
    Traceback (most recent call last):
    prequential.errors.BadSetting: model 'river:forest.ARFClassifier' is no batch learner; expected one such as \
lightgbm or sklearn:ensemble.RandomForestClassifier
    """
    library, colon, path = name.partition(":")
    if name == "lightgbm":
        return LIGHTGBM
    if not colon or not path or library not in ("sklearn", "lightgbm"):
        raise BadSetting(f"model {name!r} is no batch learner; expected one such as {EXAMPLES}")
    return library, path


def check_model(name: str, settings: dict[str, Any], seed: int) -> tuple[str, str]:
    """`find_model`, after the model was made once: a wrong option is refused now, and not at the first fit."""
    library, path = find_model(name)
    model = build(library, path, settings, seed)
    if not hasattr(model, "fit"):
        raise BadSetting(f"model {name!r} has no fit; expected one such as {EXAMPLES}")
    if library == LIGHTGBM[0]:
        try:
            import sklearn  # noqa: F401
        except ImportError:  # LightGBM's classifier is one of scikit-learn
            raise PrequentialError(
                "the model 'lightgbm' needs scikit-learn: pip install 'prequential[lightgbm]'"
            ) from None
    return library, path


def _given_jobs(settings: dict[str, Any]) -> dict[str, Any]:
    return {"n_jobs": settings["n_jobs"]} if "n_jobs" in settings else {}
