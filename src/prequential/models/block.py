"""What both transformers are made of: parallel blocks with multi-query attention over a sliding window.

Shape letters: B streams, T new tokens, P past tokens in the KV cache, D width, H query heads, K key width.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prequential.models.attention import Past, Rotation, attend


class Block(nn.Module):
    """h + W_o attention(norm h) + W_down gelu(W_up norm h + bias), with one norm for both branches.

    As the branches are parallel, all projections into them are one matrix product, and so are the two out of them.

    Parameters
    ----------
    width
        Width D of the tokens.
    mlp_width
        Width of the hidden layer.
    num_heads
        Number of query heads H; there is one key head.
    num_labels
        How many labels have an embedding that is added to keys and values; None: none has.
    label_init_std
        Standard deviation of these embeddings at the start.
    attention
        False leaves the attention out.
    query_init
        "key" starts every query head with the weights of the keys, and the label embeddings of keys at 0, so that a
        token attends to similar ones from the start. "random" starts them apart.
    """

    def __init__(
        self,
        *,
        width: int,
        mlp_width: int,
        num_heads: int,
        num_labels: int | None,
        label_init_std: float,
        attention: bool,
        query_init: Literal["random", "key"] = "random",
    ) -> None:
        super().__init__()
        self.num_heads, self.key_width, self.attention = num_heads, width // num_heads, attention
        self.in_sizes = [width, self.key_width, self.key_width, mlp_width] if attention else [mlp_width]
        self.norm = nn.LayerNorm(width)
        self.in_proj = nn.Linear(width, sum(self.in_sizes), bias=False)  # q, k, v and the hidden layer
        self.out_proj = nn.Linear(width * attention + mlp_width, width, bias=False)  # W_down and W_o
        nn.init.normal_(self.in_proj.weight, std=width**-0.5)
        # random, so that each hidden unit begins elsewhere; with all at 0, tables are learned slowly
        self.mlp_bias = nn.Parameter(torch.randn(mlp_width))
        nn.init.normal_(self.out_proj.weight[:, :mlp_width], std=mlp_width**-0.5)
        nn.init.normal_(self.out_proj.weight[:, mlp_width:], std=width**-0.5)
        self.key_labels = self.value_labels = None
        if num_labels is not None and attention:
            # the scale of the entries of W_k h, not one over the number of labels: else labels are too faint to use
            self.key_labels = nn.Embedding(num_labels, self.key_width)
            self.value_labels = nn.Embedding(num_labels, self.key_width)
            nn.init.normal_(self.key_labels.weight, std=label_init_std)
            nn.init.normal_(self.value_labels.weight, std=label_init_std)
        if query_init == "key" and attention:
            self._start_queries_as_keys()

    def forward(
        self, h: Tensor, y: Tensor | None, past: Past, attn_bias: Tensor, rotation: Rotation | None
    ) -> tuple[Tensor, Past]:
        """New tokens h (B, T, D) with their labels y (B, T), behind past keys and values (B, P, K) each.

        Gives the tokens for the next block, and the new keys and values, detached.
        """
        projected = self.in_proj(self.norm(h))
        if not self.attention:
            return h + self.out_proj(F.gelu(projected + self.mlp_bias)), past
        q, k, v, u = projected.split(self.in_sizes, -1)
        # where labels come late, tokens may also see others without their labels: there are columns for that
        unlabeled = (k, v) if attn_bias.shape[2] > past[0].shape[1] + k.shape[1] + 1 else None
        if self.key_labels is not None and self.value_labels is not None and y is not None:
            k, v = k + self.key_labels(y), v + self.value_labels(y)
        if q.dtype != h.dtype:  # in half precision the softmax is inexact and its backward pass slower
            with torch.autocast(q.device.type, enabled=False):
                k, v = k.float(), v.float()
                unlabeled = None if unlabeled is None else (unlabeled[0].float(), unlabeled[1].float())
                attended = attend(q.float(), k, v, past, attn_bias, rotation, self.num_heads, unlabeled)
        else:
            attended = attend(q, k, v, past, attn_bias, rotation, self.num_heads, unlabeled)
        out = self.out_proj(torch.cat([F.gelu(u + self.mlp_bias), attended], -1))
        return h + out, (k.detach(), v.detach())

    @torch.no_grad()
    def _start_queries_as_keys(self) -> None:
        """Gives every query head the weights of the key head, and leaves labels out of the keys."""
        weight, num_queries, num_keys = self.in_proj.weight, *self.in_sizes[:2]
        weight[:num_queries] = weight[num_queries : num_queries + num_keys].repeat(self.num_heads, 1)
        if self.key_labels is not None:
            self.key_labels.weight.zero_()

    def macs(self, keys: float) -> float:
        """Multiply-accumulates of the forward pass for one token that sees so many keys."""
        weights = self.in_proj.weight.numel() + self.out_proj.weight.numel()
        return weights + (2 * self.num_heads * self.key_width * keys if self.attention else 0)
