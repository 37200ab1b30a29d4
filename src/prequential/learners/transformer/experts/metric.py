"""A metric that learns which features tell labels apart, for the kNN expert."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

LEARNING_RATE = 0.03
BETA1, BETA2 = 0.9, 0.99
EPSILON = 1e-3  # gradients of about this size are noise: a feature that says nothing keeps its weight
LARGEST = 5.0  # of the logarithms


class Neighbors(NamedTuple):
    """The k nearest examples of each of n labeled ones, as they were when these were predicted."""

    squares: np.ndarray  # (n, k, F) squared differences of the scaled features; 0 where there is no neighbor
    same: np.ndarray  # (n, k) whether it has the label of the example
    found: np.ndarray  # (n, k) whether there is one
    prior: np.ndarray  # (n,) probability of the label where neighbors say nothing


class LearnedMetric:
    """A scale for each feature, and how fast a vote falls with the distance: all learned from the votes' own loss.

    Standardized features all count the same in a distance, those that say nothing about the label included. Here
    gradient steps on -log p(y | neighbors) change that: neighborhood components analysis (Goldberger et al. 2004) with a
    diagonal map, on the nearest neighbors only. Adam makes the steps, one each chunk.

    Parameters
    ----------
    width
        How many features F are compared.
    prior_weight
        Of the prior of the labels, in average votes.
    """

    def __init__(self, *, width: int, prior_weight: float) -> None:
        self._prior_weight = prior_weight
        self._log = np.zeros(width + 1)  # of the scales, and last of the sharpness
        self._first, self._second = np.zeros(width + 1), np.zeros(width + 1)  # Adam's moments
        self._steps = 0
        self.scale = np.ones(width, np.float32)
        """What each feature is multiplied by, (F,)."""
        self.sharpness = 1.0
        """A vote is exp(-sharpness × squared distance / mean of the k squared distances)."""

    def learn(self, neighbors: Neighbors) -> None:
        """A step on examples whose labels have arrived."""
        with np.errstate(over="ignore", invalid="ignore"):
            self.step(self.gradient(neighbors))

    def step(self, gradient: np.ndarray) -> None:
        """A step by a gradient, which the native core may have made; none where it is not finite."""
        if not np.isfinite(gradient).all():
            return
        self._steps += 1
        self._first += (1 - BETA1) * (gradient - self._first)
        self._second += (1 - BETA2) * (gradient**2 - self._second)
        mean, square = self._first / (1 - BETA1**self._steps), self._second / (1 - BETA2**self._steps)
        self._log = np.clip(self._log - LEARNING_RATE * mean / (np.sqrt(square) + EPSILON), -LARGEST, LARGEST)
        self._refresh()

    def _refresh(self) -> None:
        self.scale, self.sharpness = np.exp(self._log[:-1]).astype(np.float32), float(np.exp(self._log[-1]))

    def gradient(self, neighbors: Neighbors) -> np.ndarray:
        """Of the mean loss by the logarithms, (F + 1,)."""
        found = neighbors.found
        count = np.maximum(found.sum(1, keepdims=True), 1)
        distance = neighbors.squares.sum(-1, dtype=np.float64)  # (n, k)
        mean = distance.sum(1, keepdims=True) / count + 1e-9
        relative = distance / mean
        sharpness = self.sharpness
        vote = np.exp(-sharpness * relative) * found
        vote /= np.maximum(vote.sum(1, keepdims=True), 1e-300)
        right = (vote * neighbors.same).sum(1, keepdims=True)
        share = 1 / (1 + self._prior_weight / count)
        p = share * right + (1 - share) * neighbors.prior[:, None]
        by_log_vote = -share * vote * (neighbors.same - right) / np.maximum(p, 1e-300)  # (n, k)
        by_log_vote *= found.any(1, keepdims=True)
        # log vote_j = -sharpness d_j / mean: every distance also moves the mean
        by_relative = -sharpness * (by_log_vote - (by_log_vote * relative).sum(1, keepdims=True) / count) * found
        by_scale = 2 * np.einsum("nk,nkf->f", by_relative / mean, neighbors.squares)
        by_sharpness = -sharpness * (by_log_vote * relative).sum()
        return np.append(by_scale, by_sharpness) / len(found)

    def state_dict(self) -> dict[str, Any]:
        moments = {"first_moment": self._first.copy(), "second_moment": self._second.copy()}
        return {"log_scale": self._log.copy(), **moments, "num_steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._log = np.array(state["log_scale"])
        self._first, self._second = np.array(state["first_moment"]), np.array(state["second_moment"])
        self._steps = int(state["num_steps"])
        self._refresh()
