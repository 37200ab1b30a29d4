from __future__ import annotations

import sys

import numpy as np
import pytest

from prequential.baselines import SklearnLearner
from prequential.errors import BadSetting, MissingExtra

pytest.importorskip("sklearn")


def data(n, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 4))
    return x, np.digitize(x[:, 0] + 0.3 * random.normal(size=n), [-0.5, 0.5])


@pytest.mark.parametrize("batch", [1, 8])
def test_equals_scikit_learn_by_hand(batch):
    from sklearn.linear_model import SGDClassifier

    x, y = data(200)
    model, right = SGDClassifier(loss="log_loss", random_state=3), []
    class_ids = {label: i for i, label in enumerate(dict.fromkeys(y.tolist()))}
    for start in range(0, 200, batch):
        rows, labels = x[start : start + batch], [class_ids[label] for label in y[start : start + batch].tolist()]
        right += [False] * len(rows) if start == 0 else (model.predict(rows) == labels).tolist()
        model.partial_fit(rows, labels, classes=[0, 1, 2])
    learner = SklearnLearner(3, batch=batch, standardize=False, seed=3)
    assert learner.observe(x, y).correct[batch:].tolist() == right[batch:]


@pytest.mark.parametrize(
    "path", ["linear_model.SGDClassifier", "neural_network.MLPClassifier", "naive_bayes.GaussianNB"]
)
@pytest.mark.parametrize("cut", [0, 1, 120])
def test_is_rebuilt_to_the_bit(tmp_path, path, cut):
    x, y = data(200)
    learner = SklearnLearner(3, model=path, batch=7)
    if cut:
        learner.observe(x[:cut], y[:cut])
    learner.save(tmp_path / "sklearn")
    loaded = SklearnLearner.load(tmp_path / "sklearn")
    a, b = learner.observe(x[cut:], y[cut:]), loaded.observe(x[cut:], y[cut:])
    assert np.array_equal(a.log_loss, b.log_loss)
    assert np.isfinite(a.log_loss).all()


def test_a_model_without_probabilities_is_smoothed():
    x, y = data(300)
    charges = SklearnLearner(3, model="linear_model.Perceptron", smoothing=0.3).observe(x, y)
    assert charges.correct.mean() > 0.6
    assert charges.log_loss[charges.num_seen == 3].max() == pytest.approx(-np.log(0.1))
    assert charges.log_loss[charges.num_seen == 3].min() == pytest.approx(-np.log(0.8))


def test_bad_models():
    with pytest.raises(BadSetting, match="no partial_fit"):
        SklearnLearner(2, model="tree.DecisionTreeClassifier")
    with pytest.raises(BadSetting, match=r"'linear_model.SGDRegressor' is no classifier of scikit-learn"):
        SklearnLearner(2, model="linear_model.SGDRegressor")
    with pytest.raises(BadSetting, match="is not in sklearn"):
        SklearnLearner(2, model="linear_model.Nothing")
    with pytest.raises(BadSetting, match="standardize"):
        SklearnLearner(2, missing=True, standardize=False)


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtra, match=r"prequential\[sklearn\]"):
        SklearnLearner(2)


def test_the_default_loss_has_probabilities_whatever_else_is_set():
    assert SklearnLearner(2).model.loss == "log_loss"
    learner = SklearnLearner(2, settings={"alpha": 0.5})
    assert (learner.model.loss, learner.model.alpha) == ("log_loss", 0.5)
    assert SklearnLearner(2, settings={"loss": "hinge"}).model.loss == "hinge"
