"""The paper's head: a linear map of what comes out of the last block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prequential.models.heads.head import Head, Pass


class SoftmaxHead(Head):
    """softmax(W norm(h) + b)."""

    def __init__(self, *, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, classes)
        # nothing is known at the start, so every label is equally probable
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def forward(self, given: Pass) -> tuple[Tensor, Tensor | None]:
        return torch.log_softmax(self.readout(self.norm(given.trunk)).float(), -1), None

    def log_probabilities(self, out: Tensor, share: Tensor | None) -> Tensor:
        return out if share is None else torch.log_softmax(out + share, -1)

    def macs(self, examples: float) -> float:
        return float(self.readout.weight.numel())
