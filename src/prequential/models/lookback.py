"""Which of the examples before it each new example may see, where labels come late.

Positions count examples from the end of the past: -1 is the newest one in the KV cache, 0 the first new one.

Shape letters: B streams, S new examples, T new tokens, P past tokens, C window, N keys that some token may see, H query
heads.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

MAX_LAG = 1024  # examples: a label that is later still is learned as if it were this late, which bounds the KV cache


class LookBack(NamedTuple):
    """What new examples may see: those before `bound` in the order in which labels arrived, and at most C of them."""

    bound: np.ndarray  # (B or 1, S) at most 0 where nothing newer than the past may be seen
    position: np.ndarray  # (S,) where each stands, which counts the rows before it that have no label yet
    labeled: bool  # False: they are to be predicted, so that none sees the label of another
    chunk: np.ndarray | None = None  # (S,) the chunk that each is in; None: all are in one

    @classmethod
    def of_lags(cls, lags: np.ndarray) -> LookBack:
        """For consecutive examples (B, S) that were asked so many labels before their own arrived."""
        position = np.arange(lags.shape[1])
        return cls(position - lags, position, True)

    @classmethod
    def of_queries(cls, missing: np.ndarray, position: np.ndarray, chunk: np.ndarray | None = None) -> LookBack:
        """For examples to predict (n,), each without the so many latest labels of the past."""
        return cls(-missing[None], np.minimum(position, MAX_LAG - missing), False, chunk)

    @property
    def key(self) -> tuple[bytes, bytes, bool, bytes]:
        """To look up what was made for an equal one."""
        chunk = b"" if self.chunk is None else (self.chunk - self.chunk[0]).tobytes()
        return self.bound.tobytes(), self.position.tobytes(), self.labeled, chunk

    @property
    def first_unlabeled(self) -> np.ndarray:
        """(B or 1, S) the first of the new examples that each sees without its label, up to itself.

        These are the examples of its chunk that were asked since the same label arrived: what is going on meanwhile.
        """
        goes_on = self.bound[:, 1:] == self.bound[:, :-1]
        if self.chunk is not None:
            goes_on = goes_on & (self.chunk[1:] == self.chunk[:-1])
        first = np.zeros_like(self.bound)
        first[:, 1:] = np.where(goes_on, 0, np.arange(1, self.bound.shape[1]))
        return np.maximum.accumulate(first, axis=1)


class Columns(NamedTuple):
    """The keys that some new token may see, the mask over them, and where keys and queries stand."""

    start: int  # of the past tokens to take
    stop: int
    visible: Tensor  # (B or 1, T, N) bool; the keys are those past tokens and then the new ones
    unlabeled: Tensor  # (B or 1, T, T or 0) bool; the keys are the new ones without their labels
    keys: Tensor  # (N,) positions from 0 on
    queries: Tensor  # (T,)

    def bias(self, num_heads: int = 1) -> Tensor:
        """0 where a query may look and -inf elsewhere, (B or 1, TH, N+1+U).

        The columns are those of `visible`, the null key, which all see, and those of `unlabeled`.
        """
        null = torch.ones(*self.visible.shape[:2], 1, dtype=torch.bool)
        seen = torch.cat([self.visible, null, self.unlabeled], 2)
        bias = torch.zeros(seen.shape).masked_fill_(~seen, -math.inf)
        return bias.repeat_interleave(num_heads, 1)


def visible_columns(
    look: LookBack,
    past: int,
    window: int,
    *,
    tokens_per_example: int = 1,
    sees_itself: bool = False,
    sees_unlabeled: bool = False,
    lengths: list[int] | None = None,
) -> Columns:
    """The mask of new tokens behind P past ones, of which each stream has the last `lengths`.

    An example to predict has one token: that of its label is not there yet. With `sees_unlabeled`, examples also see
    those before them that wait for the same labels, without theirs.

    >>> look = LookBack.of_lags(np.array([[2, 2, 2]]))
    >>> columns = visible_columns(look, past=4, window=2)
    >>> columns.start, columns.stop, columns.visible[0].int().tolist()
    (0, 4, [[1, 1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0]])
    """
    each = tokens_per_example if look.labeled else 1
    S = len(look.position)
    example, part = np.divmod(np.arange(S * each), each)
    query = tokens_per_example * look.position[example] + part  # (T,)
    bound = tokens_per_example * look.bound[:, example]  # (B, T)
    start = max(0, past + int(bound.min()) - window)
    stop = max(start, min(past, past + int(bound.max())))
    of_past = np.arange(start, stop) - past
    seen = (of_past < bound[..., None]) & (of_past >= bound[..., None] - window)  # (B, T, stop - start)
    if lengths is not None:
        seen = seen & (of_past >= -np.array(lengths)[:, None, None])
    new = np.zeros((*seen.shape[:2], len(query)), dtype=bool)
    if look.labeled:
        new |= (query < bound[..., None]) & (query >= bound[..., None] - window)
    if sees_itself:
        new |= (example == example[:, None]) & (part <= part[:, None])
    unlabeled = new[..., :0]
    if sees_unlabeled:
        before = (example >= look.first_unlabeled[:, example, None]) & (example < example[:, None])  # (B, T, T)
        if tokens_per_example > 1:  # an example's first token has no label
            new |= before & (part == 0)
        elif before.any():
            unlabeled = before
    first = min(start - past, int(query.min()))
    keys = np.concatenate([of_past, query]) - first
    visible = torch.from_numpy(np.concatenate([seen, new], 2))
    positions = torch.from_numpy(keys), torch.from_numpy(query - first)
    return Columns(start, stop, visible, torch.from_numpy(unlabeled), *positions)
