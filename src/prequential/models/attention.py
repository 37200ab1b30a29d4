"""Multi-query attention over a sliding window, and its gradient.

Shape letters: L blocks, B streams, T new tokens, P past tokens in the cache, N = P + T keys, H query heads, K key width,
C window.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

PART = 64  # queries of a long chunk are taken so many at a time, each part with the keys that one of it may see
Past = tuple[Tensor, Tensor]  # keys and values of the past tokens, (L, B, P, K) each, oldest first


class Part(NamedTuple):
    """Some of the queries, and the keys that one of them may see: the tokens first to last, and the null slot."""

    rows: slice
    first: int
    last: int
    keys: Tensor  # (B, last - first + 1, K)
    values: Tensor
    weights: Tensor  # (B, rows, last - first + 1) what each query gives to each of them


class Attended(NamedTuple):
    """What attention found, and all that its gradient needs."""

    found: Tensor  # (B, T, HK)
    queries: Tensor  # (B, TH, K)
    parts: list[Part]


def attend(q: Tensor, k: Tensor, v: Tensor, past: Past, bias: list[Tensor], turn: Turn | None, heads: int) -> Attended:
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
    found, seen, row = [], [], 0
    for part in bias:
        rows = slice(row, row + part.shape[1])
        last = P + rows.stop // heads
        first = last + 1 - part.shape[2]
        mine, its = keys, values
        if len(bias) > 1:
            mine, its = (torch.cat([of_all[:, first:last], null], 1) for of_all in (keys, values))
        scores = torch.baddbmm(part, q[:, rows], mine.transpose(1, 2))  # (B, rows, columns)
        weights = torch.softmax(scores, -1)
        found.append(torch.bmm(weights, its))
        seen.append(Part(rows, first, last, mine, its, weights))
        row = rows.stop
    joined = found[0] if len(found) == 1 else torch.cat(found, 1)
    return Attended(joined.view(B, T, heads * K), q, seen)


def attend_back(grad: Tensor, made: Attended, past: int, turn: Turn | None) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v from that of what was found, (B, T, HK).

    The past has none, so nothing is computed for it: behind a long window, that is most of two of the four products.
    """
    B, T, _ = grad.shape
    K = made.queries.shape[2]
    grad = grad.reshape(B, -1, K)
    to_q, to_k, to_v = [], [], []
    for part in made.parts:
        of_part = grad[:, part.rows]
        to_weights = torch.bmm(of_part, part.values.transpose(1, 2))
        to_scores = torch._softmax_backward_data(to_weights, part.weights, -1, part.weights.dtype)
        to_q.append(torch.bmm(to_scores, part.keys))
        new = slice(max(past - part.first, 0), part.last - part.first)
        to_k.append(torch.bmm(to_scores[:, :, new].transpose(1, 2), made.queries[:, part.rows]))
        to_v.append(torch.bmm(part.weights[:, :, new].transpose(1, 2), of_part))
    q, k, v = to_q[0], to_k[0], to_v[0]
    if len(made.parts) > 1:
        q, k, v = torch.cat(to_q, 1), grad.new_zeros(B, T, K), grad.new_zeros(B, T, K)
        for part, of_k, of_v in zip(made.parts, to_k, to_v, strict=True):
            new = slice(max(part.first - past, 0), part.last - past)
            k[:, new] += of_k
            v[:, new] += of_v
    if turn is None:
        return (q * K**-0.5).view(B, T, -1), k, v
    return turn.queries_back(q.view(B, T, -1, K)).flatten(2), turn.keys_back(k), v


def parts(tokens: int) -> list[tuple[int, int]]:
    """Where the parts of the queries begin and end; up to twice the length of a part, they stay together."""
    if tokens < 2 * PART:
        return [(0, tokens)]
    return [(first, min(first + PART, tokens)) for first in range(0, tokens, PART)]


class Turn:
    """Rotary positions for one pass: turns queries and keys by their place in the window."""

    def __init__(self, table: Tensor, past: int, tokens: int) -> None:
        self._scale = (2 * table.shape[1]) ** -0.5  # of the scores
        self._keys = table[: past + tokens + 1]  # (N+1, K/2); the null slot's key is 0 whichever way it is turned
        self._new = table[past : past + tokens]  # (T, K/2)
        self._queries = self._new[:, None] * self._scale  # (T, 1, K/2)

    def queries(self, q: Tensor) -> Tensor:  # (B, T, H, K)
        return _rotate(q, self._queries)

    def keys(self, k: Tensor) -> Tensor:  # (B, N+1, K)
        return _rotate(k, self._keys)

    def queries_back(self, grad: Tensor) -> Tensor:
        """The gradient of what `queries` was given, from that of what it gave, (B, T, H, K)."""
        return _rotate(grad, self._back[1])

    def keys_back(self, grad: Tensor) -> Tensor:
        """The gradient of the new ones of the keys that `keys` was given, (B, T, K)."""
        return _rotate(grad, self._back[0])

    @cached_property
    def _back(self) -> tuple[Tensor, Tensor]:
        back = self._new.conj_physical()
        return back, back[:, None] * self._scale


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
