"""What a pass of the network is given of one stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Batch:
    """Consecutive labeled examples of one stream, as the network takes them."""

    x: np.ndarray  # (n, ...) features or images
    class_ids: np.ndarray  # (n,) int64
    num_seen: np.ndarray  # (n,) how many labels had been seen before each of them

    def __len__(self) -> int:
        return len(self.class_ids)


@dataclass(frozen=True)
class ReplayBatch:
    """A chunk of the past for one replay stream."""

    stream: int  # which one, from 0
    restarts: bool  # whether the stream has gone back to the start, so that nothing is in its context
    batch: Batch  # empty where all of it is damaged on disk
