"""Log-probabilities where little or nothing is known."""

from __future__ import annotations

import math

import numpy as np

from prequential.labels import weigh_unseen


def uniform_where_nan(log_p: np.ndarray) -> np.ndarray:
    """Log-probabilities (..., classes), uniform where a network that has diverged gives no number."""
    if not math.isnan(log_p.sum()):  # the usual case: a sum is faster than a look at each
        return log_p
    broken = np.isnan(log_p).any(-1, keepdims=True)
    return np.where(broken, -np.log(log_p.shape[-1]), log_p).astype(log_p.dtype) if broken.any() else log_p


def prior_where_nan(log_p: np.ndarray, num_seen: np.ndarray) -> np.ndarray:
    """Log-probabilities (n, classes), those of the prior where a network that has diverged gives no number."""
    broken = np.isnan(log_p).any(-1, keepdims=True)
    if not broken.any():
        return log_p
    prior = weigh_unseen(uniform_log_proba(*log_p.shape), num_seen)
    return np.where(broken, prior, log_p).astype(log_p.dtype)


def uniform_log_proba(count: int, classes: int) -> np.ndarray:
    """Log-probabilities (count, classes) with all classes equally probable: the prediction before any example."""
    return np.full((count, classes), -np.log(classes))


def prior_log_proba(count: int, num_seen: int, classes: int) -> np.ndarray:
    """Log-probabilities (count, classes) where nothing is known but how many labels have been seen."""
    return weigh_unseen(uniform_log_proba(count, classes), np.full(count, num_seen))
