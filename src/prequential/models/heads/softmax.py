"""The paper's head: a linear map of what comes out of the last block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prequential.models.heads.head import Head, HeadInput


class SoftmaxHead(Head):
    """softmax(W norm(h) + b).

    Parameters
    ----------
    width
        Of the trunk.
    num_classes
        How many labels there can be.
    """

    def __init__(self, *, width: int, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, num_classes)
        # nothing is known at the start, so every label is equally probable
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def forward(self, given: HeadInput) -> tuple[Tensor, Tensor | None]:
        return torch.log_softmax(self.readout(self.norm(given.trunk)).float(), -1), None

    def log_probs(self, out: Tensor, class_log_prior: Tensor | None) -> Tensor:
        return out if class_log_prior is None else torch.log_softmax(out + class_log_prior, -1)

    def macs(self, examples: float) -> float:
        return float(self.readout.weight.numel())
