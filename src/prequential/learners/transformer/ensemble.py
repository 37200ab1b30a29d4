"""The network and the other experts, mixed to one prediction."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.experts import Expert, NetworkExpert, Predicted
from prequential.learners.transformer.mixer import QUICK_SHARE, Mixed, Mixer
from prequential.learners.transformer.native_mixer import NativeMixer
from prequential.learners.transformer.one_row import OneRow
from prequential.learners.transformer.passes import NetworkPass
from prequential.native.experts import NativeExperts


class Prediction(NamedTuple):
    """A prediction of n inputs, and what learning one of them next can reuse."""

    log_probs: np.ndarray  # (n, K)
    experts: list[Predicted]
    joined: np.ndarray  # (M, n, K) of all experts
    mixed: Mixed | None


class Ensemble:
    """Predicts by all experts and mixes what they say.

    Parameters
    ----------
    network
        The transformer.
    others
        The experts beside it, by name.
    open_ended
        Whether the number of labels is not given. Then the free class ids are mixed as one label.
    quick
        Whether the mixer is as in earlier versions: it spreads 2 % of all weights, and less where labels are late.
    native
        What mixes in the native core, where it does.
    """

    def __init__(
        self,
        network: NetworkExpert,
        others: dict[str, Expert],
        *,
        open_ended: bool = False,
        quick: bool = False,
        native: NativeExperts | None = None,
    ) -> None:
        self.network, self.others, self.open_ended = network, others, open_ended
        self._experts: list[Expert] = [network, *others.values()]
        num_predictions = sum(expert.num_predictions for expert in self._experts)
        self._joins_free = open_ended and num_predictions > 1
        auxiliary = [
            getattr(expert, "auxiliary", False) for expert in self._experts for _ in range(expert.num_predictions)
        ]
        options: dict[str, Any] = {"auxiliary": auxiliary}
        if quick:
            options.update(share=QUICK_SHARE, slows_share=True)
        self.mixer = Mixer(num_predictions, **options)
        self.one_row: OneRow | None = None
        """What predicts and adds single rows much faster, where it can."""
        if native is not None:
            self.mixer = mixer = NativeMixer(num_predictions, native=native, **options)
            self.one_row = OneRow(network, others, mixer, joins_free=self._joins_free)

    def predict(self, queries: Queries) -> Prediction:
        """Predicts n inputs, each from the labels that had arrived when it was asked. Changes nothing."""
        experts = [expert.predict(queries) for expert in self._experts]
        log_probs = _join([predicted.log_probs for predicted in experts])
        mixed, reuse = self.mixer.predict(log_probs, self._free_from(queries.num_seen), queries.missing)
        return Prediction(mixed, experts, log_probs, reuse)

    def extend(self, batch: Batch, predicted: Prediction | None = None) -> np.ndarray:
        """Log-probabilities (n, K) of examples after the chunk boundary, which are then in the context of the next."""
        reuse = [None] * len(self._experts) if predicted is None else predicted.experts
        found = [expert.extend(batch, of_it) for expert, of_it in zip(self._experts, reuse, strict=True)]
        if predicted is not None and all(map(_same, found, predicted.experts)):
            log_probs, mixed = predicted.joined, predicted.mixed
        else:  # an expert has computed anew, and may differ in the last bits
            log_probs, mixed = _join(found), None
        return self.mixer.extend(log_probs, batch.class_ids, mixed, self._free_from(batch.num_seen), batch.lags)

    def commit(self, batch: Batch, passed: NetworkPass | None = None) -> np.ndarray:
        """Log-probabilities (n, K) of a whole chunk, from the last boundary on; `passed` is the network's, if known."""
        log_probs = _join(
            [self.network.commit(batch, passed), *(expert.commit(batch) for expert in self.others.values())]
        )
        return self.mixer.commit(log_probs, batch.class_ids, self._free_from(batch.num_seen), batch.lags)

    def _free_from(self, num_seen: np.ndarray) -> np.ndarray | None:
        """From which class ids on all are mixed as one label, where they are."""
        return num_seen if self._joins_free else None

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


def _same(found: np.ndarray, predicted: Predicted) -> bool:
    return found is predicted.log_probs or np.array_equal(found, predicted.log_probs)


def _join(log_probs: list[np.ndarray]) -> np.ndarray:
    return log_probs[0] if len(log_probs) == 1 else np.concatenate(log_probs)
