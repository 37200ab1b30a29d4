"""The copy path: the labels of the examples that look like this one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from prequential.models.heads.head import Head, Pass, with_doubt

UNIFORM = 0.02  # how much of the prediction no example in the window can take
SMALLEST = 1e-2  # squared length below which a vector counts as having none: the first x of a stream is all 0
PACE = 10.0  # how much faster than other parameters the few scalars here move: AdamW's steps are all of one size
DEEP_WIDTH = 32  # of the keys made from what comes out of the blocks


class CopyHead(Head):
    """Attention from an example to the last C ones; what each label gets is its probability.

    The scores are temperature × cosine − slope × age, both learnt. It has no label tables and nothing to find out about
    labels, so it works from the second example on. A null slot takes what does not look like anything; that and a
    fixed 2 % go to all labels alike. Keys of past chunks are as the parameters of their time made them.

    Examples are compared by their embeddings (a linear map of x) or, `deep`, by a map of what comes out of the blocks.
    The first works at once; the second learns what to look at, and teaches the blocks so long before the softmax
    can, which has to learn what each label means by itself.
    """

    def __init__(self, *, width: int, classes: int, deep: bool) -> None:
        super().__init__()
        self.classes = classes
        self.key_width = min(width, DEEP_WIDTH) if deep else width
        self.map: nn.Linear | None = None
        if deep:
            with torch.random.fork_rng(devices=[]):  # with this head or without it, the rest starts the same
                self.map = nn.Linear(width, self.key_width, bias=False)
                nn.init.normal_(self.map.weight, std=width**-0.5)
        self.sharpness = nn.Parameter(torch.tensor(2.5 / PACE))  # log of the temperature
        self.slope = nn.Parameter(torch.tensor(8.0 / PACE))  # over the whole window
        self.null = nn.Parameter(torch.tensor(0.0))
        self._kept: tuple[Tensor, Tensor, tuple[float, ...], _Ruler] | None = None

    def forward(self, given: Pass) -> tuple[Tensor, Tensor | None]:
        assert given.past is not None
        h = given.embedded if self.map is None else self.map(given.trunk)
        if torch.is_autocast_enabled(h.device.type):
            with torch.autocast(h.device.type, enabled=False):  # in half precision neighbours would be told apart badly
                return self._copy(h, given)
        return self._copy(h, given)

    def _copy(self, h: Tensor, given: Pass) -> tuple[Tensor, Tensor]:
        h = h.to(given.place.dtype)
        if not torch.is_grad_enabled():
            found = _look(h, given, self._ruler(given))
            return self._by_label(found.weight, given), found.key
        out, key = _Copy.apply(h, given, self.sharpness, self.slope, self.null)  # type: ignore[no-untyped-call]
        return out, key

    def _ruler(self, given: Pass) -> _Ruler:
        """The ruler for a pass; that of the last one, where it was the same: most of what one example takes is this."""
        if given.place.device.type != "cpu":  # asking for numbers would wait for all that is under way
            return _ruler(given, self.sharpness, self.slope, self.null)
        numbers = (self.sharpness.item(), self.slope.item(), self.null.item())
        kept = self._kept
        if kept is None or kept[0] is not given.hidden or kept[1] is not given.place or kept[2] != numbers:
            ruler = _ruler(given, self.sharpness, self.slope, self.null)
            kept = self._kept = (given.hidden, given.place, numbers, ruler)
        return kept[3]

    def _by_label(self, weight: Tensor, given: Pass) -> Tensor:
        """What each label gets, (B, S, K), of the weights (B, S, N+1) of the columns."""
        if given.labels is not None:
            return torch.bmm(weight, given.labels)
        past = given.past_labels.transpose(1, 2)  # (B, 1, P)
        return weight.new_zeros(len(past), 1, self.classes).scatter_add_(2, past, weight[..., : past.shape[2]])

    def log_probabilities(self, out: Tensor, share: Tensor | None) -> Tensor:
        return with_doubt((1 - UNIFORM) * out, share)  # the null slot has no label, so what it takes is missing here

    def macs(self, examples: float) -> float:
        into_keys = self.map.weight.numel() if self.map is not None else 0
        return into_keys + (self.key_width + self.classes) * examples


class _Ruler(NamedTuple):
    """What likeness and age count for."""

    temperature: Tensor  # ()
    bias: Tensor  # (1 or B, S, N+1) what the scores are but for likeness


def _ruler(given: Pass, sharpness: Tensor, slope: Tensor, null: Tensor) -> _Ruler:
    # As -age is the place of the past example minus that of the new one, the latter is left out of the row, and so
    # is added at the null slot, whose own place is 0.
    slope = PACE * slope
    bias = given.hidden + given.place * slope
    bias[..., -1].add_(given.time * slope + PACE * null)
    return _Ruler(torch.exp(PACE * sharpness), bias)


class _Found(NamedTuple):
    """How new examples compare with those before them."""

    inverse: Tensor  # (B, S, 1) one over the length of h
    key: Tensor  # (B, S, W)
    keys: Tensor  # (B, N+1, W)
    query: Tensor  # (B, S, W)
    weight: Tensor  # (B, S, N+1) what each column gets


def _look(h: Tensor, given: Pass, ruler: _Ruler) -> _Found:
    """Compares new examples h (B, S, W) with those before them."""
    inverse = torch.rsqrt(h.square().sum(-1, keepdim=True).add_(SMALLEST))
    key = h * inverse
    past: Any = given.past
    keys = torch.cat([past, key, key.new_zeros(len(key), 1, key.shape[2])], 1)
    query = key * ruler.temperature
    scores = torch.baddbmm(ruler.bias, query, keys.transpose(1, 2))
    return _Found(inverse, key, keys, query, torch.softmax(scores, -1))


class _Copy(torch.autograd.Function):
    """What a copy head computes from h (B, S, W), and its gradient: by hand, it is a third of the operations."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, given: Any, sharpness: Tensor, slope: Tensor, null: Tensor
    ) -> tuple[Tensor, Tensor]:
        found = _look(h, given, _ruler(given, sharpness, slope, null))
        ctx.save_for_backward(*found, given.labels, given.place, given.time, sharpness)
        ctx.mark_non_differentiable(found.key)
        return torch.bmm(found.weight, given.labels), found.key

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inverse, key, keys, query, weight, labels, place, time, sharpness = ctx.saved_tensors
        to_weight = torch.bmm(grads[0], labels.transpose(1, 2)).mul_(weight)
        to_scores = to_weight.addcmul_(weight, to_weight.sum(-1, keepdim=True), value=-1)  # (B, S, N+1)
        to_null, new = to_scores[..., -1], to_scores[..., -1 - key.shape[1] : -1]
        to_query = torch.bmm(to_scores, keys)
        to_sharpness = (to_query * query).sum() * PACE
        to_slope = (to_scores.sum((0, 1)) @ place[0, 0] + (to_null * time).sum()) * PACE
        to_key = to_query * torch.exp(PACE * sharpness)
        to_key.baddbmm_(new.transpose(1, 2), query)  # as past of later ones
        to_h = to_key.addcmul_(key, (key * to_key).sum(-1, keepdim=True), value=-1).mul_(inverse)
        return to_h, None, to_sharpness, to_slope, to_null.sum() * PACE
