"""What every head is: a way to predict labels from a pass of the network.

Shape letters: B streams, S new examples, P past examples, N = P + S of them, D width, W width
of a head's keys, K labels.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Pass(NamedTuple):
    """What a head is given: S new examples of each stream, and how they may look back on those before them.

    Columns are the past examples, the new ones, and a null slot, which holds nothing and is seen by all.
    """

    embedded: Tensor  # (B, S, D) what goes into the first block
    trunk: Tensor  # (B, S, D) what comes out of the last
    past: Tensor | None  # (B, P, W) the keys of the past examples, for a head that remembers
    past_labels: Tensor  # (B, P, 1) the labels of the past examples
    labels: Tensor | None  # (B, N+1, K) 1 at the label of each column; None: one new example, and no gradient
    hidden: Tensor  # (1 or B, S, N+1) 0 where an example may look, -inf elsewhere
    place: Tensor  # (1, 1, N+1) the place of each column, in windows (0 for the null slot)
    time: Tensor  # (1, S) the place of each new example, in windows


class Head(nn.Module):
    """Predicts each example's label; trained on its own loss and mixed with the other heads by what it was worth.

    A head may remember examples by keys of a width; `forward` then gives the keys of the new ones.
    """

    key_width = 0  # W; 0: it remembers nothing

    @abstractmethod
    def forward(self, given: Pass) -> tuple[Tensor, Tensor | None]:
        """What the head makes of the pass, (B, S, K), and the keys (B, S, W) by which to remember the new examples."""

    @abstractmethod
    def log_probabilities(self, out: Tensor, share: Tensor | None) -> Tensor:
        """Log-probabilities (S, K) from one stream's part of what `forward` gave.

        `share` (S, K) is the log-weight of each label when nothing is known about the example: 0 for a label that was
        met, less for the others, which together weigh as much as one. None: all were met.
        """

    @abstractmethod
    def macs(self, examples: float) -> float:
        """Multiply-accumulates of the forward pass for one example that is compared with so many."""


def with_doubt(given: Tensor, share: Tensor | None) -> Tensor:
    """Log-probabilities of what each label was given (S, K); what is missing to 1 goes to all of them alike."""
    return torch.log(given + (1 - given.sum(-1, keepdim=True)) * prior(given, share))


def prior(out: Tensor, share: Tensor | None) -> Tensor:
    """The probabilities of the labels when nothing is known about the example, to go with `out` (S, K)."""
    return torch.full_like(out, 1 / out.shape[-1]) if share is None else torch.softmax(share, -1)
