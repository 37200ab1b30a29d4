"""Multi-query attention over a sliding window, with rotary position embedding.

Shape letters: L blocks, B streams, T new tokens, P past tokens in the KV cache, N = P + T keys, H query heads, K key
width, C window.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

Past = tuple[Tensor, Tensor]  # keys and values of the past tokens, (L, B, P, K) each, oldest first


class Rotation(NamedTuple):
    """The rotary embedding of one pass, as unit complex numbers; that of the queries also scales the scores."""

    queries: Tensor  # (T, 1, K/2)
    keys: Tensor  # (N+1+U, K/2)


class RotaryEmbedding(nn.Module):
    """Rotary position embedding: queries and keys are rotated by their position in the window.

    Parameters
    ----------
    key_width
        Width K of queries and keys.
    max_length
        The largest number of keys in one pass.

    Examples
    --------
    >>> rotary = RotaryEmbedding(key_width=4, max_length=8)
    >>> apply_rotary(torch.ones(1, 3, 4), rotary(past=0, tokens=2).keys).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, *, key_width: int, max_length: int) -> None:
        super().__init__()
        self.scale = key_width**-0.5
        frequency = 10_000.0 ** -(torch.arange(0, key_width, 2, dtype=torch.float64) / key_width)
        angle = torch.arange(max_length, dtype=torch.float64)[:, None] * frequency
        table = torch.polar(torch.ones_like(angle), angle).to(torch.complex64)  # (max_length, K/2)
        self.register_buffer("table", table, persistent=False)
        self.table: Tensor

    def forward(self, past: int, tokens: int) -> Rotation:
        """The rotations of T new tokens behind P past ones. The null key is 0, so its rotation changes nothing."""
        queries = self.table[past : past + tokens, None] * self.scale
        return Rotation(queries, self.table[: past + tokens + 1])

    def at(self, queries: Tensor, keys: Tensor, unlabeled: Tensor) -> Rotation:
        """The rotations of tokens at these positions, (T,), (N,) and (U,)."""
        all_keys = torch.cat([keys, keys.new_zeros(1), unlabeled])
        return Rotation(self.table[queries, None] * self.scale, self.table[all_keys])


def apply_rotary(x: Tensor, rotation: Tensor) -> Tensor:
    """x (..., K) with each pair of neighboring numbers rotated."""
    if x.stride(0) % 2 or x.stride(1) % 2:  # part of the rows of a product, beside an MLP of odd width
        x = x.clone(memory_format=torch.contiguous_format)
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation).flatten(-2)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    past: Past,
    attn_bias: Tensor,
    rotation: Rotation | None,
    num_heads: int,
    unlabeled: Past | None = None,
) -> Tensor:
    """Attention (B, T, HK) of the new tokens over the past ones, themselves, and a null key 0 with value 0.

    There is one key head, so the query heads are just more rows: no transposes, one product for all of them.
    `attn_bias` (B or 1, TH, N+1) is 0 where a query may look and -inf elsewhere. With `unlabeled`, the new keys and
    values (B, U, K) each without their labels, it has as many more columns.
    """
    B, T, _ = q.shape
    K = k.shape[-1]
    null = k.new_zeros(B, 1, K)
    more = ((), ()) if unlabeled is None else ((unlabeled[0],), (unlabeled[1],))
    keys = torch.cat([past[0], k, null, *more[0]], 1)  # (B, N+1+U, K)
    values = torch.cat([past[1], v, null, *more[1]], 1)
    if rotation is not None:
        q, keys = apply_rotary(q.view(B, T, num_heads, K), rotation.queries), apply_rotary(keys, rotation.keys)
    else:
        q = q * K**-0.5
    scores = torch.baddbmm(attn_bias, q.reshape(B, T * num_heads, K), keys.transpose(1, 2))  # (B, TH, N+1)
    return torch.bmm(torch.softmax(scores, -1), values).view(B, T, num_heads * K)


def sliding_window_bias(tokens: int, window: int, num_heads: int, sees_itself: bool) -> Tensor:
    """The bias (TH, C+T+1) of T new tokens behind a full cache: each sees the C tokens before it (and itself).

    Behind P < C past tokens the first C - P columns are left out. The last column is the null key, always seen.
    """
    query = torch.arange(tokens)[:, None]
    key = torch.arange(window + tokens)[None]
    visible = (key >= query) & (key < query + window + sees_itself)
    bias = torch.zeros(tokens, window + tokens + 1)
    bias[:, :-1].masked_fill_(~visible, -math.inf)
    return bias.repeat_interleave(num_heads, 0)


def mask_padding(bias: Tensor, past: int, lengths: list[int]) -> Tensor:
    """A bias (1, T, ...) that also hides the padding before pasts shorter than P, (B, T, ...)."""
    if all(length == past for length in lengths):
        return bias
    padding = torch.zeros(len(lengths), 1, bias.shape[2], device=bias.device)
    for b, length in enumerate(lengths):
        padding[b, :, : past - length] = -torch.inf
    return bias + padding
