"""The Kalman filter of a linear classifier with one covariance for all classes, in blocks.

Letters: m features (the constant included), K classes, B examples a block, r of them already in the block, n new ones.

The weights are Gaussian, with mean M (m, K) and one covariance A (m, m) that all classes share. At the start of every
block they drift: M- = g M, A- = g^2 A + (1 - g^2) s I with prior variance s and g = exp(-delta / 2). Inside a block
they do not, so the B one-hot labels are jointly Gaussian with covariance S = Phi A- Phi' + noise I, and its Cholesky
factor S = L L' gives, for the price of one block update, the exact prediction of each label from all labels before it:

    mean of row i = Phi_i M- + L[i, <i] E[<i]     with the whitened residuals E = L^-1 (Y - Phi M-)
    variance of row i = L[i, i]^2                 (noise included)

So predictions one by one and in blocks are equal; only the drift is per block.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from prequential.errors import BadSetting

PANEL = 512  # rows of the covariance that are updated at once


class KalmanFilter:
    """The weights of all classes as a Gaussian, and how labels change it.

    Parameters
    ----------
    features
        Length m of the feature vectors, the constant included.
    classes
        Number of classes K.
    block
        Number of examples B between two drift steps.
    noise
        Variance of a one-hot label around its prediction.
    prior
        Variance of each weight at the start, and where it drifts back to.
    gamma
        Drift at the start: 1 never forgets, 0 forgets everything at every block.
    drift_rate
        Step size with which the drift is learned, on delta = -2 log(gamma) and per example and class; 0 keeps it.
    dtype
        float64, or float32, in which the covariance can lose its positive definiteness; see `Kalman`.
    noise_of
        The number of classes that noise and prior were chosen for by `label_variance`; None: they were given. The scale
        of both together changes no prediction, but the drift is learned from how large the errors are beside the noise.
        Where fewer labels have come than there can be, errors are larger.

    Examples
    --------
    >>> kalman = KalmanFilter(features=1, classes=1, block=1, noise=1.0, prior=1.0, gamma=1.0, drift_rate=0.0)
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> for _ in range(3):
    ...     mean, variance = kalman.observe(one, one)
    >>> round(float(kalman.mean), 6)  # three ones and a prior worth one 0
    0.75
    """

    def __init__(
        self,
        *,
        features: int,
        classes: int,
        block: int,
        noise: float,
        prior: float,
        gamma: float,
        drift_rate: float,
        dtype: torch.dtype = torch.float64,
        noise_of: int | None = None,
    ) -> None:
        self.noise_of = noise_of
        self.block, self.noise, self.prior, self.drift_rate = block, noise, prior, drift_rate
        self.delta = abs(2 * math.log(gamma)) if gamma > 0 else math.inf
        self.mean = torch.zeros(features, classes, dtype=dtype)
        self.covariance = prior * torch.eye(features, dtype=dtype)
        self.phi: Tensor  # the examples of the block so far, (r, m)
        self.rotated: Tensor  # Phi A, with A before the drift, (r, m)
        self.white: Tensor  # whitened residuals E, (r, K)
        self.factor: Tensor  # Cholesky factor L, (r, r)
        self._clear()

    @property
    def gamma(self) -> float:
        return math.exp(-self.delta / 2)

    @property
    def pending(self) -> int:
        """How many examples the current block has so far."""
        return len(self.phi)

    def predict(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (n, K) and variance (n,) of the outputs without noise, each example as the next one. Changes nothing."""
        mean, _, cross, own = self._against_pending(phi)
        rows = self._solve(cross)  # (r, n)
        variance = own - (rows * rows).sum(0)
        return mean + rows.T @ self.white, variance.clamp(min=0)

    def observe(self, phi: Tensor, y: Tensor, active: int | None = None) -> tuple[Tensor, Tensor]:
        """As `predict`, but each example after learning the ones before it; phi (n, m), y (n, K) fit in the block.

        The drift is learned from the first `active` classes, by default all. Where y has more classes than before, the
        new ones have had the label 0 all the time, and so weights of 0.
        """
        mean, rotated, cross, own = self._against_pending(phi)
        side = self._solve(cross)  # (r, n)
        gram = self._between(phi, rotated, phi) - side.T @ side  # (n, n)
        gram.diagonal().copy_(own - (side * side).sum(0) + self.noise)
        corner, failed = torch.linalg.cholesky_ex(gram)  # (n, n)
        if failed:
            raise BadSetting(
                f"the covariance is no longer positive definite in {str(phi.dtype).removeprefix('torch.')}; "
                "expected float64, standardized features and a noise that is not tiny beside the prior"
            )
        if y.shape[1] > mean.shape[1]:
            mean, self.mean, self.white = (
                torch.nn.functional.pad(table, (0, y.shape[1] - table.shape[1]))
                for table in (mean, self.mean, self.white)
            )
        mean = mean + side.T @ self.white
        white = torch.linalg.solve_triangular(corner, y - mean, upper=False)
        mean = mean + corner.tril(-1) @ white  # strictly lower: no row sees its own label
        variance = (corner.diagonal() ** 2 - self.noise).clamp(min=0)
        r, n = self.pending, len(phi)
        factor = torch.zeros(r + n, r + n, dtype=phi.dtype)
        factor[:r, :r], factor[r:, :r], factor[r:, r:] = self.factor, side.T, corner
        self.phi, self.rotated = torch.cat([self.phi, phi]), torch.cat([self.rotated, rotated])
        self.white, self.factor = torch.cat([self.white, white]), factor
        if self.pending == self.block:
            self._close(y.shape[1] if active is None else active)
        return mean, variance

    def state_dict(self) -> dict[str, Any]:
        names = ("mean", "covariance", "phi", "rotated", "white", "factor")
        delta = torch.tensor([self.delta], dtype=torch.float64)
        return {"delta": delta, **{name: getattr(self, name).clone() for name in names}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.delta = float(state["delta"][0])
        for name in ("mean", "covariance", "phi", "rotated", "white", "factor"):
            setattr(self, name, torch.as_tensor(state[name]).clone())

    def macs_per_example(self) -> float:
        """A's product with phi, its (half) update, and the same two for M; the small B x B work included."""
        m, K = self.mean.shape
        return m * m + m * (m + PANEL) / 2 + 2 * m * K + 3 * m * self.block + 2 * self.block * (self.block + K)

    def _clear(self) -> None:
        m, K = self.mean.shape
        dtype = self.mean.dtype
        self.phi = torch.zeros(0, m, dtype=dtype)
        self.rotated = torch.zeros(0, m, dtype=dtype)
        self.white = torch.zeros(0, K, dtype=dtype)
        self.factor = torch.zeros(0, 0, dtype=dtype)

    def _against_pending(self, phi: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """phi M- (n, K), phi A (n, m), phi's covariance with the block's examples (r, n) and with itself (n,)."""
        rotated = phi @ self.covariance
        g2 = self.gamma**2
        own = g2 * (phi * rotated).sum(1) + (1 - g2) * self.prior * (phi * phi).sum(1)
        return self.gamma * (phi @ self.mean), rotated, self._between(self.phi, rotated, phi), own

    def _between(self, left: Tensor, rotated: Tensor, right: Tensor) -> Tensor:
        """left A- right', given rotated = right A; A- itself is never formed."""
        g2 = self.gamma**2
        return g2 * (left @ rotated.T) + (1 - g2) * self.prior * (left @ right.T)

    def _solve(self, cross: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.factor, cross, upper=False) if len(cross) else cross

    def _close(self, active: int) -> None:
        """The block is full: updates the weights with it, and learns the drift from it."""
        g2 = self.gamma**2
        gain = g2 * self.rotated + (1 - g2) * self.prior * self.phi  # Phi A-
        gain = torch.linalg.solve_triangular(self.factor, gain, upper=False)  # (B, m), W = L^-1 Phi A-
        delta = self.delta
        if self.drift_rate:
            white, mean = self.white, self.mean
            if active < mean.shape[1]:
                white, mean = white[:, :active], mean[:, :active]
            scale = 1.0 if self.noise_of is None else label_variance(self.noise_of) / label_variance(active)
            gradient = drift_gradient(self.phi, self.rotated, white, self.factor, mean, self.gamma, self.prior, scale)
            delta = max(0.0, delta + self.drift_rate * gradient / (self.block * active))
        self.mean = torch.addmm(self.mean, gain.T, self.white, beta=self.gamma)
        self._shrink(gain, g2)
        self.delta = delta
        self._clear()

    def _shrink(self, gain: Tensor, g2: float) -> None:
        """A = g^2 A + (1 - g^2) s I - W'W, in place; the part above the diagonal panels is copied, not computed."""
        A = self.covariance
        for i in range(0, len(A), PANEL):
            j = min(i + PANEL, len(A))
            A[i:j, :j].addmm_(gain[:, i:j].T, gain[:, :j], beta=g2, alpha=-1.0)
            A[:i, i:j] = A[i:j, :i].T
        A.diagonal().add_((1 - g2) * self.prior)


def label_variance(classes: int) -> float:
    """The variance (1/K)(1 - 1/K) of an entry of a one-hot label that is drawn uniformly."""
    return max(1 / classes * (1 - 1 / classes), 1e-3)


def drift_gradient(
    phi: Tensor,
    rotated: Tensor,
    white: Tensor,
    factor: Tensor,
    mean: Tensor,
    gamma: float,
    prior: float,
    scale: float = 1.0,
) -> float:
    """The derivative of log p(labels of a block | past) with respect to delta = -2 log(gamma).

    With F = g Phi M, S = g^2 P + (1 - g^2) Q + noise I, P = Phi A Phi', Q = prior Phi Phi' and R = Y - F it is

        -K/2 tr(S^-1 S') + tr(R' S^-1 F') + 1/2 tr(R' S^-1 S' S^-1 R)    with F' = -F/2, S' = -g^2 (P - Q),

    which for one example is -K v'/(2v) + (y-f).f'/v + |y-f|^2 v'/(2v^2). Here S = L L' is `factor`, L^-1 R is `white`
    and Phi A is `rotated`. With noise and prior divided by `scale`, the last two terms are as many times as large.
    """
    slope = -(gamma**2) * (rotated @ phi.T - prior * (phi @ phi.T))  # S', (B, B)
    slope = torch.linalg.solve_triangular(factor, slope, upper=False)
    slope = torch.linalg.solve_triangular(factor, slope.T, upper=False)  # L^-1 S' L^-T
    moved = torch.linalg.solve_triangular(factor, -0.5 * gamma * (phi @ mean), upper=False)  # L^-1 F'
    trace = -0.5 * white.shape[1] * slope.diagonal().sum()
    if scale != 1:
        return float(trace + scale * ((white * moved).sum() + 0.5 * (white * (slope @ white)).sum()))
    return float(trace + (white * moved).sum() + 0.5 * (white * (slope @ white)).sum())
