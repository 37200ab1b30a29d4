from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from prequential.baselines import ReplayStreams
from prequential.errors import BadSetting
from prequential.storage.checkpoint import same_state
from prequential.streams.formats.arrays import ArrayStream


def data(n, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 4)).astype(np.float32)
    return x, (x @ random.normal(size=(4, 3))).argmax(1)


def recorded(monkeypatch):
    """The first feature of every example of every step, in order."""
    seen = []
    original = ReplayStreams._step

    def spy(self, x, y):
        seen.append(x[:, 0].tolist())
        original(self, x, y)

    monkeypatch.setattr(ReplayStreams, "_step", spy)
    return seen


def test_steps_and_what_they_read(monkeypatch):
    seen = recorded(monkeypatch)
    x = np.arange(205, dtype=np.float32)[:, None].repeat(2, axis=1)
    learner = ReplayStreams(2, chunk_size=10, num_streams=3, standardize=False)
    learner.observe(x, [0, 1] * 102 + [0])
    learner.flush()
    assert learner.steps == 3 * 21  # E steps for each of the chunks, the short one included
    for turn in range(21):
        new, *replayed = seen[3 * turn : 3 * turn + 3]
        assert new == list(range(10 * turn, min(10 * turn + 10, 205)))
        for chunk in replayed:
            assert chunk[0] % 10 == 0
            assert len(chunk) == 10
            assert chunk[-1] < max(10 * turn, 10)  # strictly past, but for the first turn


def test_no_replay_is_one_step_a_chunk():
    learner = ReplayStreams(3, chunk_size=10, num_streams=1)
    learner.observe(*data(100))
    assert learner.steps == 10
    assert learner.memory.length == 0  # nothing to read again, so nothing is kept


def test_the_average_and_the_calibration_are_as_written():
    x, y = data(30)
    learner = ReplayStreams(
        3, chunk_size=10, num_streams=1, hidden_sizes=(), ema_rate=0.4, learning_rate=0.05, standardize=False
    )
    learner.observe(x[:20], y[:20])
    assert float(F.softplus(torch.tensor(math.log(math.e - 1)))) == pytest.approx(1)
    inputs, labels = torch.from_numpy(x[20:]), torch.tensor([learner.labels.class_id(label) for label in y[20:]])
    logits = learner.averaged(inputs).detach()
    reported = torch.log_softmax(F.softplus(learner.beta.detach()) * logits, 1)
    phi = [p.detach().clone() for p in learner.averaged.parameters()]
    beta = learner.beta.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(F.softplus(beta) * logits, labels), beta)
    charges = learner.observe(x[20:], y[20:])
    np.testing.assert_allclose(charges.log_loss, -reported[torch.arange(10), labels], rtol=1e-5)
    assert torch.sign(learner.beta.detach() - beta.detach()) == -torch.sign(slope)  # downhill
    for new, old, theta in zip(learner.averaged.parameters(), phi, learner.network.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), 0.6 * old + 0.4 * theta.detach())


def test_without_calibration_beta_stays():
    learner = ReplayStreams(3, chunk_size=10, calibration_rate=0)
    learner.observe(*data(100))
    assert float(F.softplus(learner.beta.detach())) == pytest.approx(1)


def test_replay_from_a_stream_equals_replay_from_the_journal():
    x, y = data(200)
    kept, following = ReplayStreams(3, chunk_size=10), ReplayStreams(3, chunk_size=10)
    following.replay_from(ArrayStream(x, y))
    for start in range(0, 200, 40):
        a = kept.observe(x[start : start + 40], y[start : start + 40])
        b = following.observe(x[start : start + 40], y[start : start + 40])
        assert np.array_equal(a.log_loss, b.log_loss)
    assert same_state(kept._state_dict(), following._state_dict())


def test_replay_helps_on_a_short_stream():
    x, y = data(600)
    alone, eight = (ReplayStreams(3, chunk_size=20, num_streams=streams).observe(x, y) for streams in (1, 8))
    assert eight.log_loss.mean() < alone.log_loss.mean() - 0.05


def test_learns_images_from_scratch():
    random = np.random.default_rng(0)
    y = random.integers(2, size=240)  # after half of them, rounding still decides between 70 and 100 %
    x = random.integers(60, size=(240, 16, 16), dtype=np.uint8)
    x[y == 1, 4:12] += 150
    learner = ReplayStreams(2, chunk_size=10, num_streams=2, hidden_sizes=(), learning_rate=3e-3, ema_rate=0.3)
    assert learner.observe(x, y).correct[180:].mean() > 0.8


def test_bad_settings():
    with pytest.raises(BadSetting, match=r"num_streams \(0\)"):
        ReplayStreams(2, num_streams=0)
    with pytest.raises(BadSetting, match=r"ema_rate \(0\)"):
        ReplayStreams(2, ema_rate=0)


def test_the_average_moves_at_every_step_and_calibration_on_new_chunks_only(monkeypatch):
    """Steps 3 and 4: theta and phi move on the new chunk and on each replayed one; step 2 is on the new one alone."""
    x, y = data(60)
    learner = ReplayStreams(
        3, chunk_size=10, num_streams=3, hidden_sizes=(), ema_rate=0.4, learning_rate=0.05, standardize=False
    )
    learner.observe(x[:40], y[:40])
    moves, slopes, phis = [], [], []
    step, calibrate = learner._step, learner.calibrator.step

    def spy(inputs, labels):
        phi = [p.detach().clone() for p in learner.averaged.parameters()]
        theta = [p.detach().clone() for p in learner.network.parameters()]
        assert not phis or all(map(torch.equal, phi, phis[-1]))  # as the step before left it
        step(inputs, labels)
        for new, old, now, was in zip(
            learner.averaged.parameters(), phi, learner.network.parameters(), theta, strict=True
        ):
            torch.testing.assert_close(new.detach(), 0.6 * old + 0.4 * now.detach())
            assert not torch.equal(now, was)
        moves.append(inputs[:, 0].tolist())
        phis.append([p.detach().clone() for p in learner.averaged.parameters()])

    def spy_on_beta(loss):
        slopes.append(len(moves))
        calibrate(loss)

    monkeypatch.setattr(learner, "_step", spy)
    monkeypatch.setattr(learner.calibrator, "step", spy_on_beta)
    learner.observe(x[40:], y[40:])
    assert [moves[0], moves[3]] == [x[40:50, 0].tolist(), x[50:, 0].tolist()]
    assert len(moves) == 6
    assert all(map(torch.equal, learner.averaged.parameters(), phis[-1]))
    assert slopes == [0, 3]  # once a chunk, before its steps
