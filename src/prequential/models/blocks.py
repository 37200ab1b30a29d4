"""What both transformers are made of: parallel blocks with multi-query attention over a sliding window.

Shape letters: L blocks, B streams, T new tokens, P past tokens in the cache, N = P + T keys, D width, H query heads,
K key width, C window.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PART = 64  # queries of a long chunk are taken so many at a time, each part with the keys that one of it may see
Past = tuple[Tensor, Tensor]  # keys and values of the past tokens, (L, B, P, K) each, oldest first


class Block(nn.Module):
    """h + W_o attention(norm h) + W_down gelu(W_up norm h + threshold), with one norm for both branches.

    As the branches are parallel, all projections into them are one matrix product, and so are the two out of them.
    """

    def __init__(
        self, *, width: int, hidden: int, heads: int, labels: int | None, label_scale: float, attention: bool
    ) -> None:
        super().__init__()
        self.heads, self.key_width, self.attention = heads, width // heads, attention
        self.parts = [width, self.key_width, self.key_width, hidden] if attention else [hidden]
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, sum(self.parts), bias=False)  # q, k, v and the hidden layer
        self.out = nn.Linear(width * attention + hidden, width, bias=False)  # W_o and W_down
        nn.init.normal_(self.into.weight, std=width**-0.5)
        # where each hidden unit begins; all at 0 learns tables slowly
        self.threshold = nn.Parameter(torch.randn(hidden))
        nn.init.normal_(self.out.weight[:, :hidden], std=hidden**-0.5)
        nn.init.normal_(self.out.weight[:, hidden:], std=width**-0.5)
        self.key_labels = self.value_labels = None
        if labels is not None and attention:
            # the scale of the entries of W_k h, not one over the number of labels: else labels are too faint to use
            self.key_labels = nn.Embedding(labels, self.key_width)
            self.value_labels = nn.Embedding(labels, self.key_width)
            nn.init.normal_(self.key_labels.weight, std=label_scale)
            nn.init.normal_(self.value_labels.weight, std=label_scale)

    def forward(
        self, h: Tensor, y: Tensor | None, past: Past, bias: list[Tensor], turn: Turn | None
    ) -> tuple[Tensor, Past]:
        """New tokens h (B, T, D) with their labels y (B, T), past keys and values (B, P, K) each."""
        if not self.attention:
            return h + self.out(F.gelu(self.into(self.norm(h)) + self.threshold)), past
        q, k, v, u = self.into(self.norm(h)).split(self.parts, -1)  # (B, T, HK), (B, T, K) twice, (B, T, hidden)
        if self.key_labels is not None and self.value_labels is not None and y is not None:
            k, v = k + self.key_labels(y), v + self.value_labels(y)
        if q.dtype != torch.float32:  # in half precision the softmax is inexact and its backward pass slower
            with torch.autocast(q.device.type, enabled=False):
                k, v = k.float(), v.float()
                a = attend(q.float(), k, v, past, bias, turn, self.heads)
        else:
            a = attend(q, k, v, past, bias, turn, self.heads)  # (B, T, HK)
        return h + self.out(torch.cat([F.gelu(u + self.threshold), a], -1)), (k.detach(), v.detach())

    def macs(self, keys: float) -> float:
        """Multiply-accumulates of the forward pass for one token that sees so many keys."""
        weights = self.into.weight.numel() + self.out.weight.numel()
        return weights + (2 * self.heads * self.key_width * keys if self.attention else 0)


def attend(q: Tensor, k: Tensor, v: Tensor, past: Past, bias: list[Tensor], turn: Turn | None, heads: int) -> Tensor:
    """Attention of the new tokens over the past ones, themselves, and a null slot with key 0 and value 0.

    There is one key head, so the query heads are just more rows: no transposes, one product for all of them.
    `bias` has a tensor (B or 1, rows, columns) for each part of the queries, 0 where a query may look and -inf
    elsewhere; its columns are those up to the last token of the part, and the null slot.
    """
    B, T, _ = q.shape
    P, K = past[0].shape[1], k.shape[-1]
    null = k.new_zeros(B, 1, K)
    keys = torch.cat([past[0], k, null], 1)  # (B, N+1, K)
    values = torch.cat([past[1], v, null], 1)
    if turn is not None:
        q, keys = turn.queries(q.view(B, T, heads, K)), turn.keys(keys)
    else:
        q = q * K**-0.5
    q = q.reshape(B, T * heads, K)
    if len(bias) == 1:
        return _weigh(q, keys, values, bias[0]).view(B, T, heads * K)
    found, row = [], 0
    for part in bias:
        rows, columns = part.shape[1], part.shape[2] - 1
        last = P + (row + rows) // heads
        mine, its = (torch.cat([of_all[:, last - columns : last], null], 1) for of_all in (keys, values))
        found.append(_weigh(q[:, row : row + rows], mine, its, part))
        row += rows
    return torch.cat(found, 1).view(B, T, heads * K)


def _weigh(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    scores = torch.baddbmm(bias, q, keys.transpose(1, 2))  # (B, T*H, N+1)
    return torch.bmm(torch.softmax(scores, -1), values)


def parts(tokens: int) -> list[tuple[int, int]]:
    """Where the parts of the queries begin and end; up to twice the length of a part, they stay together."""
    if tokens < 2 * PART:
        return [(0, tokens)]
    return [(first, min(first + PART, tokens)) for first in range(0, tokens, PART)]


class Turn:
    """Rotary positions for one pass: turns queries and keys by their place in the window."""

    def __init__(self, table: Tensor, past: int, tokens: int) -> None:
        key_width = 2 * table.shape[1]
        self._keys = table[: past + tokens + 1]  # (N+1, K/2); the null slot's key is 0 whichever way it is turned
        self._queries = table[past : past + tokens, None] * key_width**-0.5  # (T, 1, K/2), with the scale of the scores

    def queries(self, q: Tensor) -> Tensor:  # (B, T, H, K)
        return _rotate(q, self._queries)

    def keys(self, k: Tensor) -> Tensor:  # (B, N+1, K)
        return _rotate(k, self._keys)


def _rotate(x: Tensor, turn: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(-2)


def rotary_table(length: int, key_width: int) -> Tensor:
    """Unit complex numbers (length, K/2), one row a position."""
    frequency = 10_000.0 ** -(torch.arange(0, key_width, 2, dtype=torch.float64) / key_width)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return torch.polar(torch.ones_like(angle), angle).to(torch.complex64)


def hide_filler(bias: Tensor, past: int, filled: list[int]) -> Tensor:
    """A bias (1, T, ...) with the filler before the pasts of streams that have less than P out of sight, (B, T, ...)."""
    if all(count == past for count in filled):
        return bias
    hidden = torch.zeros(len(filled), 1, bias.shape[2], device=bias.device)
    for b, count in enumerate(filled):
        hidden[b, :, : past - count] = -torch.inf
    return bias + hidden


def band(tokens: int, window: int, heads: int, itself: bool) -> Tensor:
    """The bias (T*H, C+T+1) of T new tokens behind a full cache: each sees the C tokens before it (and itself).

    Behind P < C past tokens the first C - P columns are left out. The last column is the null slot, always seen.
    """
    query = torch.arange(tokens)[:, None]
    key = torch.arange(window + tokens)[None]
    seen = (key >= query) & (key < query + window + itself)
    bias = torch.zeros(tokens, window + tokens + 1)
    bias[:, :-1].masked_fill_(~seen, -math.inf)
    return bias.repeat_interleave(heads, 0)


class KVCache:
    """The keys and values of the C most recent tokens of one stream, and of the tokens since the last chunk border.

    They are what the parameters of their time made of the tokens: stale and detached. The buffer has room for more
    than C tokens, so that most pushes move nothing but the new ones. With `labels`, the values are labels, one each.
    """

    def __init__(
        self, *, depth: int, window: int, chunk_tokens: int, key_width: int, device: torch.device, labels: bool = False
    ) -> None:
        self.window = window
        room = window + max(window, 2 * chunk_tokens)
        self._k = torch.zeros(depth, 1, room, key_width, device=device)
        self._v = (
            torch.zeros(depth, 1, room, 1, device=device, dtype=torch.int64) if labels else torch.zeros_like(self._k)
        )
        self._end = 0  # where the next token goes
        self.filled = 0  # tokens of finished chunks, at most C
        self.fresh = 0  # tokens since the last chunk border

    def past(self) -> Past:
        """What a whole chunk can look back on: the last C tokens before the chunk border, (L, 1, P, K) each."""
        return self._view(self._end - self.fresh - self.filled, self._end - self.fresh)

    def recent(self) -> Past:
        """What the next token can look back on: the last C tokens, those since the chunk border included."""
        return self._view(self._end - min(self.window, self.filled + self.fresh), self._end)

    def append(self, new: Past) -> None:
        """Adds tokens since the chunk border."""
        tokens = new[0].shape[2]
        if self._end + tokens > self._k.shape[2]:
            self._make_room()
        self._k[:, :, self._end : self._end + tokens] = new[0]
        self._v[:, :, self._end : self._end + tokens] = new[1]
        self._end += tokens
        self.fresh += tokens

    def finish_chunk(self, new: Past) -> None:
        """Replaces the tokens since the chunk border by those of the whole chunk, and moves the border behind them."""
        self._end -= self.fresh
        self.fresh = 0
        tokens = min(self.window, new[0].shape[2])
        if tokens:
            self.append((new[0][:, :, -tokens:], new[1][:, :, -tokens:]))
        self.filled, self.fresh = min(self.window, self.filled + tokens), 0

    def clear(self) -> None:
        self._end = self.filled = self.fresh = 0

    def state(self) -> dict[str, Tensor | int]:
        k, v = self._view(self._end - self.fresh - self.filled, self._end)
        return {"k": k.clone(), "v": v.clone(), "fresh": self.fresh}

    def load_state(self, state: dict[str, Tensor]) -> None:
        k, v = torch.as_tensor(state["k"]), torch.as_tensor(state["v"])
        self.clear()
        self.append((k, v))
        self.fresh = int(state["fresh"])
        self.filled = k.shape[2] - self.fresh

    def _view(self, start: int, stop: int) -> Past:
        return self._k[:, :, start:stop], self._v[:, :, start:stop]

    def _make_room(self) -> None:
        k, v = self._view(self._end - self.fresh - self.filled, self._end)
        k, v = k.clone(), v.clone()
        self._end = k.shape[2]
        self._k[:, :, : self._end], self._v[:, :, : self._end] = k, v
