"""The network as an expert: each of its output heads predicts, from the context of the reported stream."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from prequential.labels import log_class_prior
from prequential.learners.base import uniform_where_nan
from prequential.learners.device import on_device
from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.distributed import Ranks
from prequential.learners.transformer.experts.expert import Predicted
from prequential.models.kv_cache import Context, KVState
from prequential.models.precision import autocast
from prequential.models.transformer import Transformer

AT_ONCE = 64  # inputs to predict; the past is repeated for each


class NetworkPass(NamedTuple):
    """A pass over labeled examples of one stream."""

    log_probs: list[Tensor]  # (n, K) of each head
    new: KVState  # the keys and values of the examples


class NetworkExpert:
    """The transformer with the context of the reported stream.

    Parameters
    ----------
    model
        What predicts: the model that is trained, or an average of its parameters.
    context
        The keys and values of the reported stream.
    ranks
        The processes that share the work; the first one predicts.
    """

    def __init__(self, model: Transformer, context: Context, ranks: Ranks) -> None:
        self.model, self.context, self.ranks = model, context, ranks
        self.num_predictions = len(model.output_heads)

    def predict(self, queries: Queries) -> Predicted:
        self._eval()
        look, x = queries.lookback, queries.x
        past = self.context.current(beyond=look is not None)
        with torch.no_grad(), autocast(self.model):
            if look is not None:
                log_probs = head_log_probs(
                    self.model, self.model.predict_late(self._tensor(x), past, look), queries.num_seen
                )
                return Predicted(_as_numpy(log_probs))
            parts = [self.model.predict_next(self._tensor(x[i : i + AT_ONCE]), past) for i in range(0, len(x), AT_ONCE)]
            outs, new = parts[0]
            if len(parts) > 1:
                outs = [torch.cat(of_head) for of_head in zip(*(part[0] for part in parts), strict=True)]
            log_probs = head_log_probs(self.model, outs, queries.num_seen)
        return Predicted(_as_numpy(log_probs), new if len(x) == 1 else None)

    def extend(self, batch: Batch, predicted: Predicted | None = None) -> np.ndarray:
        if not self.ranks.first:
            return self._share(None, len(batch))
        if predicted is not None and predicted.reuse is not None and batch.lags is None:
            with torch.no_grad():
                new = self.model.attach_label(predicted.reuse, self._tensor(batch.class_ids)[None])
            if new is not None:
                self.context.extend(new)
                return predicted.log_probs
        self.context.reserve(batch.max_lag)
        passed = self._pass(self.context.current(beyond=batch.lags is not None), batch)
        self.context.extend(passed.new)
        return self._share(passed.log_probs, len(batch))

    def commit(self, batch: Batch, passed: NetworkPass | None = None) -> np.ndarray:
        """As for every expert; `passed` is the pass over the chunk where there was one already."""
        if not self.ranks.first:
            return self._share(None, len(batch))
        passed = passed or self.forward(batch)
        assert passed is not None
        self.context.commit(passed.new)
        return self._share(passed.log_probs, len(batch))

    def forward(self, batch: Batch) -> NetworkPass | None:
        """A pass over a whole chunk, from the last boundary on. Changes nothing. None: another process does it."""
        if not self.ranks.first:
            return None
        self.context.reserve(batch.max_lag)
        return self._pass(self.context.committed(beyond=batch.lags is not None), batch)

    def grow(self, num_classes: int) -> None:
        """Nothing to do: the model is the trainer's, which makes it grow."""

    def macs(self) -> float:
        return self.model.macs_per_example() + self.model.extractor_macs()

    def state_dict(self) -> dict[str, Any]:
        return {"context": self.context.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.context.load_state_dict(state["context"])

    def _pass(self, past: KVState, batch: Batch) -> NetworkPass:
        self._eval()
        with torch.no_grad(), autocast(self.model):
            y = self._tensor(batch.class_ids)[None]
            outs, new = self.model(self._tensor(batch.x)[None], y, past, batch.lookback)
            return NetworkPass(head_log_probs(self.model, [out[0] for out in outs], batch.num_seen), new)

    def _eval(self) -> None:
        if self.model.training:  # asked first, as a walk over all modules takes time
            self.model.eval()

    def _share(self, log_probs: list[Tensor] | None, n: int) -> np.ndarray:
        """The log-probabilities (M, n, K) of the first process, in every one."""
        if self.ranks.count == 1:
            assert log_probs is not None
            return _as_numpy(log_probs)
        shape, device = (self.num_predictions, n, self.model.num_classes), self.model.rotary.table.device
        given = torch.empty(shape, device=device) if log_probs is None else torch.stack(log_probs)
        return uniform_where_nan(self.ranks.from_first(given.float()).cpu().numpy())

    def _tensor(self, x: np.ndarray) -> Tensor:
        return on_device(x, self.model.rotary.table.device)


def head_log_probs(model: Transformer, outs: list[Tensor], num_seen: np.ndarray) -> list[Tensor]:
    """The log-probabilities (n, K) of each head, from its outputs, when so many labels had been seen (n,)."""
    prior = class_prior_tensor(model, num_seen)
    return [head.log_probs(out, prior) for head, out in zip(model.all_heads, outs, strict=True)]


def class_prior_tensor(model: Transformer, num_seen: np.ndarray) -> Tensor | None:
    """`log_class_prior` where the model is."""
    prior = log_class_prior(num_seen, model.num_classes)
    return None if prior is None else on_device(prior, model.rotary.table.device)


def _as_numpy(log_probs: list[Tensor]) -> np.ndarray:
    return uniform_where_nan(np.array([of_head.cpu().numpy() for of_head in log_probs]))  # (M, n, K)
