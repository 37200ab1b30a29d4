"""The pi-transformer: one token an example, whose label is added to its key and value."""

from __future__ import annotations

from torch import Tensor

from prequential.models.blocks import Past
from prequential.models.transformer import Transformer


class PiTransformer(Transformer):
    """Labels enter through the keys and values only, and no token sees its own: "privileged information".

    So the prediction of y_t can use every label of the window but y_t, and one pass over a chunk both predicts all
    of it and leaves the keys and values that later examples attend to.
    """

    def _block_labels(self) -> int:
        return self.classes

    def forward(self, x: Tensor, y: Tensor, past: Past, filled: list[int]) -> tuple[Tensor, Past]:
        bias = self._bias(x.shape[1], past[0].shape[2], filled)
        h, new = self._run(self._embed(x), y, past, bias)
        return self._read_out(h), new

    def predict(self, x: Tensor, past: Past) -> Tensor:
        P, n = past[0].shape[2], x.shape[0]
        shared = (past[0].expand(-1, n, -1, -1), past[1].expand(-1, n, -1, -1))  # (L, n, P, K)
        h, _ = self._run(self._embed(x[:, None]), None, shared, self._bias(1, P, [P]))
        return self._read_out(h)[:, 0]
