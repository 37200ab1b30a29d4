"""The mixer in the native core."""

from __future__ import annotations

from typing import Any

import numpy as np

from prequential.learners.transformer.mixer import LARGEST, LOWEST, SLOWEST, Mixed, Mixer, NumSeen, Weights
from prequential.native.experts import NativeExperts


class NativeMixer(Mixer):
    """`Mixer` with its arithmetic in the native core: the same numbers to about 1e-12, and the same state.

    What it gives for examples does not depend on the sizes in which they come, to the bit.

    Parameters
    ----------
    num_experts
        How many predictions there are to mix.
    native
        The functions of the core.
    more
        What else `Mixer` takes.
    """

    def __init__(self, num_experts: int, *, native: NativeExperts, **more: Any) -> None:
        super().__init__(num_experts, **more)
        self._native = native
        self._options: dict[str, Any] = {
            "share": self.share, "slows_share": self.slows_share, "prior": self.prior, "lowest": LOWEST, "largest": LARGEST,
            "learning_rates": self._learning_rates.ravel(),
        }  # fmt: skip

    @property
    def weights(self) -> Weights:
        """Those that the next example is predicted with."""
        return self._weights.current

    @property
    def learning_rates(self) -> np.ndarray:
        return np.ascontiguousarray(self._learning_rates.ravel())

    def move_on(self, weights: Weights) -> None:
        """Goes on with the weights after one more example."""
        self._earlier.append(self._weights.current)
        self._weights.extend(weights)

    def predict(
        self, log_probs: np.ndarray, num_seen: NumSeen = None, missing: np.ndarray | None = None
    ) -> tuple[np.ndarray, Mixed | None]:
        if len(log_probs) == 1:
            return np.asarray(log_probs[0]), None
        weights, exponents = self._weights.current
        if missing is not None and missing.any():
            versions = [*self._earlier, self._weights.current]
            asked = [versions[-1 - m] for m in missing]
            weights = np.stack([version.log_weights for version in asked])
            exponents = np.stack([version.exponents for version in asked])
            return self._native.mix(log_probs, num_seen, weights, exponents, lowest=LOWEST)[0], None
        mixed, parts = self._native.mix(log_probs, num_seen, weights, exponents, lowest=LOWEST)
        return mixed, None if parts is None else Mixed(parts, mixed.copy())

    def extend(
        self,
        log_probs: np.ndarray,
        class_ids: np.ndarray,
        predicted: Mixed | None = None,
        num_seen: NumSeen = None,
        lags: np.ndarray | None = None,
    ) -> np.ndarray:
        if len(log_probs) == 1:
            return np.asarray(log_probs[0])
        if predicted is None:
            mixed, weights, exponents = self._sequence(self._weights.current, log_probs, class_ids, num_seen, lags)
            self._earlier += [Weights(*pair) for pair in zip(weights[:-1], exponents[:-1], strict=True)]
            self._weights.extend(Weights(weights[-1], exponents[-1]))
            return mixed
        free, before = None if num_seen is None else int(num_seen[0]), self._weights.current
        moved = self._native.mix_learn(predicted.experts, int(class_ids[0]), free, *before, **self._options)
        self.move_on(Weights(*moved))
        return predicted.log_probs

    def commit(
        self, log_probs: np.ndarray, class_ids: np.ndarray, num_seen: NumSeen = None, lags: np.ndarray | None = None
    ) -> np.ndarray:
        self._earlier = []
        if len(log_probs) == 1:
            return np.asarray(log_probs[0])
        mixed, weights, exponents = self._sequence(self._weights.committed, log_probs, class_ids, num_seen, lags)
        self._weights.commit(Weights(weights[-1].copy(), exponents[-1].copy()))
        return mixed

    def _sequence(
        self, weights: Weights, log_probs: np.ndarray, class_ids: np.ndarray, num_seen: NumSeen, lags: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        speed = None if lags is None else 1 / (1 + np.minimum(lags, SLOWEST))
        return self._native.mix_sequence(log_probs, class_ids, num_seen, speed, *weights, **self._options)
