"""The network and the other experts, mixed to one prediction."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from prequential.learners.transformer.batch import Batch
from prequential.learners.transformer.experts import Expert, NetworkExpert, NetworkPass, Predicted
from prequential.learners.transformer.mixer import Mixed, Mixer


class Prediction(NamedTuple):
    """A prediction of n inputs, and what learning one of them next can reuse."""

    log_probs: np.ndarray  # (n, K)
    experts: list[Predicted]
    mixed: Mixed | None


class Ensemble:
    """Predicts by all experts and mixes what they say.

    Parameters
    ----------
    network
        The transformer.
    others
        The experts beside it, by name.
    """

    def __init__(self, network: NetworkExpert, others: dict[str, Expert]) -> None:
        self.network, self.others = network, others
        self.mixer = Mixer(sum(expert.num_predictions for expert in self._experts))

    @property
    def _experts(self) -> list[Expert]:
        return [self.network, *self.others.values()]

    def predict(self, x: np.ndarray, num_seen: int) -> Prediction:
        """Predicts n inputs, each as the next example. Changes nothing."""
        experts = [expert.predict(x, num_seen) for expert in self._experts]
        mixed, reuse = self.mixer.predict(_join([predicted.log_probs for predicted in experts]))
        return Prediction(mixed, experts, reuse)

    def extend(self, batch: Batch, predicted: Prediction | None = None) -> np.ndarray:
        """Log-probabilities (n, K) of examples after the chunk boundary, which are then in the context of the next."""
        reuse = [None] * len(self._experts) if predicted is None else predicted.experts
        log_probs = _join([expert.extend(batch, of_it) for expert, of_it in zip(self._experts, reuse, strict=True)])
        mixed = None
        if predicted is not None and np.array_equal(log_probs, _join([of_it.log_probs for of_it in predicted.experts])):
            mixed = predicted.mixed  # otherwise an expert has computed anew, and may differ in the last bits
        return self.mixer.extend(log_probs, batch.class_ids, mixed)

    def commit(self, batch: Batch, passed: NetworkPass | None = None) -> np.ndarray:
        """Log-probabilities (n, K) of a whole chunk, from the last boundary on; `passed` is the network's, if known."""
        log_probs = [self.network.commit(batch, passed), *(expert.commit(batch) for expert in self.others.values())]
        return self.mixer.commit(_join(log_probs), batch.class_ids)

    def macs(self) -> float:
        """Multiply-accumulates of the experts beside the network, for one example."""
        return sum(expert.macs() for expert in self.others.values())

    def state_dict(self) -> dict[str, Any]:
        others = {name: expert.state_dict() for name, expert in self.others.items()}
        return {"network": self.network.state_dict(), "others": others, "mixer": self.mixer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        for name, expert in self.others.items():
            expert.load_state_dict(state["others"][name])
        self.mixer.load_state_dict(state["mixer"])


def _join(log_probs: list[np.ndarray]) -> np.ndarray:
    return log_probs[0] if len(log_probs) == 1 else np.concatenate(log_probs)
