"""From Gaussian outputs to probabilities, with an inverse temperature alpha that is learned."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prequential.errors import BadSetting
from prequential.labels import log_class_prior

NOMINAL_CLASSES = 10  # for what depends on the number of classes at the start, where that is not given


class Calibration:
    """Probabilities E softmax(alpha (mean + deviation * noise)), by Monte Carlo, and alpha learned from the labels.

    The noise of an example depends on the seed and on the example's position only, so predicting twice gives the same
    result and a resumed run the same numbers; it comes in antithetic pairs, which reduces the variance.

    log(alpha) is moved once a block by the sum of the gradients of the log-loss over the (slowly forgotten) sum of
    their squares: the natural gradient of one parameter, which needs no step size.

    Parameters
    ----------
    classes
        Number of classes K. None: it grows; the noise of a class then does not depend on how many there are.
    samples
        Monte Carlo samples; an even number.
    learn
        Whether alpha is learned.
    block
        Examples between two steps of alpha.
    seed
        Seed of the noise.
    memory
        Over how many examples the gradient's square is averaged.

    Examples
    --------
    >>> calibration = Calibration(2, samples=8, learn=True, block=1, seed=0)
    >>> mean = torch.tensor([[0.9, 0.1]])
    >>> for _ in range(200):
    ...     log_p = calibration.observe(mean, torch.zeros(1), torch.tensor([0]))
    >>> bool(log_p[0, 0] > -0.01)  # right every time: it becomes sure
    True
    """

    def __init__(
        self, classes: int | None, *, samples: int, learn: bool, block: int, seed: int, memory: int = 10_000
    ) -> None:
        if samples < 2 or samples % 2:
            raise BadSetting(f"samples ({samples}) must be an even number of at least 2")
        self.classes, self.samples, self.learn, self.block, self.seed, self.memory = (
            classes,
            samples,
            learn,
            block,
            seed,
            memory,
        )
        # outputs are near 0 or 1: this makes an output of 1 for one class mean a probability of about a half
        self.log_alpha = math.log(max(math.log(classes or NOMINAL_CLASSES), 1.0))
        self.position = 0
        self.gradient = self.block_squares = 0.0  # sums over the block so far
        self.squares = 1.0  # over the past

    def predict(self, mean: Tensor, variance: Tensor, num_seen: int | None = None) -> np.ndarray:
        """Log-probabilities (n, K), each as the next example, when so many labels have been seen. Changes nothing."""
        K = mean.shape[1]
        seen = np.full(1, K if num_seen is None else num_seen)
        noise = _shared_by_unseen(self._noise(self.position, 1, K), seen)
        return self._log_p(self._outputs(mean, variance, noise), seen)[0].numpy()

    def observe(self, mean: Tensor, variance: Tensor, labels: Tensor, num_seen: np.ndarray | None = None) -> np.ndarray:
        """Log-probabilities (n, K) of consecutive examples inside one block; learns from their labels (n,).

        `num_seen` (n,) is how many labels had been seen before each; by default all. The others count as one class.
        """
        K = mean.shape[1]
        seen = np.full(len(mean), K) if num_seen is None else num_seen
        noise = _shared_by_unseen(self._noise(self.position, len(mean), K), seen)
        outputs = self._outputs(mean, variance, noise)  # (n, samples, K)
        log_p, parts = self._log_p(outputs, seen)
        self.position += len(mean)
        if self.learn:
            # d -log p(y) / d log(alpha) = - sum_s w_s (z_sy - sum_k p_sk z_sk), w_s the weight of sample s in p(y)
            at = labels[:, None, None].expand(-1, self.samples, 1)
            weight = torch.softmax(torch.log(parts.gather(2, at)[:, :, 0] + 1e-30), dim=1)  # (n, samples)
            surplus = outputs.gather(2, at)[:, :, 0] - (parts * outputs).sum(2)
            gradient = -(weight * surplus).sum(1).double()
            self.gradient += float(gradient.sum())
            self.block_squares += float((gradient**2).sum())
            if self.position % self.block == 0:
                self.squares = self.squares * (1 - 1 / self.memory) ** self.block + self.block_squares
                step = max(-0.5, min(0.5, -self.gradient / (self.squares + 1)))
                self.log_alpha = max(-5.0, min(10.0, self.log_alpha + step))
                self.gradient = self.block_squares = 0.0
        return log_p.numpy()

    def macs_per_example(self, classes: int) -> float:
        return 2.0 * self.samples * classes

    def state_dict(self) -> dict[str, Any]:
        numbers = np.array([self.log_alpha, self.gradient, self.block_squares, self.squares])
        return {"numbers": numbers, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.log_alpha, self.gradient, self.block_squares, self.squares = map(float, state["numbers"])
        self.position = int(state["position"])

    def _noise(self, start: int, n: int, K: int) -> Tensor:
        """(n, samples, K) for the examples from position `start` on."""
        pairs = self.samples // 2
        half = np.empty((n, K, pairs) if self.classes is None else (n, pairs, K), dtype=np.float32)
        for i in range(n):
            random = np.random.Generator(np.random.Philox(key=[self.seed, start + i]))
            random.standard_normal(out=half[i], dtype=np.float32)
        if self.classes is None:  # class by class, so that those that come first are the same for any K
            half = half.transpose(0, 2, 1)
        return torch.from_numpy(np.concatenate([half, -half], axis=1))

    def _outputs(self, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        """alpha times the sampled outputs, (n, samples, K), in float32."""
        alpha = math.exp(self.log_alpha)
        spread = (alpha * variance.sqrt()).float()[:, None, None]
        return torch.addcmul((alpha * mean).float()[:, None], spread, noise)

    def _log_p(self, outputs: Tensor, num_seen: np.ndarray) -> tuple[Tensor, Tensor]:
        """The log of the mean probability (n, K), and the probabilities of each sample (n, samples, K)."""
        prior = log_class_prior(num_seen, outputs.shape[2])
        parts = torch.softmax(outputs if prior is None else outputs + torch.from_numpy(prior)[:, None], dim=2)
        # a floor far below any honest probability keeps the logarithm finite
        return torch.log(parts.mean(1).clamp(min=1e-30)), parts


def _shared_by_unseen(noise: Tensor, num_seen: np.ndarray) -> Tensor:
    """Noise (n, samples, K) with one draw for all classes from number `num_seen` (n,) on: they count as one."""
    K = noise.shape[2]
    if num_seen[0] >= K - 1:
        return noise
    column = np.minimum(np.arange(K), num_seen[:, None])  # (n, K)
    return noise.gather(2, torch.from_numpy(column)[:, None].expand(-1, noise.shape[1], -1))
