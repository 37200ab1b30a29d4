"""The same pi-transformer and the same online training, written plainly: what the benchmarks compare with.

Nothing here is made fast: one matrix per projection, heads as a dimension of their own, mask and rotary tables made
anew in every pass, PyTorch's default AdamW.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prequential.settings import Settings


class PlainBlock(nn.Module):
    def __init__(self, s: Settings, classes: int) -> None:
        super().__init__()
        self.s = s
        self.norm = nn.LayerNorm(s.width)
        self.q = nn.Linear(s.width, s.width, bias=False)
        self.k = nn.Linear(s.width, s.key_width, bias=False)
        self.v = nn.Linear(s.width, s.key_width, bias=False)
        self.o = nn.Linear(s.width, s.width, bias=False)
        self.up = nn.Linear(s.width, 4 * s.width)
        self.down = nn.Linear(4 * s.width, s.width, bias=False)
        self.key_labels = nn.Embedding(classes, s.key_width)
        self.value_labels = nn.Embedding(classes, s.key_width)

    def forward(self, h: Tensor, y: Tensor, past_k: Tensor, past_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, T, _ = h.shape
        s = self.s
        P = past_k.shape[1]
        x = self.norm(h)
        q = self.q(x).view(B, T, s.effective_num_query_heads, s.key_width).transpose(1, 2)  # (B, H, T, K)
        k = self.k(x) + self.key_labels(y)
        v = self.v(x) + self.value_labels(y)
        keys, values = torch.cat([past_k, k], 1)[:, None], torch.cat([past_v, v], 1)[:, None]
        angles = torch.arange(P + T)[:, None] * 10_000.0 ** -(torch.arange(0, s.key_width, 2) / s.key_width)
        cos, sin = angles.cos(), angles.sin()
        q, keys = rotate(q, cos[P:], sin[P:]), rotate(keys, cos, sin)
        scores = q @ keys.transpose(-1, -2) / s.key_width**0.5  # (B, H, T, P+T)
        query, key = torch.arange(T)[:, None] + P, torch.arange(P + T)[None]
        scores = scores.masked_fill((key >= query) | (key < query - s.window), -torch.inf)
        scores = torch.cat([scores, torch.zeros(B, s.effective_num_query_heads, T, 1)], -1)  # the null slot
        a = (scores.softmax(-1)[..., :-1] @ values).transpose(1, 2).reshape(B, T, s.width)
        return h + self.o(a) + self.down(F.gelu(self.up(x))), k.detach(), v.detach()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class PlainTransformer(nn.Module):
    def __init__(self, s: Settings, features: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, s.width)
        self.blocks = nn.ModuleList(PlainBlock(s, classes) for _ in range(s.depth))
        self.norm = nn.LayerNorm(s.width)
        self.readout = nn.Linear(s.width, classes)

    def forward(
        self, x: Tensor, y: Tensor, past: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        h = self.embed(x)
        new = []
        for block, (k, v) in zip(self.blocks, past, strict=True):
            h, k, v = block(h, y, k, v)
            new.append((k, v))
        return self.readout(self.norm(h)), new


class PlainLoop:
    """Stream 0 and the replay streams, one step each per turn, as in the paper's listing."""

    def __init__(self, s: Settings, features: int, classes: int) -> None:
        self.s = s
        self.model = PlainTransformer(s, features, classes)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=s.learning_rate / s.width, weight_decay=s.weight_decay
        )
        self.caches = [self.empty() for _ in range(s.num_streams)]
        self.chunks = [0] * s.num_streams
        self.data: list[tuple[Tensor, Tensor]] = []

    def empty(self) -> list[tuple[Tensor, Tensor]]:
        return [(torch.zeros(1, 0, self.s.key_width), torch.zeros(1, 0, self.s.key_width)) for _ in range(self.s.depth)]

    def turn(self, x: Tensor, y: Tensor) -> float:
        self.data.append((x, y))
        reported = 0.0
        for stream in range(self.s.num_streams):
            chunk = len(self.data) - 1 if stream == 0 else self.chunks[stream]
            x, y = self.data[chunk]
            logits, new = self.model(x[None], y[None], self.caches[stream])
            loss = F.cross_entropy(logits[0], y)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.caches[stream] = [
                (torch.cat([k, nk], 1)[:, -self.s.window :], torch.cat([v, nv], 1)[:, -self.s.window :])
                for (k, v), (nk, nv) in zip(self.caches[stream], new, strict=True)
            ]
            if stream == 0:
                reported = loss.item()
            else:
                self.chunks[stream] += 1
                if torch.rand(()) < 1 / len(self.data):
                    self.chunks[stream] = 0
                    self.caches[stream] = self.empty()
        return reported
