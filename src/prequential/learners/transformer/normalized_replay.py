"""The replay streams of the transformer: chunks of the past, exactly as they were when they were new."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from prequential.labels import Labels
from prequential.learners.inputs import Inputs
from prequential.learners.memory import Memory
from prequential.learners.replay import Replay, ReplayChunk
from prequential.learners.transformer.batch import Batch, ReplayBatch


class NormalizedReplay(Replay):
    """Replay streams that normalize what they read by running statistics of their own.

    A replay stream reads from the start on without leaving anything out, so statistics taken along the way are those of
    that time. By the statistics of now, the past would look unlike the present.

    Parameters
    ----------
    num_streams
        How many replay streams.
    chunk_size
        Examples per chunk.
    memory, labels
        What it reads from, and what turns labels into class ids.
    inputs
        What turns examples into features.
    seed
        Of the positions.
    """

    def __init__(
        self, num_streams: int, *, chunk_size: int, memory: Memory, labels: Labels, inputs: Inputs, seed: int
    ) -> None:
        super().__init__(num_streams, chunk_size=chunk_size, memory=memory, labels=labels, seed=seed)
        self._inputs = inputs
        self._statistics = [inputs.new_statistics() for _ in range(num_streams)]

    def batches(
        self, chunks: list[ReplayChunk], num_seen: int, lags: np.ndarray | None = None
    ) -> Iterator[ReplayBatch]:
        """The chunks as batches, when so many labels have been seen; the statistics move on with each.

        `lags` are those of the chunk that has just been learned: what is replayed is seen as late as labels are now.
        """
        for stream, restarts, x, class_ids in chunks:
            if restarts:
                self._statistics[stream] = self._inputs.new_statistics()
            features = self._inputs.transform_replayed(x, self._statistics[stream]).features
            batch = Batch(features, class_ids, np.full(len(class_ids), num_seen), _fitted(lags, len(class_ids)))
            yield ReplayBatch(stream, restarts, batch)

    def repeat(self, batch: Batch) -> Iterator[ReplayBatch]:
        """The first chunk, which has just been scored, for every stream: there is no other past yet."""
        for stream in range(len(self)):
            yield ReplayBatch(stream, True, batch)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "normalizers": [each.state_dict() or None for each in self._statistics]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for statistics, saved in zip(self._statistics, state["normalizers"], strict=True):
            statistics.load_state_dict(saved)


def _fitted(lags: np.ndarray | None, n: int) -> np.ndarray | None:
    """The lags of a chunk for one of another length, the last one repeated."""
    return None if lags is None else np.pad(lags[:n], (0, max(0, n - len(lags))), mode="edge")
