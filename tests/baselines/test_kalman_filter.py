from __future__ import annotations

import math

import pytest
import torch

from prequential.baselines.kalman_filter import KalmanFilter, drift_gradient
from prequential.errors import BadSetting

M, K = 6, 3


def problem(n, seed=0):
    random = torch.Generator().manual_seed(seed)
    phi = torch.randn(n, M, generator=random, dtype=torch.float64)
    y = torch.nn.functional.one_hot((phi @ torch.randn(M, K, generator=random, dtype=torch.float64)).argmax(1), K)
    return phi, y.double()


def new(**changes):
    settings = {"features": M, "classes": K, "block": 8, "noise": 0.3, "prior": 0.7, "gamma": 1.0, "drift_rate": 0.0}
    return KalmanFilter(**{**settings, **changes})


def in_blocks(kalman, phi, y):
    parts = [
        kalman.observe(phi[i : i + kalman.block], y[i : i + kalman.block]) for i in range(0, len(phi), kalman.block)
    ]
    return torch.cat([mean for mean, _ in parts]), torch.cat([variance for _, variance in parts])


def recursion(phi, y, *, gamma, block, noise=0.3, prior=0.7):
    """The filter as it is written on paper, one example at a time, with the drift at the start of each block."""
    mean, cov, predicted = torch.zeros(M, K).double(), prior * torch.eye(M).double(), []
    for i in range(len(phi)):
        if i % block == 0:
            mean, cov = gamma * mean, gamma**2 * cov + (1 - gamma**2) * prior * torch.eye(M).double()
        x = phi[i]
        v = x @ cov @ x + noise
        g = cov @ x / v
        predicted.append((x @ mean, v - noise))
        mean = mean + torch.outer(g, y[i] - x @ mean)
        cov = cov - torch.outer(g, cov @ x)
    return mean, cov, torch.stack([m for m, _ in predicted]), torch.stack([v for _, v in predicted])


def test_without_drift_it_is_the_ridge_posterior():
    phi, y = problem(64)
    kalman = new()
    in_blocks(kalman, phi, y)
    precision = phi.T @ phi / 0.3 + torch.eye(M).double() / 0.7
    torch.testing.assert_close(kalman.covariance, torch.linalg.inv(precision))
    torch.testing.assert_close(kalman.mean, torch.linalg.solve(precision, phi.T @ y / 0.3))


