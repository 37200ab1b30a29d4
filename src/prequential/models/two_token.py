"""The 2-token transformer: an example is two tokens, x_t and then y_t."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prequential.models.kv_cache import KVState
from prequential.models.lookback import LookBack
from prequential.models.transformer import Transformer
from prequential.settings import Settings


class TwoTokenTransformer(Transformer):
    """A plain causal transformer over x_1 y_1 x_2 y_2 ...; y_t is predicted at x_t.

    The window counts tokens, so it holds half as many examples; a token sees itself and the C tokens before it.
    """

    tokens_per_example = 2
    sees_itself = True

    def __init__(
        self, settings: Settings, *, features: int, num_classes: int, extractor: nn.Module | None = None
    ) -> None:
        super().__init__(settings, features=features, num_classes=num_classes, extractor=extractor)
        self.label_embedding = nn.Embedding(num_classes, settings.width)
        self.token_type = nn.Embedding(2, settings.width)  # 0: an x token, 1: a y token
        nn.init.normal_(self.label_embedding.weight, std=settings.label_init_std)
        nn.init.normal_(self.token_type.weight, std=settings.label_init_std)

    def label_tables(self) -> dict[str, float]:
        return {"label_embedding.weight": self.settings.label_init_std}

    def forward(
        self, x: Tensor, y: Tensor, past: KVState, look: LookBack | None = None
    ) -> tuple[list[Tensor], KVState]:
        embedded = self._embed(x)
        x_tokens, y_tokens = embedded + self.token_type.weight[0], self.label_embedding(y) + self.token_type.weight[1]
        tokens = torch.stack([x_tokens, y_tokens], 2).flatten(1, 2)  # (B, 2S, D)
        view = self._view(past, tokens.shape[1], x.shape[1], look)
        h, new = self._run_blocks(tokens, None, view)
        return self._run_heads(embedded, h[:, ::2], y, view, new)

    def predict_next(self, x: Tensor, past: KVState) -> tuple[list[Tensor], KVState]:
        embedded, view = self._embed(x[:, None]), self._view(past.expand(len(x)), 1, 1, None)
        h, new = self._run_blocks(embedded + self.token_type.weight[0], None, view)
        unknown = torch.zeros(len(x), 1, dtype=torch.int64, device=x.device)
        outs, new_state = self._run_heads(embedded, h, unknown, view, new)
        return [out[:, 0] for out in outs], new_state

    def predict_late(self, x: Tensor, past: KVState, look: LookBack) -> list[Tensor]:
        embedded, view = self._embed(x[None]), self._view(past, len(x), len(x), look)
        h, new = self._run_blocks(embedded + self.token_type.weight[0], None, view)
        unknown = torch.zeros(1, len(x), dtype=torch.int64, device=x.device)
        return [out[0] for out in self._run_heads(embedded, h, unknown, view, new)[0]]
