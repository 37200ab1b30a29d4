"""The learner as a classifier of River."""

from __future__ import annotations

import copy
import datetime
import importlib
import pickle
import sys

import numpy as np
import pandas as pd
import pytest

from prequential import Learner
from prequential.errors import BadInput, ColumnWarning, MissingExtra

river = pytest.importorskip("river")

from river import checks, compose, datasets, drift, ensemble, evaluate, metrics, preprocessing  # noqa: E402

from prequential.river import Classifier  # noqa: E402

SMALL = {"width": 16, "depth": 1, "window": 32, "num_streams": 2}


def rows(count: int, seed: int = 0):
    """Dicts of mixed features with the moment they came; the label is the sign of one of them."""
    random = np.random.default_rng(seed)
    for t in range(count):
        a, b = random.normal(size=2)
        moment = datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=t)
        yield {"moment": moment, "a": a, "shop": "xy"[int(b > 0)]}, bool(a > 0)


def test_passes_every_check_of_river():
    model = Classifier(**next(Classifier._unit_test_params()))
    assert model._unit_test_skips() == set()
    checks.check_estimator(model)


def test_predicts_what_the_learner_does():
    """With one spare input less, nothing lies between River's dicts and the learner's own rows but the hashed inputs."""
    model, learner = Classifier(**SMALL, spare_features=0), Learner(**SMALL)
    for x, y in datasets.Phishing().take(60):
        learner.learn_one([*(x[name] for name in sorted(x)), *[0.0] * 8], y)
        model.learn_one(x, y)
    p = learner.predict_proba_one([*(x[name] for name in sorted(x)), *[0.0] * 8])
    assert model.predict_proba_one(x) == {label: value / sum(p.values()) for label, value in p.items()}


def test_pipelines_metrics_and_late_labels():
    pipeline = compose.Discard("moment", "shop") | preprocessing.StandardScaler() | Classifier(**SMALL)
    assert evaluate.progressive_val_score(rows(200), pipeline, metrics.ROCAUC()).get() > 0.9
    late = Classifier(**SMALL, label_delay=5)
    hours = datetime.timedelta(hours=5)
    scored = evaluate.progressive_val_score(rows(200), late, metrics.Accuracy(), moment="moment", delay=hours)
    assert scored.get() > 0.75
    assert late.learner.position == 200


def test_inside_models_of_river():
    bagging = ensemble.BaggingClassifier(Classifier(**SMALL), n_models=2, seed=0)
    retrained = drift.DriftRetrainingClassifier(Classifier(**SMALL), drift_detector=drift.binary.DDM())
    for model in (bagging, retrained):
        assert evaluate.progressive_val_score(rows(120), model, metrics.Accuracy()).get() > 0.6


def test_a_feature_that_appears_later_is_used():
    random = np.random.default_rng(0)
    model, correct = Classifier(**SMALL), []
    for t in range(600):
        a, z = random.normal(size=2)
        x = {"a": a} if t < 200 else {"z": 5 * z + 3, "a": a}
        correct.append(model.predict_one(x) == bool(z > 0))
        model.learn_one(x, bool(z > 0))
    assert np.mean(correct[:200]) < 0.65  # nothing tells it
    assert np.mean(correct[400:]) > 0.85
    assert model.learner.schema.feature_names[:3] == ["a", "z", "(spare) 1"]


def test_features_without_room_are_hashed_and_named():
    model = Classifier(**SMALL, spare_features=1)
    model.learn_one({"a": 1.0}, "x")
    with pytest.warns(ColumnWarning, match="field 'c' not known so far"):
        model.learn_one({"b": 2.0, "c": 3.0}, "y")
    with pytest.warns(ColumnWarning, match="field 'd' not known so far"):
        model.learn_one({"d": "text"}, "y")
    assert model.learner.schema.width == 2 + 8
    assert set(model.predict_proba_one({"c": 3.0})) == {"x", "y"}


def test_empty_dicts_and_names_of_any_kind():
    model = Classifier(**SMALL)
    assert model.predict_proba_one({}) == {}
    assert model.predict_one({"a": 1}) is None
    model.learn_one({}, "first")
    model.learn_one({7: 1.0, ("a", 1): 2}, "second")
    assert sum(model.predict_proba_one({7: 1.5}).values()) == pytest.approx(1)
    assert model.learner.schema.feature_names[:2] == ["('a', 1)", "7"]


@pytest.mark.parametrize(("x", "y"), [({"a": "much"}, True), ({"a": np.inf}, True), ({"new": 1.0}, None)])
def test_what_is_refused_changes_nothing(x, y):
    model = Classifier(**SMALL)
    model.learn_one({"a": 1.0}, True)
    before = pickle.dumps(model)
    with pytest.raises(BadInput, match="example 1: "):
        model.learn_one(x, y)
    assert pickle.dumps(model) == before


def test_frames_with_features_that_come_and_go_are_as_dicts():
    one, many = Classifier(**SMALL), Classifier(**SMALL)
    frame = pd.DataFrame({"a": range(40), "b": [None, *range(39)], "c": ["x", "y"] * 20})
    labels = pd.Series(["u", "v"] * 20)
    for columns in (["a"], ["a", "b"], ["b", "c"]):
        part = frame[columns]
        for row, y in zip(part.to_dict("records"), labels, strict=True):
            one.learn_one(row, y)
        many.learn_many(part, labels)
    p = many.predict_proba_many(frame)
    assert list(p.columns) == ["u", "v"]
    assert p.index.equals(frame.index)
    assert many.predict_many(frame).tolist() == [one.predict_one(row) for row in frame.to_dict("records")]
    assert p.loc[3].to_dict() == pytest.approx(one.predict_proba_one(frame.loc[3].to_dict()), abs=1e-5)


def test_copies_learn_on_alike():
    model = Classifier(**SMALL)
    for x, y in rows(70):
        model.learn_one(x, y)
    copies = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model), model.clone(include_attributes=True)]
    for x, y in rows(70, seed=1):
        expected = model.predict_proba_one(x)
        for copied in copies:
            assert copied.predict_proba_one(x) == expected
        for each in (model, *copies):
            each.learn_one(x, y)
    assert model.clone().learner.position == 0


def test_settings():
    assert (
        Classifier(seed=None, width=16).learner.settings.seed != Classifier(seed=None, width=16).learner.settings.seed
    )
    assert Classifier(width=32).learner.settings == Learner(width=32).settings
    with pytest.raises(ValueError, match="unknown setting 'widht'; did you mean 'width'"):
        Classifier(widht=32)


def test_without_river_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "river", None)
    monkeypatch.delitem(sys.modules, "prequential.river")
    with pytest.raises(MissingExtra, match=r"pip install 'prequential\[river\]'"):
        importlib.import_module("prequential.river")
