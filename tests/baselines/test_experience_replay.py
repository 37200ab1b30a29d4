from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from prequential.baselines import ExperienceReplay, KalmanNetwork, ReplayStreams
from prequential.errors import BadSetting
from prequential.storage.checkpoint import same_state


def data(n, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 4)).astype(np.float32)
    return x, (x @ random.normal(size=(4, 3))).argmax(1)


def test_the_replayed_half_is_from_the_buffer_and_never_the_new_batch(monkeypatch):
    steps = []
    original = ExperienceReplay._step

    def spy(self, network, velocity, rate, parts):
        steps.append([x[:, 0].tolist() for x, _ in parts])
        return original(self, network, velocity, rate, parts)

    monkeypatch.setattr(ExperienceReplay, "_step", spy)
    x = np.arange(400, dtype=np.float32)[:, None].repeat(2, axis=1)
    ExperienceReplay(2, batch=10, buffer=50, standardize=False, learning_rate=0.0).observe(x, [0, 1] * 200)
    assert len(steps) == 40
    assert len(steps[0]) == 1  # nothing to replay yet
    for t, (new, replayed) in enumerate(steps[1:], start=1):
        assert new == list(range(10 * t, 10 * t + 10))
        assert len(replayed) == 10
        assert max(replayed) < 10 * t  # strictly before the new batch
        assert min(replayed) >= 10 * t - 50  # and still in the buffer


def test_a_step_is_on_half_and_half_with_momentum_and_decay():
    x, y = data(30)
    learner = ExperienceReplay(3, batch=10, buffer=50, learning_rate=0.1, standardize=False)
    learner.observe(x[:20], y[:20])
    learner.labels.assign([0, 1, 2])
    network, velocity = learner.copies[0], [v.clone() for v in learner.velocity[0]]
    weights = [p.detach().clone() for p in network.parameters()]
    old_x, old_y = learner.buffer.draw(np.random.default_rng([0, 2]), 10)
    class_ids = torch.tensor([learner.labels.class_id(label) for label in y[20:]])
    loss = 0.5 * F.cross_entropy(network(torch.from_numpy(x[20:])), class_ids)
    loss = loss + 0.5 * F.cross_entropy(network(torch.from_numpy(old_x)), torch.from_numpy(old_y))
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    learner.observe(x[20:], y[20:])
    for new, weight, v, gradient in zip(network.parameters(), weights, velocity, gradients, strict=True):
        torch.testing.assert_close(new.detach(), weight - 0.1 * (0.9 * v + gradient + 1e-4 * weight))


def test_parameters_are_frozen_inside_a_batch():
    x, y = data(25)
    learner = ExperienceReplay(3, batch=10, buffer=50, learning_rate=0.1, standardize=False)
    learner.observe(x[:20], y[:20])
    before = learner.predict_log_proba_many(x)
    learner.observe(x[20:], y[20:])
    assert np.array_equal(before, learner.predict_log_proba_many(x))
    learner.flush()
    assert not np.array_equal(before, learner.predict_log_proba_many(x))
    assert learner.num_committed == 25


def test_polrs_keeps_the_best_rate():
    x, y = data(4000)
    timid = {"batch": 10, "buffer": 200, "learning_rate": 1e-4, "period": 20}
    searching, fixed = ExperienceReplay(3, polrs=True, **timid), ExperienceReplay(3, **timid)
    found, stuck = searching.observe(x, y), fixed.observe(x, y)
    assert searching.learning_rate > 1e-3
    assert found.log_loss[-1000:].mean() < stuck.log_loss[-1000:].mean() - 0.15


def test_polrs_selection_copies_weights_and_restarts():
    x, y = data(200)
    learner = ExperienceReplay(3, batch=10, buffer=100, learning_rate=0.05, polrs=True, period=10)
    learner.observe(x[:190], y[:190])
    a, b, c = (torch.cat([p.flatten() for p in network.parameters()]) for network in learner.copies)
    assert not torch.equal(a, b)
    assert not torch.equal(b, c)
    rate = learner.learning_rate
    learner.right[:] = [0, 0, 1000]  # the slowest wins
    learner.observe(x[190:], y[190:])  # the tenth step
    a, b, c = (torch.cat([p.flatten() for p in network.parameters()]) for network in learner.copies)
    assert torch.equal(a, b)
    assert torch.equal(b, c)
    assert learner.learning_rate == rate / 2
    assert all(not v.any() for velocity in learner.velocity for v in velocity)
    assert learner.right.tolist() == [0, 0, 0]


def test_polrs_predicts_with_the_best_copy_and_the_middle_one_while_there_is_no_better():
    x, y = data(20)
    learner = ExperienceReplay(3, batch=10, learning_rate=0.05, polrs=True, standardize=False)
    learner.observe(x, y)
    for right, best in (([0, 0, 0], 1), ([3, 3, 3], 1), ([4, 3, 3], 0), ([2, 3, 5], 2)):
        learner.right[:] = right
        with torch.no_grad():
            wanted = torch.log_softmax(learner.copies[best](torch.from_numpy(x)), 1).numpy()
        assert np.array_equal(learner.predict_log_proba_many(x), wanted)


