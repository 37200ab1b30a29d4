"""A block against the same computed one query at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from prequential.models.attention import RotaryEmbedding, apply_rotary, sliding_window_bias
from prequential.models.block import Block
from prequential.models.pi import PiTransformer
from prequential.settings import Settings

WIDTH, HEADS, WINDOW, HIDDEN = 16, 4, 6, 20
K = WIDTH // HEADS


def slow_block(block: Block, h: Tensor, y: Tensor | None, past: tuple[Tensor, Tensor], rotary: bool) -> Tensor:
    """h + W_o attention(norm h) + W_down gelu(W_up norm h + bias) of one stream, one query at a time."""
    normed = F.layer_norm(h, (WIDTH,), block.norm.weight, block.norm.bias)
    q, k, v, u = block.in_proj(normed).split([WIDTH, K, K, HIDDEN], -1)
    if y is not None:
        k, v = k + block.key_labels.weight[y], v + block.value_labels.weight[y]
    keys, values = torch.cat([past[0], k]), torch.cat([past[1], v])
    angle = torch.arange(len(keys))[:, None] * 10_000.0 ** -(torch.arange(0, K, 2, dtype=torch.float64) / K)
    if rotary:
        keys = rotate(keys, angle)
    rows = []
    for t in range(len(h)):
        at = len(past[0]) + t
        stop = at + (y is None)  # where labels are tokens of their own, a token sees itself
        first = max(0, at - WINDOW)
        found = []
        for head in q[t].view(HEADS, K):
            query = rotate(head[None], angle[at : at + 1])[0] if rotary else head
            scores = torch.cat([keys[first:stop] @ query * K**-0.5, torch.zeros(1, dtype=h.dtype)])
            found.append(torch.softmax(scores, 0)[:-1] @ values[first:stop])
        rows.append(torch.cat([F.gelu(u[t] + block.mlp_bias), *found]))
    return h + torch.stack(rows) @ block.out_proj.weight.T


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    even, odd = x[:, ::2], x[:, 1::2]
    turned = [even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()]
    return torch.stack(turned, -1).flatten(-2)


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("past", [0, 4, WINDOW])
def test_a_block_is_what_its_formula_says(past: int, labels: bool, rotary: bool) -> None:
    torch.manual_seed(0)
    block = Block(
        width=WIDTH,
        mlp_width=HIDDEN,
        num_heads=HEADS,
        num_labels=5 if labels else None,
        label_init_std=1.0,
        attention=True,
    ).double()
    tokens = 9
    h = torch.randn(tokens, WIDTH, dtype=torch.float64)
    y = torch.randint(0, 5, (tokens,)) if labels else None
    kept = torch.randn(past, K, dtype=torch.float64), torch.randn(past, K, dtype=torch.float64)
    bias = sliding_window_bias(tokens, WINDOW, HEADS, y is None)[None, :, WINDOW - past :].double()
    rotation = None
    if rotary:
        table = RotaryEmbedding(key_width=K, max_length=WINDOW + tokens + 1)
        table.table = table.table.to(torch.complex128)
        rotation = table(past, tokens)
    batch = None if y is None else y[None]
    out, (k, v) = block(h[None], batch, (kept[0][None], kept[1][None]), bias, rotation)
    torch.testing.assert_close(out[0], slow_block(block, h, y, kept, rotary), rtol=1e-5, atol=1e-6)
    assert k.shape == v.shape == (1, tokens, K)
    assert not k.requires_grad
    assert not v.requires_grad


def test_rotated_scores_depend_on_the_distance_alone() -> None:
    rotary = RotaryEmbedding(key_width=K, max_length=32)
    q, k = torch.randn(K), torch.randn(K)
    scores = []
    for at in (3, 11):
        rotation = rotary(past=at, tokens=1)
        query = apply_rotary(q.view(1, 1, 1, K), rotation.queries)[0, 0, 0]
        keys = apply_rotary(k.expand(1, at + 2, K), rotation.keys)[0]
        scores.append(keys[at - 3 : at] @ query)
    torch.testing.assert_close(scores[0], scores[1])


def made(**options) -> Block:
    torch.manual_seed(0)
    sizes = {"width": WIDTH, "mlp_width": HIDDEN, "num_heads": HEADS, "label_init_std": 1.0}
    return Block(**{**sizes, "num_labels": 5, "attention": True, **options})


@pytest.mark.parametrize("labels", [5, None])
def test_queries_can_start_as_keys(labels: int | None) -> None:
    """Every head compares with the same map; all else is as if drawn without it."""
    block, other = made(query_init="key", num_labels=labels), made(num_labels=labels)
    queries, rest = block.in_proj.weight.split([WIDTH, K + K + HIDDEN])
    for head in queries.view(HEADS, K, WIDTH):
        assert torch.equal(head, rest[:K])
    assert torch.equal(rest, other.in_proj.weight[WIDTH:])
    assert not torch.equal(queries, other.in_proj.weight[:WIDTH])
    if labels:
        assert not block.key_labels.weight.any()
        assert torch.equal(block.value_labels.weight, other.value_labels.weight)


def test_an_example_attends_to_itself_most_where_queries_start_as_keys() -> None:
    """Without positions, the score of two tokens is the product of their keys, and no token has a larger one with another."""
    block = made(query_init="key").double()
    h = F.normalize(torch.randn(12, WIDTH, dtype=torch.float64), dim=-1) * WIDTH**0.5
    q, k, _, _ = block.in_proj(h).split(block.in_sizes, -1)
    k = F.normalize(k, dim=-1)
    scores = F.normalize(q.view(12, HEADS, K), dim=-1) @ k.T  # (12, HEADS, 12)
    assert (scores.argmax(-1) == torch.arange(12)[:, None]).all()


def test_without_attention_there_are_no_queries() -> None:
    assert torch.equal(made(query_init="key", attention=False).in_proj.weight, made(attention=False).in_proj.weight)


def test_labels_of_new_classes_are_left_out_of_the_keys_too() -> None:
    torch.manual_seed(0)
    model = PiTransformer(Settings(method="paper", query_init="key", width=16), features=3, num_classes=4)
    for name, table in model.grown_tables(9, like=3).items():
        if "labels" in name:
            assert bool(table[4:].any()) == ("value_labels" in name), name
