"""The copy head: predicts the labels of those examples in the window that are most like this one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from prequential.models.heads.head import Head, HeadInput, mix_with_prior

PRIOR_SHARE = 0.02  # how much of the prediction always comes from the prior
EPSILON = 1e-2  # squared length below which a vector counts as having none: the first x of a stream is all 0
SPEEDUP = 10.0  # the few scalars here move so much faster than other parameters: AdamW's steps are all of one size
DEEP_WIDTH = 32  # of the keys made from what comes out of the blocks


class CopyHead(Head):
    """Attention from an example to the last C ones; what a label's examples get is its probability.

    The scores are temperature × cosine − slope × age, both learned. There are no label embeddings to learn, so it works
    from the second example on. A null key takes the weight of what does not look like anything; that and a fixed 2 %
    go to the prior of the labels. Keys of past chunks are as the parameters of their time made them.

    Parameters
    ----------
    width
        Of the trunk.
    num_classes
        How many labels there can be.
    deep
        False: examples are compared by their embeddings, a linear map of x, which works at once. True: by a linear map
        of what comes out of the blocks. That learns what to look at, and gives the blocks a useful gradient long before
        the softmax head can, which has to learn what each label means.
    """

    def __init__(self, *, width: int, num_classes: int, deep: bool) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.key_width = min(width, DEEP_WIDTH) if deep else width
        self.key_proj: nn.Linear | None = None
        if deep:
            with torch.random.fork_rng(devices=[]):  # with this head or without it, the rest starts the same
                self.key_proj = nn.Linear(width, self.key_width, bias=False)
                nn.init.normal_(self.key_proj.weight, std=width**-0.5)
        self.log_temperature = nn.Parameter(torch.tensor(2.5 / SPEEDUP))
        self.recency_slope = nn.Parameter(torch.tensor(8.0 / SPEEDUP))  # over the whole window
        self.null_logit = nn.Parameter(torch.tensor(0.0))
        self._cached: tuple[Tensor, Tensor, tuple[float, ...], _Scoring] | None = None

    def forward(self, given: HeadInput) -> tuple[Tensor, Tensor | None]:
        h = given.embedded if self.key_proj is None else self.key_proj(given.trunk)
        if torch.is_autocast_enabled(h.device.type):
            with torch.autocast(h.device.type, enabled=False):  # half precision would blur near neighbors
                return self._copy(h, given)
        return self._copy(h, given)

    def _copy(self, h: Tensor, given: HeadInput) -> tuple[Tensor, Tensor]:
        """What each label gets, (B, S, K), and the keys (B, S, W) of the new examples."""
        h = h.to(given.key_position.dtype)
        if torch.is_grad_enabled():
            parameters = (self.log_temperature, self.recency_slope, self.null_logit)
            out, key = _Copy.apply(h, given, self.num_classes, *parameters)  # type: ignore[no-untyped-call]
            return out, key
        compared = _compare(h, given, self._scoring(given))
        return _sum_by_label(compared.weight, given.labels, self.num_classes), compared.key

    def _scoring(self, given: HeadInput) -> _Scoring:
        """How this pass is scored; the last one is reused where it is the same: it is most of the time of one example."""
        parameters = (self.log_temperature, self.recency_slope, self.null_logit)
        if given.key_position.device.type != "cpu":  # reading numbers would wait for a GPU
            return _make_scoring(given, *parameters)
        numbers = tuple(parameter.item() for parameter in parameters)
        cached = self._cached
        if (
            cached is None
            or cached[0] is not given.attn_bias
            or cached[1] is not given.key_position
            or cached[2] != numbers
        ):
            cached = self._cached = (given.attn_bias, given.key_position, numbers, _make_scoring(given, *parameters))
        return cached[3]

    def log_probs(self, out: Tensor, class_log_prior: Tensor | None) -> Tensor:
        return mix_with_prior((1 - PRIOR_SHARE) * out, class_log_prior)

    def macs(self, examples: float) -> float:
        # one addition for each example compared with, whatever the number of labels, is not counted
        in_proj = self.key_proj.weight.numel() if self.key_proj is not None else 0
        return in_proj + self.key_width * examples


class _Scoring(NamedTuple):
    """How likeness, age and the null key count."""

    temperature: Tensor  # ()
    bias: Tensor  # (1 or B, S, N+1) what the scores are apart from likeness


def _make_scoring(given: HeadInput, log_temperature: Tensor, recency_slope: Tensor, null_logit: Tensor) -> _Scoring:
    # -age is the position of the key minus that of the query. The latter is the same in all of a row, so it is left
    # out there and added at the null key, whose own position is 0.
    slope = SPEEDUP * recency_slope
    bias = given.attn_bias + given.key_position * slope
    bias[..., -1].add_(given.query_position * slope + SPEEDUP * null_logit)
    return _Scoring(torch.exp(SPEEDUP * log_temperature), bias)


class _Compared(NamedTuple):
    """How new examples compare with those before them."""

    inverse_norm: Tensor  # (B, S, 1)
    key: Tensor  # (B, S, W)
    keys: Tensor  # (B, N+1, W)
    query: Tensor  # (B, S, W)
    weight: Tensor  # (B, S, N+1) of each column


def _compare(h: Tensor, given: HeadInput, scoring: _Scoring) -> _Compared:
    """Compares new examples h (B, S, W) with those before them."""
    assert given.past_keys is not None
    inverse_norm = torch.rsqrt(h.square().sum(-1, keepdim=True).add_(EPSILON))
    key = h * inverse_norm
    keys = torch.cat([given.past_keys, key, key.new_zeros(len(key), 1, key.shape[2])], 1)
    query = key * scoring.temperature
    scores = torch.baddbmm(scoring.bias, query, keys.transpose(1, 2))
    return _Compared(inverse_norm, key, keys, query, torch.softmax(scores, -1))


def _sum_by_label(weight: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """The weights (B, S, N+1) of columns with these labels (B, S, N), added up for each label: (B, S, K)."""
    if weight.device.type != "cpu":  # where the order of a scattered sum is not fixed
        one_hot = weight.new_zeros(len(labels), weight.shape[2], num_classes)
        return torch.bmm(weight, one_hot.scatter_(2, labels[:, 0, :, None], 1.0))
    return weight.new_zeros(*weight.shape[:2], num_classes).scatter_add_(2, labels, weight)


class _Copy(torch.autograd.Function):
    """What a copy head computes from h (B, S, W), and its gradient.

    By hand, as with autograd a step of the default learner takes 9 % more operations (`tests/test_operations.py`).
    """

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        given: Any,
        num_classes: int,
        log_temperature: Tensor,
        recency_slope: Tensor,
        null_logit: Tensor,
    ) -> tuple[Tensor, Tensor]:
        compared = _compare(h, given, _make_scoring(given, log_temperature, recency_slope, null_logit))
        ctx.save_for_backward(*compared, given.labels, given.key_position, given.query_position, log_temperature)
        ctx.mark_non_differentiable(compared.key)
        return _sum_by_label(compared.weight, given.labels, num_classes), compared.key

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inverse_norm, key, keys, query, weight, labels, key_position, query_position, log_temperature = (
            ctx.saved_tensors
        )
        of_null = weight.new_zeros(*weight.shape[:2], weight.shape[2] - labels.shape[2])
        d_weight = torch.cat([grads[0].gather(2, labels), of_null], 2).mul_(weight)
        d_scores = d_weight.addcmul_(weight, d_weight.sum(-1, keepdim=True), value=-1)  # (B, S, N+1)
        d_null, d_new = d_scores[..., -1], d_scores[..., -1 - key.shape[1] : -1]
        d_query = torch.bmm(d_scores, keys)
        d_log_temperature = (d_query * query).sum() * SPEEDUP
        d_slope = (d_scores.sum((0, 1)) @ key_position[0, 0] + (d_null * query_position).sum()) * SPEEDUP
        d_key = d_query * torch.exp(SPEEDUP * log_temperature)
        d_key.baddbmm_(d_new.transpose(1, 2), query)  # as keys of later examples
        d_h = d_key.addcmul_(key, (key * d_key).sum(-1, keepdim=True), value=-1).mul_(inverse_norm)
        return d_h, None, None, d_log_temperature, d_slope, d_null.sum() * SPEEDUP
