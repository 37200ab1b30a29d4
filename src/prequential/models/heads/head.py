"""What every output head is: a way to predict labels from a pass of the network.

Shape letters: B streams, S new examples, P past examples, N = P + S of them, D width, W width of a head's keys, K labels.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn


class HeadInput(NamedTuple):
    """What a head is given: S new examples of each stream, and how they may look back on those before them.

    The columns of scores are the past examples, the new ones, and a null key, which has no label and is seen by all.
    """

    embedded: Tensor  # (B, S, D) what goes into the first block
    trunk: Tensor  # (B, S, D) what comes out of the last
    past_keys: Tensor | None  # (B, P, W) the keys of the past examples, for a head that has keys
    labels: Tensor  # (B, S, N) of the columns, the same for each new example; (B, 1, P) for only one, not itself
    attn_bias: Tensor  # (1 or B, S, N+1) 0 where an example may look, -inf elsewhere
    key_position: Tensor  # (1, 1, N+1) the position of each column, in windows (0 for the null key)
    query_position: Tensor  # (1, S) the position of each new example, in windows


class Head(nn.Module):
    """Predicts each example's label; trained on its own loss, and mixed with the other heads by their past losses.

    A head may keep a key of each example; `forward` then gives the keys of the new ones.
    """

    key_width = 0  # W; 0: it keeps no keys

    @abstractmethod
    def forward(self, given: HeadInput) -> tuple[Tensor, Tensor | None]:
        """The outputs of the head, (B, S, K), and the keys (B, S, W) of the new examples."""

    @abstractmethod
    def log_probs(self, out: Tensor, class_log_prior: Tensor | None) -> Tensor:
        """Log-probabilities (S, K) from one stream's outputs.

        `class_log_prior` (S, K) is that of `log_class_prior`; None: every label has been seen.
        """

    @abstractmethod
    def macs(self, examples: float) -> float:
        """Multiply-accumulates of the forward pass for one example that is compared with so many."""


def mix_with_prior(probs: Tensor, class_log_prior: Tensor | None) -> Tensor:
    """Log-probabilities from probabilities (S, K) that sum to less than 1: the remaining mass goes to the prior."""
    if class_log_prior is None:
        prior = torch.full_like(probs, 1 / probs.shape[-1])
    else:
        prior = torch.softmax(class_log_prior, -1)
    return torch.log(probs + (1 - probs.sum(-1, keepdim=True)) * prior)
