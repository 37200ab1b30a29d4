"""The 2-token transformer: an example is two tokens, x_t and then y_t."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prequential.models.context import Seen
from prequential.models.transformer import Transformer
from prequential.settings import Settings


class TwoTokenTransformer(Transformer):
    """A plain causal transformer over x_1 y_1 x_2 y_2 ...; y_t is predicted at x_t.

    The window counts tokens, so it holds half as many examples; a token sees itself and the C tokens before it.
    """

    tokens_per_example = 2
    sees_itself = True

    def __init__(self, settings: Settings, *, features: int, classes: int, extractor: nn.Module | None = None) -> None:
        super().__init__(settings, features=features, classes=classes, extractor=extractor)
        self.label = nn.Embedding(classes, settings.width)
        self.kind = nn.Embedding(2, settings.width)  # what an x token and what a y token has in common
        nn.init.normal_(self.label.weight, std=settings.label_init_std)
        nn.init.normal_(self.kind.weight, std=settings.label_init_std)

    def forward(self, x: Tensor, y: Tensor, past: Seen) -> tuple[list[Tensor], Seen]:
        embedded = self._embed(x)
        inputs, labels = embedded + self.kind.weight[0], self.label(y) + self.kind.weight[1]  # (B, S, D)
        tokens = torch.stack([inputs, labels], 2).flatten(1, 2)  # (B, 2S, D)
        h, new = self._run(tokens, None, past.tokens, self._bias(tokens.shape[1], past))
        return self._read_out(embedded, h[:, ::2], y, past, new)

    def foresee(self, x: Tensor, past: Seen) -> tuple[list[Tensor], Seen]:
        past = past.repeated(len(x))
        embedded = self._embed(x[:, None])
        h, new = self._run(embedded + self.kind.weight[0], None, past.tokens, self._bias(1, past))
        unknown = torch.zeros(len(x), 1, dtype=torch.int64, device=x.device)
        outs, seen = self._read_out(embedded, h, unknown, past, new)
        return [out[:, 0] for out in outs], seen