def test_gamma_zero_is_the_prior_at_every_block():
    phi, y = problem(40)
    mean, variance = in_blocks(new(gamma=0.0, block=1), phi, y)
    assert torch.equal(mean, torch.zeros(40, K, dtype=torch.float64))
    torch.testing.assert_close(variance, 0.7 * (phi * phi).sum(1))


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("block", [1, 5, 20])
def test_blocks_equal_the_sequential_form(gamma, block):
    phi, y = problem(60)
    kalman = new(gamma=gamma, block=block)
    mean, variance = in_blocks(kalman, phi, y)
    expected = recursion(phi, y, gamma=gamma, block=block)
    for found, wanted in zip((kalman.mean, kalman.covariance, mean, variance), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_pieces_of_a_block_and_predictions_in_between():
    phi, y = problem(24)
    whole = in_blocks(new(gamma=0.8), phi, y)
    kalman, start = new(gamma=0.8), 0
    for size in (1, 3, 4, 2, 6, 7, 1):
        piece = slice(start, start + size)
        first = kalman.predict(phi[start : start + 1])
        found = kalman.observe(phi[piece], y[piece])
        for a, b, c in zip(first, found, whole, strict=True):
            torch.testing.assert_close(a[0], b[0])
            torch.testing.assert_close(b, c[piece])
        start += size


def test_no_row_sees_its_own_label_or_a_later_one():
    phi, y = problem(8)
    before = new().observe(phi, y)[0]
    for t in range(8):
        other = y.clone()
        other[t:] = other[t:].roll(1, dims=1)
        after = new().observe(phi, other)[0]
        assert torch.equal(before[: t + 1], after[: t + 1])
        if t < 7:
            assert (before[t + 1] != after[t + 1]).any()


def log_density(delta, phi, y, mean, cov, noise=0.3, prior=0.7):
    gamma2 = torch.exp(-delta)
    S = (
        gamma2 * phi @ cov @ phi.T
        + (1 - gamma2) * prior * phi @ phi.T
        + noise * torch.eye(len(phi), dtype=torch.float64)
    )
    return sum(
        torch.distributions.MultivariateNormal(torch.exp(-delta / 2) * phi @ mean[:, k], S).log_prob(y[:, k])
        for k in range(K)
    )


@pytest.mark.parametrize("block", [1, 6])
@pytest.mark.parametrize("delta", [0.0, 0.05, 1.3])
def test_drift_gradient_against_autograd(block, delta):
    phi, y = problem(30)
    kalman = new(gamma=math.exp(-delta / 2), block=block)
    in_blocks(kalman, phi, y)
    phi, y = problem(block, seed=1)
    variable = torch.tensor(delta, dtype=torch.float64, requires_grad=True)
    log_density(variable, phi, y, kalman.mean, kalman.covariance).backward()
    kalman.block += 1  # so that the block stays open
    kalman.observe(phi, y)
    parts = (kalman.phi, kalman.rotated, kalman.white, kalman.factor, kalman.mean)
    assert drift_gradient(*parts, kalman.gamma, 0.7) == pytest.approx(variable.grad.item(), rel=1e-9)


def test_drift_gradient_of_one_example_is_the_formula():
    phi, y = problem(16)
    kalman = new(gamma=0.9, block=4)
    in_blocks(kalman, phi, y)
    phi, y = problem(1, seed=2)
    x, g, m = phi[0], kalman.gamma, kalman.mean
    a, b, f = x @ kalman.covariance @ x, 0.7 * x @ x, g * x @ m
    v, dv, df = g**2 * a + (1 - g**2) * b + 0.3, -(g**2) * (a - b), -f / 2
    r = y[0] - f
    expected = -K * dv / (2 * v) + r @ df / v + r @ r * dv / (2 * v**2)
    kalman.observe(phi, y)
    parts = (kalman.phi, kalman.rotated, kalman.white, kalman.factor, m)
    assert drift_gradient(*parts, g, 0.7) == pytest.approx(expected.item(), rel=1e-9)


def test_delta_moves_along_the_gradient_and_never_below_zero():
    phi, y = problem(8)
    kalman = new(gamma=0.9, drift_rate=0.01)
    delta, mean, cov = kalman.delta, kalman.mean, kalman.covariance.clone()
    kalman.observe(phi, y)
    variable = torch.tensor(delta, dtype=torch.float64, requires_grad=True)
    log_density(variable, phi, y, mean, cov).backward()
    assert kalman.delta == pytest.approx(max(0.0, delta + 0.01 * variable.grad.item() / (8 * K)), rel=1e-9)
    down = new(gamma=1.0, drift_rate=10.0)
    phi, y = problem(800)
    in_blocks(down, phi, y)
    assert down.delta >= 0


def test_covariance_stays_symmetric_and_positive_over_many_blocks():
    phi, y = problem(8000)
    kalman = new(gamma=0.999)
    in_blocks(kalman, phi, y)
    torch.testing.assert_close(kalman.covariance, kalman.covariance.T, rtol=0, atol=1e-12)
    assert torch.linalg.eigvalsh(kalman.covariance).min() > 0


def test_panels_of_the_update_do_not_show(monkeypatch):
    phi, y = problem(64)
    whole = new(gamma=0.9)
    in_blocks(whole, phi, y)
    monkeypatch.setattr("prequential.baselines.kalman_filter.PANEL", 4)
    panels = new(gamma=0.9)
    in_blocks(panels, phi, y)
    torch.testing.assert_close(panels.covariance, whole.covariance)


def test_a_lost_covariance_gets_a_sentence():
    kalman = new()
    kalman.covariance -= 10 * torch.eye(M)
    with pytest.raises(BadSetting, match="no longer positive definite in float64"):
        kalman.observe(*problem(4))
