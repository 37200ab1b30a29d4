"""The learner as a classifier of scikit-learn: `from prequential.sklearn import OnlineClassifier`.

scikit-learn's own classifiers as learners of this package are `prequential.baselines.sklearn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from prequential.errors import BadInput, MissingExtra, short
from prequential.estimators import PickledLearner, settings_of, takes_settings
from prequential.learners.transformer.learner import Learner

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import assert_all_finite, check_random_state
    from sklearn.utils.multiclass import check_classification_targets, unique_labels
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
except ImportError:
    raise MissingExtra("prequential.sklearn", "sklearn") from None


LEAST = 16  # rows predicted at once: fewer are computed in another order, and rounded differently in the last digit


class OnlineClassifier(PickledLearner, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The transformer learner for scikit-learn: `partial_fit` goes on learning, `fit` starts again.

    Rows are learned in their order, which is that of time: `fit` is one pass over them. Features may be missing (NaN),
    and need no scaling. A frame may also have columns of text, categories and dates; the first one decides how each is
    read. New labels may come with any call of `partial_fit`, unless `classes` said which there are.

    Parameters
    ----------
    random_state
        Seed of the initial weights and of the replay; None draws one.
    device
        Where to compute: auto, cpu, cuda, ...
    settings
        All others are those of `prequential.Settings` but `seed`, by the same names and with the same defaults:
        `width`, `depth`, `window`, `chunk_size`, `learning_rate`, ...

    Attributes
    ----------
    classes_
        The labels, sorted; the columns of `predict_proba`.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.
    learner_
        The `prequential.Learner` behind it.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(300, 3))
    >>> y = np.where(x[:, 0] > 0, "up", "down")
    >>> model = OnlineClassifier(width=32, depth=1).fit(x[:200], y[:200])
    >>> model.score(x[200:], y[200:]) > 0.9
    True
    """

    @takes_settings("seed")
    def __init__(self, *, random_state: Any = 0, device: str = "auto", **settings: Any) -> None:
        """Keeps its arguments; they are checked when there is something to learn."""

    def fit(self, X: Any, y: Any) -> Self:
        """Learns the rows in their order, from the start."""
        return self._learn(X, y, None, first=True)

    def partial_fit(self, X: Any, y: Any, classes: Sequence[Any] | None = None) -> Self:
        """Learns more rows in their order.

        `classes`, in the first call, are all labels that can come; without them, new ones may come at any time.
        """
        first = not hasattr(self, "learner_")
        if not first and classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise BadInput(f"classes is {short(list(classes))}, but there are {short(list(self.classes_))}")
        return self._learn(X, y, classes, first=first)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row; rows are predicted one by one, and nothing is learned."""
        p = self.predict_proba(X)
        return self.classes_[p.argmax(1)]  # type: ignore[no-any-return]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (n, len(classes_)) in the order of `classes_`."""
        check_is_fitted(self)
        x = self.learner_.check_examples(self._read(X, reset=False))
        padded = np.concatenate([x, x[-1:].repeat(max(LEAST - len(x), 0), axis=0)])
        p = self.learner_.predict_proba_many(padded)[: len(x)]
        class_ids = {label: i for i, label in enumerate(self.learner_.labels.known)}
        p = p[:, [class_ids[label] for label in self.classes_.tolist()]].astype(np.float64)
        normalized: np.ndarray = p / p.sum(1, keepdims=True)
        return normalized

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Their logarithms."""
        return np.asarray(np.log(self.predict_proba(X)))

    def _learn(self, X: Any, y: Any, classes: Sequence[Any] | None, *, first: bool) -> Self:
        x = self._read(X, reset=first)
        if y is None:
            raise BadInput("requires y to be passed, but the target y is None")
        y = column_or_1d(y, warn=True)
        check_consistent_length(x, y)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        if first:
            learner, known = self._make(classes), unique_labels(y) if classes is None else np.unique(classes)
        else:
            learner, known = self.learner_, unique_labels(self.classes_, y)
        learner.learn_many(x, y.tolist())
        self.learner_: Learner = learner
        self.classes_: np.ndarray = known
        return self

    def _make(self, classes: Sequence[Any] | None) -> Learner:
        settings = settings_of(self)
        random = self.random_state
        seed = random if isinstance(random, (int, np.integer)) else check_random_state(random).randint(2**31 - 1)
        listed = None if classes is None else np.unique(classes).tolist()
        missing = settings["standardize"] is not False
        return Learner(listed, missing=missing, device=self.device, **{**settings, "seed": int(seed)})

    def _read(self, X: Any, *, reset: bool) -> Any:
        """Numbers as an array, after scikit-learn's own checks; a frame with other columns as it is."""
        if _has_other_columns(X):
            return validate_data(self, X, reset=reset, skip_check_array=True)
        finite: Any = "allow-nan" if self.standardize is not False else True
        return validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=finite)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.standardize is not False
        return tags


def _has_other_columns(X: Any) -> bool:
    """Whether it is a frame with columns that are no numbers."""
    if not hasattr(X, "columns") or not hasattr(X, "dtypes"):
        return False
    return any(not _is_number(kind) for kind in X.dtypes)


def _is_number(kind: Any) -> bool:
    """Whether the dtype of a column of pandas or polars is one of numbers or flags."""
    found = getattr(kind, "kind", None)
    return found in "biuf" if isinstance(found, str) else bool(getattr(kind, "is_numeric", lambda: False)())
