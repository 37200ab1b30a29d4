"""One row at a time in the native core: the same bits as the parts for themselves, with any experts."""

import copy

import numpy as np
import pytest

from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.experts.expert import Predicted
from prequential.learners.transformer.learner import Learner
from prequential.learners.transformer.one_row import OneRow
from prequential.native.library import library

pytestmark = pytest.mark.skipif(library().library is None, reason="the native core is not built")
SMALL = {"width": 16, "depth": 2, "window": 12, "chunk_size": 8, "num_streams": 2}
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(60, 3)), RANDOM.integers(0, 4, 60).tolist()


class Frequency:
    """An expert that only Python has: how often each label came."""

    num_predictions = 2

    def __init__(self, num_classes):
        self.counts, self.exact = np.ones(num_classes), True

    def predict(self, queries):
        p = self.counts / self.counts.sum()
        return Predicted(np.log(np.stack([p, p**2 / (p**2).sum()])).astype(np.float32)[:, None])

    def extend(self, batch, predicted=None):
        found = self.predict(batch) if predicted is None or not self.exact else predicted
        self.counts[batch.class_ids[0]] += 1
        return found.log_probs if self.exact else found.log_probs + np.float32(1e-3)


def ensemble_with(expert, **settings):
    """The ensemble of a learner, with one more expert."""
    learner = Learner(5, engine="native", **SMALL, **settings)
    learner.learn_many(X[:20], Y[:20])
    ensemble = learner._parts.ensemble
    others = {**ensemble.others, "frequency": expert}
    made = type(ensemble)(ensemble.network, others, native=ensemble.mixer._native)
    return learner, made


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        *({}, {"neighbor_metric": "fixed"}, {"num_neighbors": 0}, {"method": "paper"}),
        *({"model": "two-token"}, {"model": "two-token", "method": "paper"}),
    ],
    ids=str,
)
def test_with_an_expert_that_only_python_has(settings, exact):
    learners, made = zip(*(ensemble_with(Frequency(5), **settings) for _ in range(2)), strict=True)
    for ensemble in made:
        ensemble.others["frequency"].exact = exact
    assert isinstance(made[0].one_row, OneRow)
    for x, y in zip(X[20:26], Y[20:26], strict=True):
        (features, raw), num_seen = learners[0]._parts.inputs.predict(x[None])[0], np.array([5])
        one = made[0].one_row.predict(features, 5, raw=raw).copy()
        whole = made[1].predict(Queries(features, num_seen, raw=raw))
        assert np.array_equal(one, whole.log_probs)
        one = made[0].one_row.append(features, y, 5).copy()
        assert np.array_equal(one, made[1].extend(Batch(features, np.array([y]), num_seen, raw=raw), whole))
        for ours, theirs in zip(made[0].mixer.weights, made[1].mixer.weights, strict=True):
            assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("model", ["pi", "two-token"])
def test_predictions_between_do_not_reach_what_is_learned(model):
    plain, asked = (Learner(engine="native", model=model, **SMALL) for _ in range(2))
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        asked.predict_proba(x)
        if i % 3 == 0:
            asked.predict_proba(X[-1 - i])  # the last one predicted is another
            asked.predict_many(X[:3])
        if i % 10 == 0:
            (copy.deepcopy(asked) if i % 20 else asked.snapshot()).predict_proba(X[i - 7])
        asked.learn(x, y)
        plain.learn(x, y)
    assert np.array_equal(asked.predict_log_proba_many(X), plain.predict_log_proba_many(X))


def test_a_copy_has_memory_of_its_own():
    learner = Learner(5, engine="native", **SMALL)
    for x, y in zip(X[:20], Y[:20], strict=True):
        learner.learn(x, y)
    learner.predict_proba(X[20])
    copied = copy.deepcopy(learner)
    expected = learner.predict_proba(X[21])
    for x, y in zip(X[20:40], Y[20:40], strict=True):
        learner.learn(x, y)
    assert copied.predict_proba(X[21]) == expected
    assert learner.predict_proba(X[21]) != expected


def test_features_that_stay_constant_vary_later_or_break():
    x = np.column_stack([X[:, 0], np.full(60, 7.0), np.where(np.arange(60) < 45, 1.0, X[:, 1]), X[:, 2]])
    x = np.concatenate([x, x + 0.1])
    x[[70, 71, 80], 0] = 1e6  # far outside its range
    labels = [*Y, *Y]
    one, whole = (Learner(4, engine="native", **SMALL) for _ in range(2))
    for row, label in zip(x, labels, strict=True):
        one.predict_proba(X[0, [0, 1, 2, 0]])  # another one: nothing of it stays
        one.learn(row.tolist(), label)
    whole.learn_many(x[:96], labels[:96])
    for row, label in zip(x[96:], labels[96:], strict=True):
        whole.learn(row, label)
    states = [learner.state_dict()["learner"]["parts"]["inputs"]["current"] for learner in (one, whole)]
    for name in ("count", "mean", "square"):
        assert np.array_equal(states[0][name], states[1][name])
    for name, value in states[0]["guard"].items():
        assert np.array_equal(value, states[1]["guard"][name])
    assert np.array_equal(one.predict_log_proba_many(x[:5]), whole.predict_log_proba_many(x[:5]))
