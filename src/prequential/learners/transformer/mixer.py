"""Mixing the predictions of several heads by what each of them was worth so far."""

from __future__ import annotations

from typing import Any

import numpy as np

SHARE = 0.98  # how much of its weight an expert keeps by its own worth; the rest is dealt out, so that none is lost
RATES = (0.005, 0.02, 0.08)  # how fast the exponents of the products of heads are learnt
FAINTEST = -12.0  # log-probabilities below this count as this in a product: none may forbid a label
LARGEST = 5.0  # exponents stay within this


class Mixer:
    """Fixed-share Bayesian mixing: an expert's weight is its past likelihood, and the more recent the more it counts.

    The experts are the heads themselves and products of all heads, p ∝ Π p_m^w_m, whose exponents w are learnt by a
    gradient step on each example. A mixture is never sharper than the sharpest head; a product can be, where heads
    agree, and less sharp where all of them are too sure. There is a product for each of several rates.

    The prediction of y_t uses the weights and exponents that the labels before y_t gave. As with the context, they
    are kept twice: as at the last chunk border, from which a whole chunk is mixed in one go, and as after the last
    example, for predictions in between. One head is left as it is.

    Parameters
    ----------
    heads
        How many predictions there are to mix.
    share
        How much of its weight an expert keeps by its own worth.
    rates
        The rates at which exponents are learnt, one product each; with none, only the heads are mixed.

    Examples
    --------
    >>> mixer = Mixer(2, rates=())
    >>> good, poor = np.log([[0.9, 0.1]] * 3), np.log([[0.5, 0.5]] * 3)
    >>> np.exp(mixer.finish_chunk(np.stack([good, poor]), np.array([0, 0, 0])))[:, 0].round(2).tolist()
    [0.7, 0.76, 0.8]
    """

    def __init__(self, heads: int, *, share: float = SHARE, rates: tuple[float, ...] = RATES) -> None:
        self.share = share
        self._rates = np.array(rates)[:, None]  # (R, 1)
        experts = heads + len(rates)
        # log-weights (M + R,) and exponents (R, M); replaced by what follows them, never changed in place
        self._border = self._live = (np.full(experts, -np.log(experts)), np.full((len(rates), heads), 1 / heads))
        # the last prediction, if it was of one example: what was predicted, by the heads, by all experts and by all mixed
        self._foreseen: tuple[bytes, np.ndarray, np.ndarray] | None = None

    def predict(self, log_p: np.ndarray) -> np.ndarray:
        """The mixture (n, K) of log-probabilities (M, n, K) of what comes next, each on its own. Changes nothing."""
        if len(log_p) == 1:
            return np.asarray(log_p[0])
        weight, exponent = self._live
        heads = log_p.transpose(1, 0, 2).astype(np.float64)  # (n, M, K)
        products = _product(exponent, np.maximum(heads, FAINTEST))
        experts = np.concatenate([heads, products], 1)
        mixed = _mixed(weight, experts)
        self._foreseen = (log_p.tobytes(), experts, mixed.copy()) if len(mixed) == 1 else None
        return mixed

    def extend(self, log_p: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """The mixture of examples of an unfinished chunk with these labels, in their order."""
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is None or foreseen[0] != log_p.tobytes():
            mixed, self._live = self._along(self._live, log_p, slots)
            return mixed
        weight, exponent = self._live
        heads, products = np.split(foreseen[1][0], [len(log_p)])
        exponent = self._taught(exponent, np.maximum(heads, FAINTEST), products, slots[0])
        self._live = self._weighed(weight, foreseen[1][0, :, slots[0]]), exponent
        return foreseen[2]

    def finish_chunk(self, log_p: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """The mixture of a whole chunk, from the last border on; moves the border behind it."""
        mixed, self._border = self._along(self._border, log_p, slots)
        self._live, self._foreseen = self._border, None
        return mixed

    def state_dict(self) -> dict[str, Any]:
        return {
            name: {"weight": weight.copy(), "exponent": exponent.copy()}
            for name, (weight, exponent) in (("border", self._border), ("live", self._live))
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._border, self._live = (
            (np.array(state[name]["weight"]), np.array(state[name]["exponent"])) for name in ("border", "live")
        )
        self._foreseen = None

    def _along(
        self, now: tuple[np.ndarray, np.ndarray], log_p: np.ndarray, slots: np.ndarray
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """The mixture of consecutive examples, and the weights and exponents after the last."""
        if len(log_p) == 1:
            return np.asarray(log_p[0]), now
        weight, exponent = now
        heads = log_p.transpose(1, 0, 2).astype(np.float64)  # (n, M, K)
        at = np.arange(len(slots))
        products = np.empty((len(slots), len(exponent), heads.shape[2]))
        for t, faint in enumerate(np.maximum(heads, FAINTEST) if len(exponent) else ()):
            products[t] = product = _product(exponent, faint)
            exponent = self._taught(exponent, faint, product, slots[t])
        experts = np.concatenate([heads, products], 1)  # (n, M + R, K)
        weights = np.empty(experts.shape[:2])
        for t, gained in enumerate(experts[at, :, slots]):
            weights[t] = weight
            weight = self._weighed(weight, gained)
        return _mixed(weights, experts), (weight, exponent)

    def _taught(self, exponent: np.ndarray, faint: np.ndarray, product: np.ndarray, slot: int) -> np.ndarray:
        """The exponents (R, M) after a label, by which heads (M, K) gave these products (R, K)."""
        slope = faint[:, slot] - np.exp(product) @ faint.T  # (R, M) of log p(y) by the exponents
        return np.asarray(np.minimum(np.maximum(exponent + self._rates * slope, -LARGEST), LARGEST))

    def _weighed(self, weight: np.ndarray, gained: np.ndarray) -> np.ndarray:
        """The log-weights after a label, to which each expert gave this log-probability."""
        posterior = weight + gained
        posterior = np.exp(posterior - posterior.max())
        return np.asarray(np.log(posterior * (self.share / posterior.sum()) + (1 - self.share) / len(posterior)))


def _product(exponent: np.ndarray, faint: np.ndarray) -> np.ndarray:
    """The log-probabilities (..., R, K) of the products of heads (..., M, K)."""
    product: np.ndarray = exponent @ faint
    product -= product.max(-1, keepdims=True)
    product -= np.log(np.exp(product).sum(-1, keepdims=True))
    return product


def _mixed(weights: np.ndarray, experts: np.ndarray) -> np.ndarray:
    """The log-probabilities (n, K) of experts (n, M + R, K) mixed with log-weights (n or none, M + R)."""
    joint = weights[..., None] + experts
    most = joint.max(1, keepdims=True)
    return np.asarray(most[:, 0] + np.log(np.exp(joint - most).sum(1)))
