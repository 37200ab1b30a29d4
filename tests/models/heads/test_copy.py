"""The copy path by itself: what it computes, and the gradient of that."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from prequential.models.heads import CopyHead, HeadInput
from prequential.models.heads.copy import EPSILON, PRIOR_SHARE, _sum_by_label

B, S, P, D, K = 2, 3, 4, 6, 5
N = P + S


def given(dtype: torch.dtype = torch.float32, past: int = P) -> tuple[CopyHead, HeadInput]:
    generator = torch.Generator().manual_seed(0)
    head = CopyHead(width=D, num_classes=K, deep=False).to(dtype)
    place = torch.zeros(1, 1, past + S + 1, dtype=dtype)
    place[..., :-1] = torch.arange(past + S) / P
    labels = torch.randint(K, (B, past + S + 1), generator=generator)[:, None, :-1].expand(-1, S, -1)
    row, column = torch.arange(S)[:, None], torch.arange(past + S + 1)
    seen = (column < past + row) | (column == past + S)
    hidden = torch.zeros(1, S, past + S + 1, dtype=dtype).masked_fill(~seen, -torch.inf)
    h, trunk = (torch.randn(B, S, D, generator=generator, dtype=dtype) for _ in range(2))
    keys = F.normalize(torch.randn(B, past, D, generator=generator, dtype=dtype), dim=-1)
    return head, HeadInput(h, trunk, keys, labels, hidden, place, place[0, :, past : past + S])


def by_hand(head: CopyHead, given: HeadInput) -> torch.Tensor:
    """One score at a time, in the words of the class."""
    temperature, slope, null = torch.exp(10 * head.log_temperature), 10 * head.recency_slope, 10 * head.null_logit
    key = given.embedded * torch.rsqrt(given.embedded.square().sum(-1, keepdim=True) + EPSILON)
    keys = torch.cat([given.past_keys, key], 1)
    past, rows = given.past_keys.shape[1], []
    for b in range(B):
        for t in range(S):
            scores = [temperature * (key[b, t] @ keys[b, j]) - slope * (past + t - j) / P for j in range(past + t)]
            weight = torch.softmax(torch.stack([*scores, null]), 0)
            one_hot = F.one_hot(given.labels[b, t, : past + t], K).to(weight)
            rows.append(weight[:-1] @ one_hot)
    return torch.stack(rows).view(B, S, K)


def test_it_is_attention_by_cosine_and_age():
    head, here = given()
    out, key = head(here)
    torch.testing.assert_close(out, by_hand(head, here))
    torch.testing.assert_close(key.norm(dim=-1), torch.ones(B, S), atol=0.01, rtol=0)


def test_the_weights_of_one_example_are_added_up_by_the_labels_as_they_are():
    head, here = given()
    columns = [*range(P + 1), N]  # the past, itself and the null key
    first = {"embedded": here.embedded[:, :1], "query_position": here.query_position[:, :1]}
    first |= {
        "attn_bias": here.attn_bias[:, :1, columns],
        "key_position": here.key_position[..., columns],
        "labels": here.labels[:, :1, :P],
    }
    with torch.no_grad():
        out, key = head(here._replace(**first))
        expected, keys = head(here)
    torch.testing.assert_close(out, expected[:, :1])
    assert torch.equal(key, keys[:, :1])


def test_what_is_kept_from_the_last_pass_is_made_anew_where_anything_it_is_made_of_changes():
    head, here = given()
    passes = [
        here,
        here._replace(key_position=2 * here.key_position),
        here._replace(attn_bias=here.attn_bias - 0.5 * here.key_position),
        here,
    ]
    with torch.no_grad():
        for parameter in (None, *head.parameters()):
            if parameter is not None:
                parameter.data.add_(0.05)
            for other in passes:
                fresh = given()[0]
                fresh.load_state_dict(head.state_dict())
                expected = fresh(other)[0]
                assert torch.equal(head(other)[0], expected)
                assert torch.equal(head(other)[0], expected)


def test_the_gradient_is_that_of_what_is_computed():
    head, here = given(torch.float64)
    grads = []
    for compute in (lambda: head(here)[0], lambda: by_hand(head, here)):
        here.embedded.requires_grad_().grad = None
        head.zero_grad()
        p = head.log_probs(compute().flatten(0, 1), None)
        F.nll_loss(p, torch.tensor([0, 1, 2, 3, 4, 0])).backward()
        grads.append([here.embedded.grad, *(parameter.grad for parameter in head.parameters())])
    assert len(grads[0]) == 4
    for one, other in zip(*grads, strict=True):
        assert one.abs().max() > 1e-6
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_with_nothing_to_copy_all_labels_are_alike_and_those_not_met_prior_the_place_of_one():
    head, here = given(past=0)
    out, _ = head(here)
    assert torch.equal(out[:, 0], torch.zeros(B, K))
    torch.testing.assert_close(head.log_probs(out[:, 0], None).exp(), torch.full((B, K), 1 / K))
    prior = torch.tensor([0.0, 0.0, *[-torch.log(torch.tensor(3.0))] * 3])
    p = head.log_probs(out[:, 0], prior.expand(B, K)).exp()
    torch.testing.assert_close(p[0], torch.tensor([1 / 3, 1 / 3, 1 / 9, 1 / 9, 1 / 9]))


def test_however_sure_it_is_every_label_keeps_its_part():
    head, _ = given()
    out = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]])
    p = head.log_probs(out, None).exp()
    assert p[0, 1:].tolist() == pytest.approx([PRIOR_SHARE / K] * 4, rel=1e-4)
    assert p.sum().item() == pytest.approx(1)


def test_a_first_input_of_zeros_has_a_finite_gradient():
    head, here = given()
    zeros = torch.zeros(B, S, D, requires_grad=True)
    head.log_probs(head(here._replace(embedded=zeros))[0][0], None).sum().backward()
    assert zeros.grad.abs().max() < 1e3


def test_on_other_devices_the_sum_by_label_is_a_product_with_the_same_result():
    _, here = given()
    weight = torch.softmax(torch.randn(B, S, N + 1, generator=torch.Generator().manual_seed(1)), -1)
    expected = weight[..., :-1] @ F.one_hot(here.labels[:, 0], K).float()
    torch.testing.assert_close(_sum_by_label(weight, here.labels, K), expected)
    assert _sum_by_label(weight.to("meta"), here.labels.to("meta"), K).shape == (B, S, K)


def test_memory_does_not_grow_with_labels_times_window():
    """With 10,000 labels, a table of labels by columns would be larger than all that is allocated."""
    window, num_classes = 500, 10_000
    head = CopyHead(width=D, num_classes=num_classes, deep=False)
    place = torch.zeros(1, 1, window + 3)
    labels = torch.arange(window + 2).expand(1, 2, -1) * 17
    hidden = torch.zeros(1, 2, window + 3)
    here = HeadInput(
        torch.ones(1, 2, D), torch.ones(1, 2, D), torch.ones(1, window, D), labels, hidden, place, place[0, :, :2]
    )
    most = 0

    class Allocated(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal most
            out = func(*args, **(kwargs or {}))
            most = max(most, out.untyped_storage().nbytes() if isinstance(out, torch.Tensor) else 0)
            return out

    with Allocated():
        head(here)[0].sum().backward()
    assert most == 4 * 2 * num_classes  # the probabilities of two examples
