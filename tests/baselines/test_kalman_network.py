from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from prequential.baselines import Kalman, KalmanNetwork
from prequential.baselines.kalman import make_filter
from prequential.errors import BadSetting
from prequential.labels import Labels
from prequential.storage.checkpoint import same_state


def xor(n, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, 2)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] > 0).astype(int)


def test_learns_what_a_linear_filter_cannot():
    x, y = xor(1500)
    linear = Kalman(2, block=20).observe(x, y).correct[500:].mean()
    learned = KalmanNetwork(2, hidden_sizes=(32,), chunk_size=20, num_streams=4).observe(x, y).correct[500:].mean()
    assert linear < 0.7
    assert learned > 0.95


def test_a_network_that_stands_still_leaves_the_filter_on_its_features():
    x, y = xor(100)
    learner = KalmanNetwork(
        2, hidden_sizes=(8,), chunk_size=10, num_streams=2, learning_rate=0.0, weight_decay=0.0, standardize=False
    )
    learner.observe(x, y)
    with torch.no_grad():
        h = F.layer_norm(learner.network.features(torch.from_numpy(x)), (8,))
    phi = torch.cat([h, torch.ones(100, 1)], 1).double()
    kalman = make_filter(9, Labels(2), {**learner._own, "block": 10})
    class_ids = torch.tensor([learner.labels.class_id(label) for label in y])
    for i in range(0, 100, 10):
        kalman.observe(phi[i : i + 10], F.one_hot(class_ids[i : i + 10], 2).double())
    torch.testing.assert_close(learner.filter.mean, kalman.mean, rtol=1e-4, atol=1e-5)
    assert learner.filter.delta == pytest.approx(kalman.delta, abs=1e-6)


def test_the_network_steps_down_the_loss_of_the_filters_prediction():
    x, y = xor(60)
    learner = KalmanNetwork(
        2, hidden_sizes=(8,), chunk_size=20, num_streams=1, learning_rate=1e-4, weight_decay=0.0, standardize=False
    )
    learner.observe(x[:40], y[:40])
    weights = learner.filter.mean.clone()
    inputs, class_ids = torch.from_numpy(x[40:]), torch.tensor([learner.labels.class_id(label) for label in y[40:]])

    def loss():
        return F.cross_entropy(20 * learner._phi(inputs) @ weights.float(), class_ids).item()

    before = loss()
    learner.observe(x[40:], y[40:])
    assert loss() < before
    assert learner.steps == 3


def test_needs_something_to_learn():
    learner = KalmanNetwork(2, hidden_sizes=())
    with pytest.raises(BadSetting, match="hidden"):
        learner.observe(*xor(5))
    with pytest.raises(BadSetting, match=r"samples \(1\)"):
        KalmanNetwork(2, samples=1)


def test_images_from_scratch():
    random = np.random.default_rng(0)
    y = random.integers(2, size=200)
    x = random.integers(60, size=(200, 16, 16), dtype=np.uint8)
    x[y == 1, 4:12] += 150
    learner = KalmanNetwork(2, hidden_sizes=(), chunk_size=10, num_streams=1)
    assert learner.observe(x, y).correct[150:].mean() > 0.8
    assert learner.macs_per_example() > 4 * learner.network.macs()


def test_steps_are_on_what_predicted_the_chunk_and_then_on_the_past(monkeypatch):
    """The new chunk with alpha gamma M from before it, the replayed ones with those from after it."""
    x, y = xor(80)
    learner = KalmanNetwork(
        2,
        hidden_sizes=(8,),
        chunk_size=20,
        num_streams=3,
        gamma=0.9,
        drift_rate=0.05,
        learning_rate=1e-3,
        standardize=False,
    )
    learner.observe(x[:60], y[:60])
    seen = []
    original = KalmanNetwork._step

    def readout():
        return np.exp(learner.calibration.log_alpha) * learner.filter.gamma * learner.filter.mean.numpy()

    def spy(self, inputs, labels, weights):
        seen.append((inputs[:, 0].tolist(), weights.numpy().copy()))
        original(self, inputs, labels, weights)

    monkeypatch.setattr(KalmanNetwork, "_step", spy)
    before, gamma = readout(), learner.filter.gamma
    learner.observe(x[60:], y[60:])
    after = readout()
    assert learner.filter.gamma != gamma
    assert not np.allclose(before, learner.filter.mean.numpy() * np.linalg.norm(before), rtol=0.05)
    (new, with_new), *replayed = seen
    assert new == x[60:, 0].tolist()
    np.testing.assert_allclose(with_new, before)
    assert len(replayed) == 2
    for old, with_old in replayed:
        assert old in [x[i : i + 20, 0].tolist() for i in (0, 20, 40)]
        np.testing.assert_allclose(with_old, after)
    np.testing.assert_allclose(learner.readout.numpy(), after)


def test_replay_helps_on_a_short_stream():
    x, y = xor(400)
    alone, four = (
        KalmanNetwork(2, hidden_sizes=(32,), chunk_size=20, num_streams=streams).observe(x, y).log_loss.mean()
        for streams in (1, 4)
    )
    assert four < alone - 0.03


def test_a_chunk_that_the_filter_refuses_changes_nothing():
    x, y = xor(60)
    learner = KalmanNetwork(3, hidden_sizes=(8,), chunk_size=20, num_streams=2)
    learner.observe(x[:30], y[:30])
    learner.filter.covariance -= 10 * torch.eye(9)
    before = learner.state_dict()
    with pytest.raises(BadSetting, match="positive definite"):
        learner.observe(x[30:], ["new", *y[31:]])
    assert same_state(before, learner.state_dict())
    assert "new" not in learner.labels
    assert learner.memory.length == 30
