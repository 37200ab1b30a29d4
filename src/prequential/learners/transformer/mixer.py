"""Mixing the predictions of several experts by how well each of them did so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from prequential.errors import BadCheckpoint
from prequential.learners.versioned import Versioned

SHARE = 0.999  # how much of its weight an expert keeps; the rest is spread over all, so that none is lost for good
QUICK_SHARE = 0.98  # the same where mixing is quick
AUXILIARY = 0.1  # how much of that goes to an auxiliary expert, beside 1 for each of the others
LEARNING_RATES = (0.005, 0.02, 0.08)  # at which the exponents of the products are learned, a product each
LOWEST = -12.0  # log-probabilities below this count as this in a product, so that no expert can forbid a label
LARGEST = 5.0  # exponents stay within this
SLOWEST = 100  # labels that are later still do not slow the weights down further

Counts = np.ndarray | None  # how much each class id counts in a sum over all of them
NumSeen = np.ndarray | None  # (n,) class ids from here on have no label yet and are mixed as one; None: each on its own


class Weights(NamedTuple):
    """What the mixer has learned; never changed in place."""

    log_weights: np.ndarray  # (M + R,)
    exponents: np.ndarray  # (R, M)


class Mixed(NamedTuple):
    """The prediction of one example: of all experts and products, and their mixture."""

    experts: np.ndarray  # (1, M + R, K)
    log_probs: np.ndarray  # (1, K)


class _Free(NamedTuple):
    """How free class ids are mixed as one label: each stands for all, and counts as its part of them in a sum."""

    log_count: np.ndarray | None  # (n, K) log of how many share a label's place; 0 for labels that were seen
    counts: np.ndarray | None  # (n, K) their inverse

    @staticmethod
    def of(num_seen: NumSeen, num_classes: int) -> _Free:
        if num_seen is None:
            return _Free(None, None)
        free = np.arange(num_classes) >= num_seen[:, None]
        count = np.where(free, np.maximum(num_classes - num_seen, 1)[:, None], 1)
        return _Free(np.log(count), 1 / count)

    def joined(self, log_probs: np.ndarray) -> np.ndarray:
        """Log-probabilities (M, n, K) in which each free class id has what all of them have together."""
        return log_probs if self.log_count is None else log_probs + self.log_count

    def split(self, log_probs: np.ndarray) -> np.ndarray:
        """Log-probabilities (n, K) in which each free class id has its own part again."""
        return log_probs if self.log_count is None else log_probs - self.log_count


class Mixer:
    """Fixed-share Bayesian mixing: an expert's weight is its past likelihood, recent examples counting most.

    The mixture is over the M experts and over R products of all experts, p ∝ Π p_m^w_m, whose exponents w are learned
    by a gradient step on each example. A mixture is never sharper than its sharpest part; a product can be, where
    experts agree, and less sharp where all of them are too sure. There is a product for each of several learning rates.

    The prediction of y_t uses the weights and exponents after the labels before y_t. A single expert is left as it is.

    Where labels come late, all of this moves more slowly, by a factor of 1 / (1 + lag): the weights that a label changes
    predict many examples before it shows whether the change was right, and at full speed they swing too far. What is
    spread over all experts after each example stays the same.

    Parameters
    ----------
    num_experts
        How many predictions there are to mix.
    share
        How much of its weight an expert keeps.
    learning_rates
        Of the exponents, one product each; with none, only the experts are mixed.
    auxiliary
        Which predictions are auxiliary, a bool each: they start with a tenth of the weight of another and get a tenth of
        what is spread, and in products their exponents start at 0. By default none is.
    slows_share
        Whether less is spread where labels are late, too.

    `num_seen` in its methods says from which class id on there are no labels yet, where the number of labels is not
    given. These are mixed as one label, so that nothing depends on how many there are: a product of the parts that
    they share is not a part of the product. `NativeMixer` does the same in the native core.

    Examples
    --------
    >>> mixer = Mixer(2, learning_rates=())
    >>> good, poor = np.log([[0.9, 0.1]] * 3), np.log([[0.5, 0.5]] * 3)
    >>> np.exp(mixer.commit(np.stack([good, poor]), np.array([0, 0, 0])))[:, 0].round(2).tolist()
    [0.7, 0.76, 0.81]
    """

    def __init__(
        self,
        num_experts: int,
        *,
        share: float = SHARE,
        learning_rates: tuple[float, ...] = LEARNING_RATES,
        auxiliary: Sequence[bool] = (),
        slows_share: bool = False,
    ) -> None:
        self.share, self.slows_share = share, slows_share
        self._learning_rates = np.array(learning_rates)[:, None]  # (R, 1)
        is_full = ~np.array(auxiliary or [False] * num_experts)
        products = len(learning_rates)
        self.prior = np.concatenate([np.where(is_full, 1.0, AUXILIARY), np.ones(products)])  # (M + R,)
        start = Weights(
            np.log(self.prior) - np.log(self.prior.sum()),
            np.tile(is_full / max(np.count_nonzero(is_full), 1), (products, 1)),
        )
        self._weights = Versioned(start)
        self._earlier: list[Weights] = []  # before each example since the chunk boundary, oldest first

    def predict(
        self, log_probs: np.ndarray, num_seen: NumSeen = None, missing: np.ndarray | None = None
    ) -> tuple[np.ndarray, Mixed | None]:
        """The mixture (n, K) of log-probabilities (M, n, K), each example as the next one. Changes nothing.

        With `missing` (n,), the weights are those before so many of the latest labels, all of them since the last chunk
        boundary. For one example alone, also what `extend` can reuse.
        """
        if len(log_probs) == 1:
            return np.asarray(log_probs[0]), None
        free = _Free.of(num_seen, log_probs.shape[2])
        log_probs, counts = free.joined(log_probs), free.counts
        if missing is not None and missing.any():
            versions = [*self._earlier, self._weights.current]
            rows = [
                self._mix_next(versions[-1 - m], log_probs[:, i : i + 1], None if counts is None else counts[i : i + 1])
                for i, m in enumerate(missing)
            ]
            return free.split(np.concatenate([mixed for mixed, _ in rows])), None
        mixed, reuse = self._mix_next(self._weights.current, log_probs, counts)
        return free.split(mixed), reuse

    def _mix_next(self, weights: Weights, log_probs: np.ndarray, counts: Counts) -> tuple[np.ndarray, Mixed | None]:
        log_weights, exponents = weights
        experts = log_probs.transpose(1, 0, 2).astype(np.float64)  # (n, M, K)
        products = _product(exponents, np.maximum(experts, LOWEST), None if counts is None else counts[:, None])
        experts = np.concatenate([experts, products], 1)
        mixed = _mixture(log_weights, experts)
        return mixed, Mixed(experts, mixed.copy()) if len(mixed) == 1 else None

    def extend(
        self,
        log_probs: np.ndarray,
        class_ids: np.ndarray,
        predicted: Mixed | None = None,
        num_seen: NumSeen = None,
        lags: np.ndarray | None = None,
    ) -> np.ndarray:
        """The mixture for examples with these labels, in order, after the chunk boundary.

        `predicted` is what `predict` gave for this very example, if it did. `lags` (n,) is how late the labels came.
        """
        free = _Free.of(num_seen, log_probs.shape[2])
        log_probs, counts = free.joined(log_probs), free.counts
        if predicted is None:
            mixed, earlier, weights = self._mix_sequence(self._weights.current, log_probs, class_ids, counts, lags)
            self._earlier += earlier
            self._weights.extend(weights)
            return free.split(mixed)
        log_weights, exponents = self._weights.current
        experts, products = np.split(predicted.experts[0], [len(log_probs)])
        self._earlier.append(self._weights.current)
        count = None if counts is None else counts[0]
        exponents = self._learn_exponents(exponents, np.maximum(experts, LOWEST), products, class_ids[0], count)
        self._weights.extend(Weights(self._reweigh(log_weights, predicted.experts[0, :, class_ids[0]]), exponents))
        return free.split(predicted.log_probs)

    def commit(
        self, log_probs: np.ndarray, class_ids: np.ndarray, num_seen: NumSeen = None, lags: np.ndarray | None = None
    ) -> np.ndarray:
        """The mixture for a whole chunk, from the last boundary on."""
        free = _Free.of(num_seen, log_probs.shape[2])
        log_probs, counts = free.joined(log_probs), free.counts
        mixed, _, weights = self._mix_sequence(self._weights.committed, log_probs, class_ids, counts, lags)
        self._weights.commit(weights)
        self._earlier = []
        return free.split(mixed)

    def state_dict(self) -> dict[str, Any]:
        """What is before single examples is left out: it is asked for only within the call that learns them."""
        return {"committed": self._weights.committed._asdict(), "current": self._weights.current._asdict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        committed, current = (
            Weights(*(np.array(state[version][name], np.float64) for name in Weights._fields))
            for version in ("committed", "current")
        )
        for name, own in self._weights.current._asdict().items():
            for version in (committed, current):
                if getattr(version, name).shape != own.shape:
                    raise BadCheckpoint(
                        f"{name} of the mixer has shape {getattr(version, name).shape}, expected {own.shape}"
                    )
        self._earlier = []
        self._weights.commit(committed)
        self._weights.extend(current)

    def _mix_sequence(
        self,
        weights: Weights,
        log_probs: np.ndarray,
        class_ids: np.ndarray,
        counts: Counts,
        lags: np.ndarray | None,
    ) -> tuple[np.ndarray, list[Weights], Weights]:
        """The mixture (n, K) of log-probabilities (M, n, K), each after the labels before it.

        Also the weights before each, and those after all.
        """
        if len(log_probs) == 1:
            return np.asarray(log_probs[0]), [], weights
        log_weights, exponents = weights
        experts = log_probs.transpose(1, 0, 2).astype(np.float64)  # (n, M, K)
        rows = np.arange(len(class_ids))
        speed = np.ones(len(class_ids)) if lags is None else 1 / (1 + np.minimum(lags, SLOWEST))
        products = np.empty((len(class_ids), len(exponents), experts.shape[2]))
        earlier = [exponents] * len(class_ids)  # before each example
        for t, bounded in enumerate(np.maximum(experts, LOWEST) if len(exponents) else ()):
            count = None if counts is None else counts[t]
            products[t] = product = _product(exponents, bounded, count)
            earlier[t] = exponents
            exponents = self._learn_exponents(exponents, bounded, product, class_ids[t], count, speed[t])
        experts = np.concatenate([experts, products], 1)  # (n, M + R, K)
        before = np.empty(experts.shape[:2])  # the log-weights before each example
        for t, gained in enumerate(experts[rows, :, class_ids]):
            before[t] = log_weights
            log_weights = self._reweigh(log_weights, gained, speed[t])
        versions = [Weights(*pair) for pair in zip(before, earlier, strict=True)]
        return _mixture(before, experts), versions, Weights(log_weights, exponents)

    def _learn_exponents(
        self,
        exponents: np.ndarray,
        bounded: np.ndarray,
        product: np.ndarray,
        class_id: int,
        count: Counts,
        speed: float = 1.0,
    ) -> np.ndarray:
        """The exponents (R, M) after a label, by which experts (M, K) gave these products (R, K)."""
        probs = np.exp(product) if count is None else np.exp(product) * count
        gradient = bounded[:, class_id] - probs @ bounded.T  # (R, M) of log p(y) by the exponents
        step = self._learning_rates * speed * gradient
        return np.asarray(np.minimum(np.maximum(exponents + step, -LARGEST), LARGEST))

    def _reweigh(self, log_weights: np.ndarray, gained: np.ndarray, speed: float = 1.0) -> np.ndarray:
        """The log-weights after a label, to which each part gave this log-probability."""
        share = 1 - (1 - self.share) * speed if self.slows_share and speed != 1 else self.share
        posterior = log_weights + speed * gained
        posterior = np.exp(posterior - posterior.max())
        return np.asarray(np.log(posterior * (share / posterior.sum()) + (1 - share) * self.prior / self.prior.sum()))


def _product(exponents: np.ndarray, bounded: np.ndarray, counts: Counts = None) -> np.ndarray:
    """The log-probabilities (..., R, K) of the products of experts (..., M, K)."""
    product: np.ndarray = exponents @ bounded
    product -= product.max(-1, keepdims=True)
    probs = np.exp(product)
    product -= np.log((probs if counts is None else probs * counts).sum(-1, keepdims=True))
    return product


def _mixture(log_weights: np.ndarray, experts: np.ndarray) -> np.ndarray:
    """The log-probabilities (n, K) of experts (n, M + R, K) mixed with log-weights (n or none, M + R)."""
    joint = log_weights[..., None] + experts
    most = joint.max(1, keepdims=True)
    return np.asarray(most[:, 0] + np.log(np.exp(joint - most).sum(1)))
