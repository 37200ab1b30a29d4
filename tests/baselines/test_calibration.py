from __future__ import annotations

import numpy as np
import pytest
import torch

from prequential.baselines.calibration import Calibration
from prequential.errors import BadSetting


def new(**changes):
    return Calibration(**{"classes": 4, "samples": 8, "learn": True, "block": 5, "seed": 3, **changes})


def outputs(n, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=random), torch.rand(n, generator=random)


def test_without_variance_it_is_the_softmax():
    mean, _ = outputs(6)
    calibration = new()
    log_p = calibration.predict(mean, torch.zeros(6))
    expected = torch.log_softmax(np.exp(calibration.log_alpha) * mean, dim=1).numpy()
    np.testing.assert_allclose(log_p, expected, atol=1e-5)


def test_monte_carlo_comes_near_the_integral():
    """Of two outputs only the difference counts, which is Gaussian: an integral over one variable, on a grid."""
    mean, variance = torch.tensor([[0.3, -0.2], [1.0, 0.5], [-2.0, 0.0]]), torch.tensor([0.5, 2.0, 0.1])
    calibration = new(classes=2, samples=20_000)
    p = np.exp(calibration.predict(mean, variance))
    noise = np.linspace(-8, 8, 4001)
    density = np.exp(-(noise**2) / 2) / np.sqrt(2 * np.pi) * (noise[1] - noise[0])
    for row, (first, second), var in zip(p, mean.tolist(), variance.tolist(), strict=True):
        z = np.exp(calibration.log_alpha) * (first - second + np.sqrt(2 * var) * noise)
        expected = (density / (1 + np.exp(-z))).sum()
        np.testing.assert_allclose(row, [expected, 1 - expected], atol=0.01)


def test_the_noise_depends_on_the_position_only():
    mean, variance = outputs(9)
    labels = torch.zeros(9, dtype=torch.int64)
    whole = new(learn=False).observe(mean, variance, labels)
    one = new(learn=False)
    for t in range(9):
        row = slice(t, t + 1)
        first = one.predict(mean[row], variance[row])
        assert np.array_equal(first, one.predict(mean[row], variance[row]))
        np.testing.assert_allclose(one.observe(mean[row], variance[row], labels[row]), whole[row], atol=1e-6)
    assert not np.allclose(new(seed=4).predict(mean, variance), new().predict(mean, variance))


def test_its_gradient_against_autograd():
    mean, variance = outputs(4)
    labels = torch.tensor([0, 3, 1, 1])
    calibration = new()
    noise = calibration._noise(0, 4, mean.shape[1])
    log_alpha = torch.tensor(calibration.log_alpha, requires_grad=True)
    z = log_alpha.exp() * (mean[:, None] + variance.sqrt()[:, None, None] * noise)
    p = torch.softmax(z, 2).mean(1)
    (-torch.log(p[torch.arange(4), labels]).sum()).backward()
    calibration.observe(mean, variance, labels)
    assert calibration.gradient == pytest.approx(log_alpha.grad.item(), rel=1e-4)


def test_it_finds_the_best_sharpness():
    random = torch.Generator().manual_seed(0)
    mean = torch.randn(20_000, 4, generator=random)
    labels = torch.multinomial(torch.softmax(5 * mean, 1), 1, generator=random)[:, 0]  # the truth is alpha = 5
    calibration = new(block=10)
    for i in range(0, 20_000, 10):
        calibration.observe(mean[i : i + 10], torch.zeros(10), labels[i : i + 10])
    assert np.exp(calibration.log_alpha) == pytest.approx(5, rel=0.1)


def test_odd_samples_are_refused():
    with pytest.raises(BadSetting, match=r"samples \(3\)"):
        new(samples=3)
