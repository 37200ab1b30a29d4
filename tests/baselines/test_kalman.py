from __future__ import annotations

import numpy as np
import pytest
import torch

from prequential.baselines import Kalman
from prequential.baselines.kalman_filter import KalmanFilter
from prequential.errors import BadInput, BadSetting
from prequential.learners.normalizer import Normalizer
from prequential.storage.checkpoint import same_state


def switching(n=4000, parts=4, seed=0):
    """A linear rule that is replaced by another one every now and then."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 5))
    w = random.normal(size=(parts, 5, 3))
    return x, np.array([(row @ w[i * parts // n]).argmax() for i, row in enumerate(x)])


def test_features_are_standardised_by_the_past_with_a_constant():
    x = np.random.default_rng(0).normal(5, 3, size=(20, 4))
    learner = Kalman(2, block=8)
    learner.learn_many(x[:8], [0, 1] * 4)
    phi = learner._features(x[8:], consecutive=True).numpy()
    normalizer = Normalizer(4)
    normalizer.update(x[:8])
    assert np.array_equal(phi[:, :4], normalizer.transform(x[8:]))
    assert (phi[:, 4] == 1).all()


def test_the_drift_is_learned_where_there_is_one_and_only_there():
    x, y = switching()
    drifting, fixed = Kalman(3, block=16), Kalman(3, block=16, drift_rate=0)
    assert drifting.observe(x, y).correct.mean() > fixed.observe(x, y).correct.mean() + 0.1
    still = Kalman(3, block=16)
    x, y = switching(parts=1)
    still.observe(x, y)
    assert still.filter.delta == pytest.approx(0, abs=1e-3)


def test_one_by_one_equals_blocks_at_every_point_of_the_block():
    x, y = switching(100)
    whole = Kalman(3, block=32).observe(x, y)
    learner = Kalman(3, block=32)
    losses = []
    for row, label in zip(x, y, strict=True):
        losses.append(-np.log(learner.predict_proba(row)[label]))
        learner.learn(row, label)
    np.testing.assert_allclose(losses, whole.log_loss, rtol=1e-4)


def test_float32_agrees_with_float64():
    x, y = switching(1000)
    a = Kalman(3).observe(x, y)
    b = Kalman(3, precision="float32").observe(x, y)
    np.testing.assert_allclose(a.log_loss, b.log_loss, atol=5e-3)


def test_missing_values_and_images():
    x, y = switching(300)
    x[::7, 2] = np.nan
    assert np.isfinite(Kalman(3, missing=True).observe(x, y).log_loss).all()
    images = np.random.default_rng(0).integers(255, size=(50, 4, 4), dtype=np.uint8)
    assert np.isfinite(Kalman(3).observe(images, y[:50]).log_loss).all()


def test_counts_its_work():
    learner = Kalman(3, block=4)
    assert learner.macs_per_example() is None
    learner.observe(np.zeros((4, 100)), [0, 1, 2, 0])
    assert learner.macs_per_example() > 1.5 * 101 * 101


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gamma": 1.5}, r"gamma \(1.5\) must be from 0 to 1"),
        ({"block": 0}, r"block \(0\)"),
        ({"noise": 0.0}, r"noise \(0.0\) must be above 0"),
        ({"drift_rate": -1.0}, r"drift_rate \(-1.0\)"),
        ({"precision": "float16"}, "precision"),
        ({"missing": True, "standardize": False}, "standardize"),
    ],
)
def test_bad_settings(changes, words):
    with pytest.raises(BadSetting, match=words):
        Kalman(2, **changes)


@pytest.mark.parametrize("size", [16, 100])  # within a block, and over several of which the later ones are refused
def test_what_the_filter_refuses_changes_nothing(size, monkeypatch):
    x, y = switching(200)
    learner = Kalman(4, block=32)
    learner.observe(x[:40], y[:40])
    before = learner.state_dict()
    original, count = KalmanFilter.observe, 0

    def loses(self, phi, labels, active):
        nonlocal count
        count += 1
        if count == (1 if size == 16 else 3):
            self.covariance = self.covariance - 10 * torch.eye(6)
        return original(self, phi, labels, active)

    monkeypatch.setattr(KalmanFilter, "observe", loses)
    covariance = learner.filter.covariance.clone()
    with pytest.raises(BadSetting, match="positive definite"):
        learner.observe(x[40 : 40 + size], ["new", *y[41 : 40 + size]])
    learner.filter.covariance = covariance if size == 16 else learner.filter.covariance
    assert same_state(before, learner.state_dict())
    assert "new" not in learner.labels


def test_a_first_example_that_is_refused_changes_nothing():
    learner = Kalman(2, standardize=False)
    before = learner.state_dict()
    with pytest.raises(BadInput, match=r"example 0: feature .* is 1e\+200, expected at most"):
        learner.learn([1e200, 1.0], "a")
    assert same_state(before, learner.state_dict())
    learner.learn([1.0, 1.0, 1.0], "b")  # and another shape may come first
    assert learner.labels.known == ["b"]
