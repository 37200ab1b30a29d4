"""The network as an expert: each of its output heads predicts, from the context of the reported stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from prequential.learners.log_proba import uniform_where_nan
from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.distributed import Ranks
from prequential.learners.transformer.experts.expert import Predicted
from prequential.learners.transformer.passes import NetworkPass, Passes, as_numpy
from prequential.models.kv_cache import Context
from prequential.models.transformer import Transformer


class NetworkExpert:
    """The transformer with the context of the reported stream.

    Parameters
    ----------
    passes
        An engine's passes of what predicts: of the model that is trained, or of an average of its parameters.
    context
        The keys and values of the reported stream.
    ranks
        The processes that share the work; the first one predicts.
    """

    def __init__(self, passes: Passes, context: Context, ranks: Ranks) -> None:
        self.passes, self.context, self.ranks = passes, context, ranks
        self.num_predictions = len(self.model.output_heads)

    @property
    def model(self) -> Transformer:
        return self.passes.model

    def predict(self, queries: Queries) -> Predicted:
        if queries.context is None:
            return Predicted(*self.passes.predict(queries, self.context))
        log_probs, _ = self.passes.predict(queries.with_context(), self.context)
        return Predicted(log_probs[:, len(queries.context) :])

    def extend(self, batch: Batch, predicted: Predicted | None = None) -> np.ndarray:
        if not self.ranks.first:
            return self._share(None, len(batch))
        reuse = None if predicted is None or batch.lags is not None else predicted.reuse
        if reuse is not None and self.passes.append(reuse, batch.class_ids, self.context):
            assert predicted is not None
            return predicted.log_probs
        return self._share(self.passes.extend(batch, self.context), len(batch))

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
        return self.passes.forward(batch, self.context)

    def grow(self, num_classes: int) -> None:
        """Nothing to do: the model is the trainer's, which makes it grow."""

    def macs(self) -> float:
        return self.model.macs_per_example() + self.model.extractor_macs()

    def state_dict(self) -> dict[str, Any]:
        return {"context": self.context.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.context.load_state_dict(state["context"])

    def _share(self, log_probs: list[Tensor] | np.ndarray | None, n: int) -> np.ndarray:
        """The log-probabilities (M, n, K) of the first process, in every one."""
        if self.ranks.count == 1:
            assert log_probs is not None
            return as_numpy(log_probs)
        shape, device = (self.num_predictions, n, self.model.num_classes), self.model.rotary.table.device
        given = torch.empty(shape, device=device) if log_probs is None else torch.stack(list(log_probs))
        return uniform_where_nan(self.ranks.from_first(given.float()).cpu().numpy())
