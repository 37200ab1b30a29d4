"""The pi-transformer: one token an example, whose label is added to its key and value."""

from __future__ import annotations

import torch
from torch import Tensor

from prequential.models.kv_cache import KVState
from prequential.models.lookback import LookBack
from prequential.models.transformer import Transformer


class PiTransformer(Transformer):
    """Labels enter through the keys and values only, and no token sees its own: "privileged information".

    So the prediction of y_t can use every label of the window but y_t, and one pass over a chunk both predicts all
    of it and leaves the keys and values that later examples attend to.
    """

    def _num_block_labels(self) -> int:
        return self.num_classes

    def forward(
        self, x: Tensor, y: Tensor, past: KVState, look: LookBack | None = None
    ) -> tuple[list[Tensor], KVState]:
        embedded, view = self._embed(x), self._view(past, x.shape[1], x.shape[1], look)
        # a view, so that autograd adds up the first block's two gradients (norm, residual) before the copy head's
        h, new = self._run_blocks(embedded.view_as(embedded), y, view)
        return self._run_heads(embedded, h, y, view, new)

    def predict_next(self, x: Tensor, past: KVState) -> tuple[list[Tensor], KVState]:
        embedded, view = self._embed(x[:, None]), self._view(past.expand(len(x)), 1, 1, None)
        h, new = self._run_blocks(embedded, None, view)
        unknown = torch.zeros(len(x), 1, dtype=torch.int64, device=x.device)
        outs, new_state = self._run_heads(embedded, h, unknown, view, new)
        return [out[:, 0] for out in outs], new_state

    def predict_late(self, x: Tensor, past: KVState, look: LookBack) -> list[Tensor]:
        embedded, view = self._embed(x[None]), self._view(past, len(x), len(x), look)
        h, new = self._run_blocks(embedded, None, view)
        unknown = torch.zeros(1, len(x), dtype=torch.int64, device=x.device)
        return [out[0] for out in self._run_heads(embedded, h, unknown, view, new)[0]]

    def attach_label(self, new: KVState, y: Tensor) -> KVState:
        """No token sees itself, so all that a label changes is the key and the value that it is added to."""
        (keys, values), (example_keys, _) = new.tokens, new.examples
        tables = [
            (b.key_labels, b.value_labels)
            for b in self.all_blocks
            if b.key_labels is not None and b.value_labels is not None
        ]
        if tables:
            keys = keys + torch.stack([of_key(y) for of_key, _ in tables])
            values = values + torch.stack([of_value(y) for _, of_value in tables])
        return KVState((keys, values), (example_keys, y[None, ..., None]))
