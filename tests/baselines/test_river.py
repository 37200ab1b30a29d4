from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from prequential.baselines import RiverLearner
from prequential.errors import BadInput, BadSetting, MissingExtra
from prequential.registry import make_learner
from prequential.streams.formats.arrays import ArrayStream

pytest.importorskip("river")
DATA = os.environ.get("PREQUENTIAL_DATA")


def data(n, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 4))
    return x, np.digitize(x[:, 0] + 0.3 * random.normal(size=n), [-0.5, 0.5])


def rivers_own(path, x, y, **settings):
    """Progressive accuracy as River's users count it."""
    module, name = path.rsplit(".", 1)
    model = getattr(importlib.import_module(f"river.{module}"), name)(**settings)
    right = []
    for row, label in zip(x, y, strict=True):
        features = dict(enumerate(row.astype(float).tolist()))
        right.append(model.predict_one(features) == label)
        model.learn_one(features, int(label))
    return right


@pytest.mark.skipif(not DATA, reason="PREQUENTIAL_DATA is not set")
@pytest.mark.parametrize(
    ("path", "n", "settings"),
    [
        ("naive_bayes.GaussianNB", 4000, {}),
        ("tree.HoeffdingTreeClassifier", 4000, {}),
        ("forest.ARFClassifier", 1500, {"n_models": 3, "seed": 7}),
    ],
)
def test_equals_rivers_own_accuracy_on_electricity(path, n, settings):
    electricity = np.load(Path(DATA) / "elec2.npz")
    x, y = electricity["X"][:n], electricity["y"][:n]
    charges = RiverLearner(2, model=path, settings=settings).observe(x, y)
    assert charges.correct.tolist() == rivers_own(path, x, y, **settings)


@pytest.mark.parametrize("path", ["naive_bayes.GaussianNB", "tree.HoeffdingTreeClassifier"])
def test_equals_rivers_own_accuracy(path):
    x, y = data(500)
    order = list(dict.fromkeys(y.tolist()))
    y = [order.index(label) for label in y]  # as our units are: River's ties depend on the names of labels
    assert RiverLearner(3, model=path).observe(x, y).correct.tolist() == rivers_own(path, x, y)


def test_predicting_changes_nothing_where_river_draws_random_numbers():
    x, y = data(400)
    settings = {"engine": {"class": "neighbors.SWINN", "maxlen": 200, "warm_up": 50}}
    asked, silent = (RiverLearner(3, model="neighbors.KNNClassifier", settings=settings) for _ in range(2))
    for i in range(0, 400, 10):
        asked.predict_log_proba_many(x[:3])
        asked.learn_many(x[i : i + 10], y[i : i + 10])
        silent.learn_many(x[i : i + 10], y[i : i + 10])
    assert np.array_equal(asked.predict_log_proba_many(x[:50]), silent.predict_log_proba_many(x[:50]))


@pytest.mark.parametrize("path", ["forest.ARFClassifier", "ensemble.SRPClassifier"])
def test_is_rebuilt_from_its_journal_to_the_bit(tmp_path, path):
    x, y = data(300)
    learner = RiverLearner(3, model=path, settings={"n_models": 3})
    learner.observe(x[:200], y[:200])
    learner.save(tmp_path / "river")
    loaded = RiverLearner.load(tmp_path / "river")
    assert np.array_equal(learner.observe(x[200:], y[200:]).log_loss, loaded.observe(x[200:], y[200:]).log_loss)


@pytest.mark.parametrize("first", ["load", "stream"])
def test_is_rebuilt_from_a_stream(tmp_path, first):
    x, y = data(300)
    stream = ArrayStream(x, y)
    learner = RiverLearner(3, model="tree.HoeffdingTreeClassifier")
    learner.replay_from(stream)
    learner.observe(x[:200], y[:200])
    learner.save(tmp_path / "river")
    assert not (tmp_path / "river.journal").exists()  # nothing is kept twice
    if first == "load":
        loaded = RiverLearner.load(tmp_path / "river")
        with pytest.raises(BadInput, match="replay_from"):
            loaded.predict(x[0])
        loaded.replay_from(stream)
    else:  # as a run goes on
        loaded = RiverLearner(**learner.config())
        loaded.replay_from(stream)
        loaded.load_state_dict(learner.state_dict())
    assert np.array_equal(learner.observe(x[200:], y[200:]).log_loss, loaded.observe(x[200:], y[200:]).log_loss)


