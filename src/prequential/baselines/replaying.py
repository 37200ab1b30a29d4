"""For learners that take a step on every block of examples, and on blocks of their past."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from prequential.baselines.blocks import BlockLearner
from prequential.baselines.remembering import Remembering
from prequential.learners.replay import ReplayReaders


class Replaying(Remembering, BlockLearner):
    """A learner in blocks whose replay streams read its past in order, a block at every turn.

    A subclass makes the `readers` in `_build`.
    """

    readers: ReplayReaders

    def _replayed(self, new: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and labels of the block each replay stream reads at this turn, which brought so many new examples."""
        end = self.done + new
        for reader, block in enumerate(self.readers.chunk):
            start = (block - 1) * self.stride
            past = self.memory.read(start, min(start + self.stride, end))
            if len(past):  # all of them may be damaged on disk
                yield self._past(past.x), torch.tensor(self.labels.assign(past.y), device=self.device)
            self.readers.advance(reader, self.done // self.stride + 1, end // self.stride + 1)
