"""The copy path: the labels of the examples that look like this one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prequential.models.heads.head import Head, Pass, prior

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

    def forward(self, given: Pass) -> tuple[Tensor, Tensor | None]:
        assert given.past is not None
        h = given.embedded if self.map is None else self.map(given.trunk)
        with torch.autocast(h.device.type, enabled=False):  # in half precision neighbours would be told apart badly
            h = h.to(given.columns.dtype)
            key = h * torch.rsqrt(h.square().sum(-1, keepdim=True) + SMALLEST)  # (B, S, W)
            keys = torch.cat([given.past, key, torch.zeros_like(key[:, :1])], 1)  # (B, N+1, W)
            # what age and the null slot add to the scores is two more columns of keys and queries: all scores are one
            # product. As -age is the place of the past example minus that of the new one, the latter is left out of
            # the row, and so is added at the null slot.
            slope, B = PACE * self.slope, len(key)
            at_null = (PACE * self.null + slope * given.time).expand(B, -1, -1)
            query = torch.cat([key * torch.exp(PACE * self.sharpness), slope.expand_as(at_null), at_null], -1)
            keys = torch.cat([keys, given.columns.expand(B, -1, -1)], -1)  # (B, N+1, W+2)
            hidden = given.hidden.expand(B, -1, -1)
            weight = torch.softmax(torch.baddbmm(hidden, query, keys.transpose(1, 2)), -1)  # (B, S, N+1)
            return torch.bmm(weight, given.labels), key.detach()

    def log_probabilities(self, out: Tensor, share: Tensor | None) -> Tensor:
        copied = (1 - UNIFORM) * out  # the null slot has no label, so what it takes is missing here
        return torch.log(copied + (1 - copied.sum(-1, keepdim=True)) * prior(out, share))

    def macs(self, examples: float) -> float:
        into_keys = self.map.weight.numel() if self.map is not None else 0
        return into_keys + (self.key_width + 2 + self.classes) * examples
