"""The learner as a classifier of scikit-learn."""

from __future__ import annotations

import importlib
import pickle
import sys

import numpy as np
import pandas as pd
import polars
import pytest

from prequential.errors import MissingExtra

sklearn = pytest.importorskip("sklearn")

from sklearn.base import clone  # noqa: E402
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402

from prequential.sklearn import OnlineClassifier  # noqa: E402

SMALL = {"width": 16, "depth": 1, "window": 64, "num_streams": 2}
X = np.random.default_rng(0).normal(size=(240, 4))
Y = np.where(X[:, 0] > 0, "up", "down")


def test_passes_every_check_of_scikit_learn():
    # one is skipped by itself: that of array API inputs, where SCIPY_ARRAY_API is not set
    results = check_estimator(OnlineClassifier(**SMALL), on_skip=None)
    assert len(results) > 40
    assert {result["status"] for result in results} <= {"passed", "skipped"}
    assert {result["check_name"] for result in results if result["status"] == "skipped"} <= {"check_array_api_input"}


def test_selection_and_pipelines():
    model = OnlineClassifier(**SMALL)
    pipeline = make_pipeline(StandardScaler(), model)
    assert cross_val_score(pipeline, X, Y, cv=TimeSeriesSplit(3)).mean() > 0.85
    found = GridSearchCV(model, {"learning_rate": [0.03, 0.06]}, cv=TimeSeriesSplit(2)).fit(X, Y)
    assert found.best_params_["learning_rate"] in (0.03, 0.06)
    assert clone(model).set_params(width=32).get_params()["width"] == 32
    assert repr(model) == "OnlineClassifier(depth=1, num_streams=2, width=16, window=64)"


def test_partial_fit_is_fit_in_pieces():
    whole = OnlineClassifier(**SMALL).fit(X, Y)
    pieces = OnlineClassifier(**SMALL)
    for start in range(0, len(X), 64):
        pieces.partial_fit(X[start : start + 64], Y[start : start + 64])
    np.testing.assert_allclose(pieces.predict_proba(X), whole.predict_proba(X), atol=1e-4)
    assert whole.fit(X[:50], Y[:50]).learner_.position == 50  # from the start


def test_labels_that_come_later():
    model = OnlineClassifier(**SMALL).partial_fit(X[:60], Y[:60])
    model.partial_fit(X[60:120], ["flat"] * 60)
    assert model.classes_.tolist() == ["down", "flat", "up"]
    assert (model.predict(X[60:70]) == "flat").all()
    with pytest.raises(ValueError, match="Mix of label input types"):
        model.partial_fit(X[:1], [3])
    assert model.learner_.position == 120


def test_classes_that_are_given():
    model = OnlineClassifier(**SMALL).partial_fit(X[:60], Y[:60], classes=["up", "flat", "down"])
    p = model.predict_proba(X)
    assert model.classes_.tolist() == ["down", "flat", "up"]
    assert (p[:, 1] < 0.1).all()
    np.testing.assert_allclose(p.sum(1), 1)
    with pytest.raises(ValueError, match="label 'other' is new"):
        model.partial_fit(X[:1], ["other"])
    with pytest.raises(ValueError, match=r"classes is \['up'\], but there are"):
        model.partial_fit(X[:1], Y[:1], classes=["up"])


@pytest.mark.parametrize("frame", [pd.DataFrame, polars.DataFrame])
def test_frames_with_text_and_missing_values(frame):
    made = frame({"size": [None if i % 9 == 0 else float(i % 5) for i in range(240)], "way": Y.tolist()})
    model = OnlineClassifier(**SMALL).fit(made, Y)
    assert model.feature_names_in_.tolist() == ["size", "way"]
    assert model.score(made, Y) > 0.95
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame({"size": [1.0], "other": ["up"]}))


def test_a_pickle_learns_on_alike():
    model = OnlineClassifier(**SMALL).fit(X[:100], Y[:100])
    again = pickle.loads(pickle.dumps(model))
    for each in (model, again):
        each.partial_fit(X[100:180], Y[100:180])
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.learner_.position == 180


def test_settings_are_checked_when_it_learns():
    with pytest.raises(ValueError, match=r"width \(3\) must be divisible"):
        OnlineClassifier(width=3).fit(X, Y)
    with pytest.raises(ValueError, match="unknown setting 'seed'"):
        OnlineClassifier(seed=1)
    drawn = {OnlineClassifier(**SMALL, random_state=None).fit(X, Y).learner_.settings.seed for _ in range(2)}
    assert len(drawn) == 2
    assert OnlineClassifier(**SMALL, random_state=7).fit(X, Y).learner_.settings.seed == 7


def test_without_scikit_learn_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "prequential.sklearn")
    with pytest.raises(MissingExtra, match=r"pip install 'prequential\[sklearn\]'"):
        importlib.import_module("prequential.sklearn")