@pytest.mark.parametrize(
    ("replayed", "size"), [(600, 200), (506, 200), (504, 100), (500, 100), (496, 100), (494, 50), (400, 50)]
)
def test_adrep_resizes_the_buffer_beyond_half_a_point(replayed, size):
    x, y = data(100)
    learner = ExperienceReplay(3, batch=10, buffer=100, adrep=True, period=10_000)
    learner.observe(x, y)
    learner.fit[:] = [replayed, 1000, 500, 1000]  # next-batch accuracy 50.0 %
    learner._select()
    assert learner.buffer.size == size


def test_adrep_stays_between_a_batch_and_the_limit():
    def resized(replayed, times, **settings):
        learner = ExperienceReplay(3, batch=10, adrep=True, period=10_000, **settings)
        learner.observe(*data(30))
        for _ in range(times):
            learner.fit[:] = [replayed, 1000, 500, 1000]
            learner._select()
        return learner.buffer.size

    assert resized(900, 3, buffer=20, buffer_limit=70) == 70
    assert resized(900, 9, buffer=20) == 8 * 20
    assert resized(100, 9, buffer=45) == 10
    assert resized(100, 3, buffer=4) == 4  # smaller than the batch: it must not grow


def test_learns_images_from_scratch():
    random = np.random.default_rng(0)
    y = random.integers(2, size=120)
    x = random.integers(60, size=(120, 16, 16), dtype=np.uint8)
    x[y == 1, 4:12] += 150
    learner = ExperienceReplay(2, batch=10, buffer=100, learning_rate=0.1)
    assert learner.observe(x, y).correct[60:].mean() > 0.8
    assert learner.copies[0].extractor is not None


def test_counts_its_work():
    learner = ExperienceReplay(3, batch=2, hidden_sizes=(5,))
    assert learner.macs_per_example() is None
    learner.observe(np.zeros((2, 4)), [0, 1])
    assert learner.macs_per_example() == 7 * (4 * 5 + 5 * 3)


def test_bad_settings():
    with pytest.raises(BadSetting, match=r"learning_rate \(-1\)"):
        ExperienceReplay(2, learning_rate=-1)
    with pytest.raises(BadSetting, match=r"momentum \(1.0\) must be below 1"):
        ExperienceReplay(2, momentum=1.0)
    with pytest.raises(BadSetting, match=r"buffer_limit \(50\) must be at least the buffer \(100\)"):
        ExperienceReplay(2, buffer=100, buffer_limit=50)
    with pytest.raises(BadSetting, match=r"seed \(-1\) must be at least 0"):
        ExperienceReplay(2, seed=-1)
    with pytest.raises(BadSetting, match="extractor"):
        ExperienceReplay(2, extractor="resnet")
    with pytest.raises(BadSetting, match=r"hidden_sizes \(\[0\]\)"):
        ExperienceReplay(2, hidden_sizes=[0])


def test_whole_numbers_first_and_others_later_are_all_replayed_as_they_were(tmp_path):
    x, y = data(200)
    x = x.astype(np.float64)
    x[:20] = np.round(4 * x[:20])
    whole = ExperienceReplay(3, batch=10, buffer=500, learning_rate=0.1)
    wanted = whole.observe(x, y).log_loss
    mixed = ExperienceReplay(3, batch=10, buffer=500, learning_rate=0.1)
    losses = [mixed.observe(x[:20].astype(np.int64), y[:20]).log_loss]
    mixed.save(tmp_path / "er")
    for learner in (mixed, ExperienceReplay.load(tmp_path / "er")):
        assert np.array_equal(np.concatenate([*losses, learner.observe(x[20:], y[20:]).log_loss]), wanted)


@pytest.mark.parametrize("kind", [ExperienceReplay, ReplayStreams, KalmanNetwork])
def test_a_first_example_that_is_refused_changes_nothing(kind):
    learner = kind(3, extractor="convnet")
    before = learner.state_dict()
    for call in (learner.observe, learner.learn_many):
        with pytest.raises(BadSetting, match=r"needs images, but x has shape \(4,\)"):
            call(*data(5))
    assert same_state(before, learner.state_dict())
    assert learner.shape is None
    learner.observe(np.zeros((3, 16, 16), dtype=np.uint8), [7, 8, 9])  # all three labels are still free


def test_a_state_is_a_snapshot():
    x, y = data(40)
    learner = ExperienceReplay(3, batch=10, learning_rate=0.1)
    learner.observe(x[:20], y[:20])
    state, before = learner.state_dict(), learner.predict_log_proba_many(x)
    learner.observe(x[20:], y[20:])
    learner.load_state_dict(state)
    assert np.array_equal(learner.predict_log_proba_many(x), before)


def test_a_network_that_has_diverged_gives_finite_probabilities():
    learner = ExperienceReplay(3, hidden_sizes=[4], batch=2)
    x = np.full((3, 8, 8, 3), 2.0**63)
    x[1] = 0.5
    charges = learner.observe(x, [0, 1, 2])
    assert np.isfinite(charges.log_loss).all()
    assert not np.isnan(learner.predict_log_proba_many(x)).any()
