"""The base of the baselines that train on each new chunk and on chunks of their past."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from prequential.baselines.network_learner import NetworkLearner
from prequential.learners.journaled import JournaledLearner
from prequential.learners.replay import Replay, ReplayChunk


class ReplayLearner(JournaledLearner, NetworkLearner):
    """A network whose replay streams read its past in order, one chunk each for every new chunk.

    A subclass makes the `replay` in `_build`, by `_make_replay`.
    """

    replay: Replay
    _to_replay: list[ReplayChunk]

    def _make_replay(self, num_streams: int) -> Replay:
        return Replay(num_streams, chunk_size=self.stride, memory=self.memory, labels=self.labels, seed=self.seed)

    def _prepare_chunk(self, count: int) -> None:
        # read before anything changes: a stream or a disk that fails leaves the learner as it was
        self._to_replay = self.replay.read(self.num_committed + count)

    def _replayed(self, num_new: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and class ids of the chunk each replay stream reads after a chunk of `num_new` new examples."""
        to_replay, self._to_replay = self._to_replay, []
        for past in to_replay:
            if len(past.class_ids):  # all of them may be damaged on disk
                yield self._past(past.x), torch.from_numpy(past.class_ids).to(self.device)
        self.replay.advance(self.num_committed, self.num_committed + num_new)
