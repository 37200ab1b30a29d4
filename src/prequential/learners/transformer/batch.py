"""What a pass of the network is given of one stream: labeled examples, or those to predict."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from prequential.models.lookback import LookBack


@dataclass(frozen=True)
class Batch:
    """Consecutive labeled examples of one stream, as the network takes them."""

    x: np.ndarray  # (n, ...) features or images
    class_ids: np.ndarray  # (n,) int64
    num_seen: np.ndarray  # (n,) how many labels had been seen before each of them
    lags: np.ndarray | None = None  # (n,) how many labels arrived between its prediction and its own; None: none did
    raw: np.ndarray | None = None  # (n, ...) as the user gave them; None: no expert needs them
    pending: Batch | None = None  # the examples of the same chunk before these, where these see some without labels
    unlabeled: int = 0  # the same of one example: how many of the latest it sees without their labels

    def with_pending(self) -> Batch:
        """Those before and these."""
        assert self.pending is not None
        assert self.pending.lags is not None
        assert self.lags is not None
        return Batch(
            np.concatenate([self.pending.x, self.x]),
            np.concatenate([self.pending.class_ids, self.class_ids]),
            np.concatenate([self.pending.num_seen, self.num_seen]),
            np.concatenate([self.pending.lags, self.lags]),
        )

    def __len__(self) -> int:
        return len(self.class_ids)

    @property
    def max_lag(self) -> int:
        return 0 if self.lags is None else int(self.lags.max(initial=0))

    @property
    def lookback(self) -> LookBack | None:
        """What each of them may see, where labels came late."""
        return None if self.lags is None else LookBack.of_lags(self.lags[None])


@dataclass(frozen=True)
class Queries:
    """Examples of one stream to predict, in the order in which they are asked."""

    x: np.ndarray  # (n, ...) features or images
    num_seen: np.ndarray  # (n,) how many labels had been seen when each of them was asked
    # Both None: each is the next example, with all labels before it. Otherwise, counted from the newest label on:
    missing: np.ndarray | None = None  # (n,) how many of the latest labels had not arrived
    position: np.ndarray | None = None  # (n,) where it stands, which counts the rows before it that have no label yet
    chunk: np.ndarray | None = None  # (n,) the number of the chunk that it is in
    raw: np.ndarray | None = None  # (n, ...) as the user gave them; None: no expert needs them
    context: np.ndarray | None = None  # (c, ...) rows of the first one's chunk that were asked just before it

    def __len__(self) -> int:
        return len(self.x)

    @property
    def lookback(self) -> LookBack | None:
        """What each of them may see, where labels come late."""
        if self.missing is None or self.position is None:
            return None
        return LookBack.of_queries(self.missing, self.position, self.chunk)

    def with_context(self) -> Queries:
        """The rows of the context and these, as the network sees them."""
        if self.context is None or self.missing is None or self.position is None or self.chunk is None:
            return self
        c = len(self.context)
        return replace(
            self,
            x=np.concatenate([self.context, self.x]),
            num_seen=_before(self.num_seen, c),
            missing=_before(self.missing, c),
            position=np.concatenate([self.position[0] - np.arange(c, 0, -1), self.position]),
            chunk=_before(self.chunk, c),
            context=None,
        )


def _before(values: np.ndarray, count: int) -> np.ndarray:
    """The first value so many times more."""
    return np.concatenate([np.repeat(values[:1], count), values])


@dataclass(frozen=True)
class ReplayBatch:
    """A chunk of the past for one replay stream."""

    stream: int  # which one, from 0
    restarts: bool  # whether the stream has gone back to the start, so that nothing is in its context
    batch: Batch  # empty where all of it is damaged on disk