def test_labels_never_seen_cost_what_was_set_aside():
    x, _ = data(50)
    charges = RiverLearner(4, model="naive_bayes.GaussianNB", smoothing=0.08).observe(x, ["a"] * 49 + ["b"])
    # half of it goes to the label that was seen, half to all others, of which there are three
    assert charges.log_loss[-1] == pytest.approx(-np.log(0.04 / 3))


def test_missing_features_are_left_out():
    x, y = data(200)
    x[::3, 1] = np.nan
    charges = RiverLearner(3, model="naive_bayes.GaussianNB", missing=True).observe(x, y)
    assert np.isfinite(charges.log_loss).all()


def test_a_model_without_probabilities():
    x, y = data(300)
    charges = RiverLearner(2, model="linear_model.PAClassifier", standardize=True).observe(x, y > 1)
    assert charges.correct.mean() > 0.7


def test_bad_names():
    with pytest.raises(
        BadSetting, match=r"'forest.Wood' is not in river, .*; expected a name such as 'forest.ARFClassifier'"
    ):
        RiverLearner(2, model="forest.Wood")
    with pytest.raises(BadSetting, match="n_trees"):
        RiverLearner(2, model="forest.ARFClassifier", settings={"n_trees": 3})
    with pytest.raises(BadSetting, match=r"smoothing \(0\)"):
        RiverLearner(2, smoothing=0)


def test_without_river(monkeypatch):
    monkeypatch.setitem(sys.modules, "river", None)
    with pytest.raises(MissingExtra, match=r"prequential\[river\]"):
        RiverLearner(2)


def test_an_ensemble_takes_a_model_of_its_own(tmp_path):
    x, y = data(120)
    learner = make_learner("river:ensemble.BaggingClassifier(model=tree.HoeffdingTreeClassifier(), n_models=3)", 3)
    assert [type(model).__name__ for model in learner.model] == ["HoeffdingTreeClassifier"] * 3
    learner.observe(x[:80], y[:80])
    learner.save(tmp_path / "river")
    loaded = RiverLearner.load(tmp_path / "river")
    assert np.array_equal(learner.observe(x[80:], y[80:]).log_loss, loaded.observe(x[80:], y[80:]).log_loss)
    with pytest.raises(BadSetting, match=r"'ensemble.BaggingClassifier' cannot be made with .*: .*'model'"):
        RiverLearner(2, model="ensemble.BaggingClassifier")


@pytest.mark.parametrize("path", ["linear_model.LinearRegression", "drift.ADWIN", "cluster.KMeans"])
def test_what_is_no_classifier_is_refused_at_once(path):
    with pytest.raises(BadSetting, match=f"model '{path}' is no classifier of River"):
        RiverLearner(2, model=path)


class Undecided:
    """Finds labels equally probable, with the smaller one first in its dict, and predicts the larger one."""

    def __init__(self, value):
        self.value = value

    def predict_proba_one(self, x):
        return {0: self.value, 1: self.value}

    def predict_one(self, x):
        return 1


@pytest.mark.parametrize("value", [0.5, 0.0])
def test_of_labels_that_are_equally_probable_it_predicts_the_one_that_river_does(value):
    x, _ = data(50)
    learner = RiverLearner(3, model="naive_bayes.GaussianNB")
    learner.learn_many(x, ["a", "b"] * 25)
    learner.model = Undecided(value)
    p = learner.predict_proba(x[0])
    assert learner.predict(x[0]) == "b"
    assert p["a"] == pytest.approx(p["b"], rel=1e-6)
