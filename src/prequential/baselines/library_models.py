"""What learners around models of other libraries share: errors as one sentence, and probabilities that are never 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from prequential.errors import BadInput, BadSetting, PrequentialError, one_line
from prequential.labels import spread_unseen
from prequential.learners.base import check_seed


def check_model_options(settings: Any, smoothing: float, seed: int) -> None:
    """Refuses options that no model of a library can be made or used with."""
    check_seed(seed)
    if settings is not None and not isinstance(settings, dict):
        raise BadSetting(f"settings is a {type(settings).__name__}, expected pairs such as {{name: value}}")
    if not 0 < smoothing < 1:
        raise BadSetting(
            f"smoothing ({smoothing}) must be above 0 and below 1: otherwise a label can cost infinitely much"
        )


@contextmanager
def library_errors(path: str, position: int) -> Iterator[None]:
    """Turns what a library raises into one sentence: the numbers or the settings do not suit its model."""
    try:
        yield
    except PrequentialError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {one_line(error, 120)}"
        raise BadInput(f"example {position}: model {path!r} cannot take it: {why}") from error


def smoothed(p: np.ndarray, seen: int, capacity: int, smoothing: float) -> np.ndarray:
    """Log-probabilities (n, capacity): normalized (uniform where all are 0), then mixed with the uniform distribution.

    >>> np.exp(smoothed(np.array([[3.0, 1.0]]), seen=2, capacity=2, smoothing=0.2)).round(2).tolist()
    [[0.7, 0.3]]
    """
    p = np.where(np.isfinite(p) & (p > 0), p, 0.0)
    K = min(seen + 1, capacity)  # the labels seen, and one for all others
    if capacity > K:
        p = np.concatenate([p[:, :seen], p[:, seen:].mean(1, keepdims=True)], 1)
    total = p.sum(1, keepdims=True)
    p = np.where(total > 0, p / np.where(total > 0, total, 1.0), 1 / K)
    log_p = np.log((1 - smoothing) * p + smoothing / K)
    return spread_unseen(log_p, np.full(len(p), seen), capacity)
