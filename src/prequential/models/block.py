"""What both transformers are made of: parallel blocks with multi-query attention over a sliding window.

Shape letters: B streams, T new tokens, P past tokens in the cache, D width, H query heads, K key width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prequential.models.attention import Attended, Past, Turn, attend, attend_back


class Block(nn.Module):
    """h + W_o attention(norm h) + W_down gelu(W_up norm h + threshold), with one norm for both branches.

    As the branches are parallel, all projections into them are one matrix product, and so are the two out of them.
    """

    by_hand = True  # whether its gradient is; False leaves it to autograd, to compare with

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
        labels: tuple[Tensor | None, Tensor | None] = (None, None)
        if self.key_labels is not None and self.value_labels is not None and y is not None:
            labels = self.key_labels.weight, self.value_labels.weight
        weights = _Weights(self.norm.weight, self.norm.bias, self.into.weight, self.out.weight, self.threshold, *labels)
        given = _Given(y, past, bias, turn, self.heads, self.parts)
        if self.by_hand and torch.is_grad_enabled() and not torch.is_autocast_enabled(h.device.type):
            out, k, v = _ByHand.apply(given, h, *weights)  # type: ignore[no-untyped-call]
            return out, (k, v)
        made = _pass(given, h, weights)
        return made.out, (made.k.detach(), made.v.detach())

    def macs(self, keys: float) -> float:
        """Multiply-accumulates of the forward pass for one token that sees so many keys."""
        weights = self.into.weight.numel() + self.out.weight.numel()
        return weights + (2 * self.heads * self.key_width * keys if self.attention else 0)


class _Weights(NamedTuple):
    norm: Tensor
    norm_bias: Tensor
    into: Tensor
    out: Tensor
    threshold: Tensor
    key_labels: Tensor | None
    value_labels: Tensor | None


class _Given(NamedTuple):
    """What a block is given beside its tokens and weights."""

    y: Tensor | None
    past: Past
    bias: list[Tensor]
    turn: Turn | None
    heads: int
    parts: list[int]


class _Passed(NamedTuple):
    """What a block made of its tokens, and all that its gradient needs."""

    out: Tensor  # (B, T, D)
    k: Tensor  # (B, T, K)
    v: Tensor
    normal: Tensor  # (B, T, D)
    mean: Tensor
    inverse: Tensor  # one over the standard deviation
    u: Tensor  # (B, T, hidden)
    joined: Tensor  # (B, T, hidden + HK)
    attended: Attended


def _pass(given: _Given, h: Tensor, weights: _Weights) -> _Passed:
    normal, mean, inverse = torch.native_layer_norm(h, h.shape[-1:], weights.norm, weights.norm_bias, 1e-5)
    q, k, v, u = F.linear(normal, weights.into).split(given.parts, -1)  # type: ignore[no-untyped-call]
    if weights.key_labels is not None and weights.value_labels is not None and given.y is not None:
        k, v = k + F.embedding(given.y, weights.key_labels), v + F.embedding(given.y, weights.value_labels)
    u = u + weights.threshold
    looks = (given.past, given.bias, given.turn, given.heads)
    if q.dtype != h.dtype:  # in half precision the softmax is inexact and its backward pass slower
        with torch.autocast(q.device.type, enabled=False):
            k, v = k.float(), v.float()
            attended = attend(q.float(), k, v, *looks)
    else:
        attended = attend(q, k, v, *looks)
    joined = torch.cat([F.gelu(u), attended.found], -1)
    return _Passed(h + F.linear(joined, weights.out), k, v, normal, mean, inverse, u, joined, attended)


class _ByHand(torch.autograd.Function):
    """A block and its gradient. Autograd would compute one for the past too, whose keys and values have none."""

    @staticmethod
    def forward(ctx: Any, given: _Given, h: Tensor, *weights: Any) -> tuple[Tensor, Tensor, Tensor]:
        made = _pass(given, h, _Weights(*weights))
        ctx.given, ctx.attended = given, made.attended
        ctx.save_for_backward(h, made.normal, made.mean, made.inverse, made.u, made.joined, *weights[:5])
        ctx.labels = 0 if weights[5] is None else len(weights[5])
        ctx.mark_non_differentiable(made.k, made.v)
        return made.out, made.k, made.v

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        h, normal, mean, inverse, u, joined, norm, norm_bias, into, out, _threshold = ctx.saved_tensors
        given: _Given = ctx.given
        D = h.shape[-1]
        rows = grad.reshape(-1, D)
        to_joined = torch.mm(rows, out).view(joined.shape)
        to_out = torch.mm(rows.t(), joined.view(-1, joined.shape[-1]))
        of_u, of_found = to_joined[..., : u.shape[-1]], to_joined[..., u.shape[-1] :]
        to_u = torch.ops.aten.gelu_backward(of_u, u)
        q, k, v = attend_back(of_found, ctx.attended, given.past[0].shape[1], given.turn)
        to_into = torch.cat([q, k, v, to_u], -1).view(-1, len(into))  # (B*T, parts)
        to_normal = torch.mm(to_into, into).view(h.shape)
        to_h, to_norm, to_norm_bias = torch.ops.aten.native_layer_norm_backward(
            to_normal, h, h.shape[-1:], mean, inverse, norm, norm_bias, [True, True, True]
        )
        labels: tuple[Tensor | None, Tensor | None] = (None, None)
        if ctx.labels:
            back = torch.ops.aten.embedding_dense_backward
            labels = back(k, given.y, ctx.labels, -1, False), back(v, given.y, ctx.labels, -1, False)
        of_into = torch.mm(to_into.t(), normal.view(-1, D))
        return None, to_h.add_(grad), to_norm, to_norm_bias, of_into, to_out, to_u.sum((0, 1)), *labels
