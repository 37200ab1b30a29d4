"""A block's gradient, which is written by hand, against the one that autograd finds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from prequential.models.attention import PART, Turn, band, parts, rotary_table
from prequential.models.block import Block

WIDTH, HEADS, WINDOW = 16, 4, 24


def gradients(block: Block, by_hand: bool, h: Tensor, y: Tensor | None, past: int, turned: bool) -> list[Tensor]:
    """Of a made-up loss, with respect to the tokens and all parameters that have one; then what the block gave."""
    torch.manual_seed(1)
    B, T, _ = h.shape
    key_width = WIDTH // HEADS
    keys, values = torch.randn(B, past, key_width, dtype=h.dtype), torch.randn(B, past, key_width, dtype=h.dtype)
    bias = []
    for first, last in parts(T):
        before = min(WINDOW, past + first)
        bias.append(band(last - first, WINDOW, HEADS, y is None)[None, :, WINDOW - before :].to(h.dtype))
    table = rotary_table(WINDOW + T + 1, key_width).to(torch.complex128)
    turn = Turn(table, past, T) if turned else None
    h = h.clone().requires_grad_()
    block.by_hand = by_hand
    out, (k, v) = block(h, y, (keys, values), bias, turn)
    assert not k.requires_grad
    assert not v.requires_grad
    wanted = [h, *(p for name, p in block.named_parameters() if y is not None or "labels" not in name)]
    block.zero_grad()
    (out * torch.randn_like(out)).sum().backward()  # type: ignore[no-untyped-call]
    return [*(tensor.grad for tensor in wanted if tensor.grad is not None), out.detach(), k, v]


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("past", [0, 7, WINDOW])
@pytest.mark.parametrize("tokens", [1, 9, 2 * PART + 5])
def test_the_gradient_by_hand_is_the_one_of_autograd(tokens: int, past: int, labels: bool, turned: bool) -> None:
    torch.manual_seed(0)
    block = Block(
        width=WIDTH, hidden=20, heads=HEADS, labels=5 if labels else None, label_scale=1.0, attention=True
    ).double()
    h = torch.randn(2, tokens, WIDTH, dtype=torch.float64)
    y = torch.randint(0, 5, (2, tokens)) if labels else None
    ours, theirs = (gradients(block, by_hand, h, y, past, turned) for by_hand in (True, False))
    assert len(ours) == 4 + len([name for name, _ in block.named_parameters()])
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-9)


def test_nothing_is_computed_for_the_past() -> None:
    """The gradients of keys and values take products as long as the chunk, not as the window."""
    torch.manual_seed(0)
    block = Block(width=WIDTH, hidden=20, heads=HEADS, labels=5, label_scale=1.0, attention=True).double()
    h, y = torch.randn(1, 2, WIDTH, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.int64)
    counts = []
    for by_hand in (True, False):
        with FlopCounterMode(display=False) as counter:
            gradients(block, by_hand, h, y, WINDOW, turned=True)
        counts.append(counter.get_total_flops())
    columns, new = WINDOW + 2 + 1, 2
    saved = 2 * (columns - new) * 2 * WIDTH  # two products, of all heads of two tokens
    assert counts[1] - counts[0] == 2 * saved  # a multiplication and an addition each
