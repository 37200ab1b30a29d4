"""Making tables that have a row for each class id longer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def copied_rows(table: Tensor, rows: int, like: int) -> Tensor:
    """A copy of a table (K, ...) with this many rows; the new ones are row `like`.

    >>> copied_rows(torch.tensor([1.0, 2.0]), 4, like=1)
    tensor([1., 2., 2., 2.])
    """
    return torch.cat([table, table[like : like + 1].expand(rows - len(table), *table.shape[1:])])


def drawn_rows(table: Tensor, rows: int, *, std: float, seed: Sequence[int]) -> Tensor:
    """A copy of a table (K, D) with this many rows; what is drawn for a new one depends on the seed and its number alone.

    >>> table = torch.zeros(2, 3)
    >>> at_once = drawn_rows(table, 8, std=1.0, seed=[0])
    >>> torch.equal(at_once, drawn_rows(drawn_rows(table, 4, std=1.0, seed=[0]), 8, std=1.0, seed=[0]))
    True
    """
    drawn = np.random.default_rng(seed).normal(
        0, std, (rows, table.shape[1])
    )  # the first ones are the same for any number
    return torch.cat([table, torch.from_numpy(drawn[len(table) :]).to(table)])
