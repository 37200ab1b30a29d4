from __future__ import annotations

import sys

import numpy as np
import pytest

from prequential import ArrayStream, evaluate
from prequential.baselines import Refit
from prequential.errors import BadSetting, MissingExtra
from prequential.registry import make_learner

pytest.importorskip("sklearn")
TREE = "sklearn:tree.DecisionTreeClassifier"


def data(n, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 3))
    return x, np.digitize(x[:, 0], [-0.5, 0.5]).tolist()


def fits(learner, monkeypatch):
    """The numbers of examples that it is fitted on, as it goes."""
    found, fit = [], learner._fit
    monkeypatch.setattr(learner, "_fit", lambda stop: (found.append(stop), fit(stop))[1])
    return found


def test_is_fitted_again_when_the_past_has_grown_by_a_tenth(monkeypatch):
    x, y = data(60)
    learner = Refit(3, model=TREE)
    found = fits(learner, monkeypatch)
    learner.observe(x, y)
    assert found == [*range(1, 20), *range(20, 31, 2), 33, 36, 39, 42, 46, 50, 55, 60]


def test_with_a_window_a_tenth_of_it_counts(monkeypatch):
    x, y = data(60)
    learner = Refit(3, model=TREE, window=30)
    found = fits(learner, monkeypatch)
    learner.observe(x, y)
    assert found[-10:] == list(range(33, 61, 3))


def test_equals_scikit_learn_by_hand():
    from sklearn.naive_bayes import GaussianNB

    x, y = data(50)
    learner = Refit(3, model="sklearn:naive_bayes.GaussianNB", standardize=False, window=30, smoothing=0.02)
    learner.learn_many(x, y)  # the last fit was after 48
    ids = [learner.labels.class_id(label) for label in y]
    model = GaussianNB().fit(x[18:48], ids[18:48])
    expected = 0.98 * model.predict_proba(x) + 0.02 / 3
    assert np.exp(learner.predict_log_proba_many(x)) == pytest.approx(expected)


class Seen:
    """Records what models are fitted on."""

    def __init__(self, monkeypatch):
        from prequential.baselines import refit

        self.calls, real = [], refit.BatchModel

        def record(*args, **options):
            self.calls.append(options)
            return real(*args, **options)

        monkeypatch.setattr(refit, "BatchModel", record)


@pytest.mark.parametrize("protocol", [{}, {"delay": 7}, {"label_batches": 10}])
def test_lagged_labels_are_those_that_had_arrived(monkeypatch, protocol):
    """At every row, asked or fitted on, the lagged labels are the last ones that had arrived when it was asked."""
    n, lags = 64, 3
    x, y = np.arange(n, dtype=float)[:, None], [f"{t % 5}" for t in range(n)]
    arrived = {  # how many labels had arrived when row t was asked
        "delay": lambda t: max(t - 7, 0),
        "label_batches": lambda t: t // 10 * 10,
    }.get(next(iter(protocol), ""), lambda t: t)
    expected = np.array(
        [[(a - 1 - k) % 5 if a - 1 - k >= 0 else -1 for k in range(lags)] for a in map(arrived, range(n))]
    )
    seen, asked = Seen(monkeypatch), {}
    learner = Refit(5, model=TREE, lags=lags)
    proba = learner._log_proba
    monkeypatch.setattr(
        learner,
        "_log_proba",
        lambda x, lagged, num_seen: (
            asked.update({int(row[0]): lag for row, lag in zip(x, lagged.tolist(), strict=True)}),
            proba(x, lagged, num_seen),
        )[1],
    )
    evaluate(ArrayStream(x, y), learner, **protocol)
    assert [asked[t] for t in range(n)] == expected.tolist()
    assert len(seen.calls) >= 5
    for call in seen.calls:
        rows = call["x"][:, 0].astype(int)
        assert call["lagged"].tolist() == expected[rows].tolist()


def test_lags_make_sticky_labels_easy():
    random = np.random.default_rng(0)
    y = np.repeat(random.integers(0, 3, 40), 10).tolist()
    x = random.normal(size=(400, 2))
    plain, lagged = (Refit(3, model=TREE, lags=lags) for lags in (0, 2))
    assert lagged.observe(x, y).correct.mean() > plain.observe(x, y).correct.mean() + 0.3


@pytest.mark.parametrize("cut", [1, 37, 90])
def test_comes_back_to_the_bit_under_late_labels(tmp_path, cut):
    x, y = data(120)
    learner = Refit(3, model=TREE, lags=2, window=40)
    for part in (slice(0, cut), slice(cut, None)):
        asked_at = np.maximum(np.arange(120)[part] - 5, 0)
        learner.learn_many(x[part], y[part], asked_at)
        if part.stop == cut:
            learner.save(tmp_path / "refit")
    loaded = Refit.load(tmp_path / "refit")
    loaded.learn_many(x[cut:], y[cut:], np.maximum(np.arange(cut, 120) - 5, 0))
    more, _ = data(50, seed=1)
    assert np.array_equal(learner.predict_log_proba_many(more), loaded.predict_log_proba_many(more))


def test_lightgbm_learns_with_missing_features_and_lags():
    pytest.importorskip("lightgbm")
    x, y = data(400)
    x[::7, 1] = np.nan
    learner = make_learner("refit(lightgbm(n_estimators=10), lags=2, growth=0.5)", 3, missing=True)
    assert learner.observe(x, y).correct[200:].mean() > 0.9


def test_names_and_bad_options(monkeypatch):
    learner = make_learner("refit(sklearn:svm.SVC(C=2, probability=true), window=100)", 3)
    assert (learner.model, learner.settings, learner.window) == ("sklearn:svm.SVC", {"C": 2, "probability": True}, 100)
    for spec, message in {
        "refit(river:forest.ARFClassifier)": "'river:forest.ARFClassifier' is no batch learner; expected one such as",
        "refit(sklearn:svm.SVC(c=2))": "has no option 'c'",
        "refit(sklearn:svm.SVC, window=0)": r"window \(0\) must be at least 1",
        "refit(sklearn:svm.SVC, lags=-1)": r"lags \(-1\) must be at least 0",
        "refit(sklearn:svm.SVC, 5)": "cannot read the options",
        "majority(lightgbm)": "Majority has no option 'model'",
    }.items():
        with pytest.raises(BadSetting, match=message):
            make_learner(spec, 3)
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(MissingExtra, match=r"pip install 'prequential\[lightgbm\]'"):
        make_learner("refit(lightgbm)", 3)


def test_options_of_lightgbm_that_name_files_are_refused():
    pytest.importorskip("lightgbm")
    for name in ("output_model", "forcedsplits_filename", "machines", "kwargs"):
        with pytest.raises(BadSetting, match=f"has no option {name!r}|would name a place on disk"):
            make_learner(f"refit(lightgbm({name}=x))", 3)
