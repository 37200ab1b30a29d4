"""The network and the other experts, mixed to one prediction."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.experts import Expert, NetworkExpert, Predicted
from prequential.learners.transformer.mixer import Mixed, Mixer
from prequential.learners.transformer.passes import NetworkPass


class Prediction(NamedTuple):
    """A prediction of n inputs, and what learning one of them next can reuse."""

    log_probs: np.ndarray  # (n, K)
    experts: list[Predicted]
    mixed: Mixed | None


class _Unseen(NamedTuple):
    """How free class ids are mixed as one label: each stands for all, and counts as its part of them in a sum."""

    log_count: np.ndarray | None  # (n, K) log of how many share a label's place; 0 for labels that were seen
    counts: np.ndarray | None  # (n, K) their inverse

    def joined(self, log_probs: np.ndarray) -> np.ndarray:
        """Log-probabilities (M, n, K) in which each free class id has what all of them have together."""
        return log_probs if self.log_count is None else log_probs + self.log_count

    def split(self, log_probs: np.ndarray) -> np.ndarray:
        """Log-probabilities (n, K) in which each free class id has its own part again."""
        return log_probs if self.log_count is None else log_probs - self.log_count


class Ensemble:
    """Predicts by all experts and mixes what they say.

    Parameters
    ----------
    network
        The transformer.
    others
        The experts beside it, by name.
    open_ended
        Whether the number of labels is not given. Then the free class ids are mixed as one label, so that nothing depends
        on how many there are: a product of the parts that they share is not a part of the product.
    """

    def __init__(self, network: NetworkExpert, others: dict[str, Expert], *, open_ended: bool = False) -> None:
        self.network, self.others, self.open_ended = network, others, open_ended
        self.mixer = Mixer(sum(expert.num_predictions for expert in self._experts))

    @property
    def _experts(self) -> list[Expert]:
        return [self.network, *self.others.values()]

    def predict(self, queries: Queries) -> Prediction:
        """Predicts n inputs, each from the labels that had arrived when it was asked. Changes nothing."""
        experts = [expert.predict(queries) for expert in self._experts]
        unseen = self._unseen(queries.num_seen, experts[0].log_probs)
        mixed, reuse = self.mixer.predict(
            unseen.joined(_join([predicted.log_probs for predicted in experts])), unseen.counts, queries.missing
        )
        return Prediction(unseen.split(mixed), experts, reuse)

    def extend(self, batch: Batch, predicted: Prediction | None = None) -> np.ndarray:
        """Log-probabilities (n, K) of examples after the chunk boundary, which are then in the context of the next."""
        reuse = [None] * len(self._experts) if predicted is None else predicted.experts
        log_probs = _join([expert.extend(batch, of_it) for expert, of_it in zip(self._experts, reuse, strict=True)])
        mixed = None
        if predicted is not None and np.array_equal(log_probs, _join([of_it.log_probs for of_it in predicted.experts])):
            mixed = predicted.mixed  # otherwise an expert has computed anew, and may differ in the last bits
        unseen = self._unseen(batch.num_seen, log_probs)
        return unseen.split(
            self.mixer.extend(unseen.joined(log_probs), batch.class_ids, mixed, unseen.counts, batch.lags)
        )

    def commit(self, batch: Batch, passed: NetworkPass | None = None) -> np.ndarray:
        """Log-probabilities (n, K) of a whole chunk, from the last boundary on; `passed` is the network's, if known."""
        log_probs = _join(
            [self.network.commit(batch, passed), *(expert.commit(batch) for expert in self.others.values())]
        )
        unseen = self._unseen(batch.num_seen, log_probs)
        return unseen.split(self.mixer.commit(unseen.joined(log_probs), batch.class_ids, unseen.counts, batch.lags))

    def _unseen(self, num_seen: np.ndarray, log_probs: np.ndarray) -> _Unseen:
        """How free class ids are mixed for examples before which so many labels had been seen."""
        if not self.open_ended or (len(log_probs) == 1 and len(self._experts) == 1):
            return _Unseen(None, None)
        num_classes = log_probs.shape[2]
        free = np.arange(num_classes) >= num_seen[:, None]
        count = np.where(free, np.maximum(num_classes - num_seen, 1)[:, None], 1)
        return _Unseen(np.log(count), 1 / count)

    def grow(self, num_classes: int) -> None:
        """Makes the experts give probabilities to so many class ids."""
        for expert in self._experts:
            expert.grow(num_classes)

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
