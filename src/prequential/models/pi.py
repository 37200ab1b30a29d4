"""The pi-transformer: one token an example, whose label is added to its key and value."""

from __future__ import annotations

import torch
from torch import Tensor

from prequential.models.context import Seen
from prequential.models.transformer import Transformer


class PiTransformer(Transformer):
    """Labels enter through the keys and values only, and no token sees its own: "privileged information".

    So the prediction of y_t can use every label of the window but y_t, and one pass over a chunk both predicts all
    of it and leaves the keys and values that later examples attend to.
    """

    def _block_labels(self) -> int:
        return self.classes

    def forward(self, x: Tensor, y: Tensor, past: Seen) -> tuple[list[Tensor], Seen]:
        embedded = self._embed(x)
        h, new = self._run(embedded, y, past.tokens, self._bias(x.shape[1], past))
        return self._read_out(embedded, h, y, past, new)

    def predict(self, x: Tensor, past: Seen) -> list[Tensor]:
        past = past.repeated(len(x))
        embedded = self._embed(x[:, None])
        h, new = self._run(embedded, None, past.tokens, self._bias(1, past))
        unknown = torch.zeros(len(x), 1, dtype=torch.int64, device=x.device)
        outs, _ = self._read_out(embedded, h, unknown, past, new)
        return [out[:, 0] for out in outs]
