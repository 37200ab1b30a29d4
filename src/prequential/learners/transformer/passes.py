"""Passes of the network without gradients: over inputs to predict, and over labeled examples."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from prequential.labels import log_class_prior
from prequential.learners.device import on_device
from prequential.learners.log_proba import uniform_where_nan
from prequential.learners.transformer.batch import Batch, Queries
from prequential.models.kv_cache import Context, KVState
from prequential.models.precision import autocast
from prequential.models.transformer import Transformer

AT_ONCE = 64  # inputs to predict; the past is repeated for each


class NetworkPass(NamedTuple):
    """A pass over labeled examples of one stream."""

    log_probs: list[Tensor] | np.ndarray  # (n, K) of each head
    new: KVState  # the keys and values of the examples


class Passes(Protocol):
    """What an engine does with a model that predicts."""

    @property
    def model(self) -> Transformer: ...

    @property
    def takes_labels_away(self) -> bool:
        """Whether one example can see those before it without their labels (`Batch.unlabeled`), with no pass over them."""
        ...

    def predict(self, queries: Queries, context: Context) -> tuple[np.ndarray, Any]:
        """Log-probabilities (M, n, K) by each head, from the current context; of one input, also what `append` reuses."""
        ...

    def append(self, reuse: Any, class_ids: np.ndarray, context: Context) -> bool:
        """Adds an example that was just predicted to the context, with its label; False: that takes a pass."""
        ...

    def forward(self, batch: Batch, context: Context, *, current: bool = False) -> NetworkPass:
        """A pass over labeled examples, from the last chunk boundary on, or from the latest example on."""
        ...

    def extend(self, batch: Batch, context: Context) -> list[Tensor] | np.ndarray:
        """Log-probabilities (n, K) by each head of labeled examples, which are then in the current context."""
        ...


class TorchPasses:
    """The passes of a model by torch.

    Parameters
    ----------
    model
        What predicts.
    """

    takes_labels_away = False

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def predict(self, queries: Queries, context: Context) -> tuple[np.ndarray, Any]:
        self._eval()
        look, x = queries.lookback, queries.x
        past = context.current(beyond=look is not None)
        with torch.no_grad(), autocast(self.model):
            if look is not None:
                outs = self.model.predict_late(self._tensor(x), past, look)
                return as_numpy(head_log_probs(self.model, outs, queries.num_seen)), None
            parts = [self.model.predict_next(self._tensor(x[i : i + AT_ONCE]), past) for i in range(0, len(x), AT_ONCE)]
            outs, new = parts[0]
            if len(parts) > 1:
                outs = [torch.cat(of_head) for of_head in zip(*(part[0] for part in parts), strict=True)]
            log_probs = head_log_probs(self.model, outs, queries.num_seen)
        return as_numpy(log_probs), new if len(x) == 1 else None

    def append(self, reuse: Any, class_ids: np.ndarray, context: Context) -> bool:
        with torch.no_grad():
            new = self.model.attach_label(reuse, self._tensor(class_ids)[None])
        if new is not None:
            context.extend(new)
        return new is not None

    def forward(self, batch: Batch, context: Context, *, current: bool = False) -> NetworkPass:
        context.reserve(batch.max_lag)
        look = batch.lookback
        past = context.current(beyond=look is not None) if current else context.committed(beyond=look is not None)
        self._eval()
        with torch.no_grad(), autocast(self.model):
            y = self._tensor(batch.class_ids)[None]
            outs, new = self.model(self._tensor(batch.x)[None], y, past, look)
            return NetworkPass(head_log_probs(self.model, [out[0] for out in outs], batch.num_seen), new)

    def extend(self, batch: Batch, context: Context) -> list[Tensor] | np.ndarray:
        return extend_by_pass(self, batch, context)

    def _eval(self) -> None:
        if self.model.training:  # asked first, as a walk over all modules takes time
            self.model.eval()

    def _tensor(self, x: np.ndarray) -> Tensor:
        return on_device(x, self.model.rotary.table.device)


def extend_by_pass(passes: Passes, batch: Batch, context: Context) -> list[Tensor] | np.ndarray:
    """`Passes.extend` by `Passes.forward`."""
    if batch.pending is None:
        passed = passes.forward(batch, context, current=True)
        context.extend(passed.new)
        return passed.log_probs
    n, whole = len(batch), passes.forward(batch.with_pending(), context)
    context.extend(whole.new.latest(n * passes.model.tokens_per_example, n))
    log_probs = whole.log_probs
    return log_probs[:, -n:] if isinstance(log_probs, np.ndarray) else [of_head[-n:] for of_head in log_probs]


def head_log_probs(model: Transformer, outs: list[Tensor], num_seen: np.ndarray) -> list[Tensor]:
    """The log-probabilities (n, K) of each head, from its outputs, when so many labels had been seen (n,)."""
    prior = class_prior_tensor(model, num_seen)
    return [head.log_probs(out, prior) for head, out in zip(model.all_heads, outs, strict=True)]


def class_prior_tensor(model: Transformer, num_seen: np.ndarray) -> Tensor | None:
    """`log_class_prior` where the model is."""
    prior = log_class_prior(num_seen, model.num_classes)
    return None if prior is None else on_device(prior, model.rotary.table.device)


def as_numpy(log_probs: list[Tensor] | np.ndarray) -> np.ndarray:
    """The log-probabilities (M, n, K) of all heads; uniform where one is NaN."""
    if not isinstance(log_probs, np.ndarray):
        log_probs = np.array([of_head.cpu().numpy() for of_head in log_probs])
    return uniform_where_nan(log_probs)
