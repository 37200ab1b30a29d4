"""The base of the baselines that train on each new chunk and on chunks of their past."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from prequential.baselines.network_learner import NetworkLearner
from prequential.learners.journaled import JournaledLearner
from prequential.learners.replay import ReplayReaders
from prequential.streams.stream import Chunk


class ReplayLearner(JournaledLearner, NetworkLearner):
    """A network whose replay streams read its past in order, one chunk each for every new chunk.

    A subclass makes the `readers` in `_build`.
    """

    readers: ReplayReaders

    def _prepare_chunk(self, count: int) -> None:
        # read before anything changes: a stream or a disk that fails leaves the learner as it was
        end = self.num_committed + count
        starts = [(chunk - 1) * self.stride for chunk in self.readers.chunk]
        self._replay: list[Chunk] = [self.memory.read(start, min(start + self.stride, end)) for start in starts]

    def _replayed(self, num_new: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and class ids of the chunk each replay stream reads after a chunk of `num_new` new examples."""
        end = self.num_committed + num_new
        replay, self._replay = self._replay, []
        for reader, past in enumerate(replay):
            if len(past):  # all of them may be damaged on disk
                yield self._past(past.x), torch.tensor(self.labels.assign(past.y), device=self.device)
            self.readers.advance(reader, self.num_committed // self.stride + 1, end // self.stride + 1)
