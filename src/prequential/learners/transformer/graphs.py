"""Gradient steps as graphs: what a GPU is told to do in a step is written down once, and asked for as a whole from then on.

Told one by one, the hundreds of small operations of a step cost more time than a GPU needs to do them. A graph does the
same operations on the same memory each time, so a batch is first copied to where the graph expects it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from prequential.learners.transformer.optimizer import Optimiser
from prequential.models.attention import Past
from prequential.models.context import Context, Seen

WARM_UP = 3  # steps before a capture, as libraries set themselves up in the first ones


@dataclass(frozen=True)
class Batch:
    """What a gradient step is given of B streams: chunks of S examples, and what they look back on."""

    x: Tensor  # (B, S, ...)
    y: Tensor  # (B * S,)
    past: Seen
    shares: list[Tensor | None]  # of each stream (S, classes), the weights of labels not met yet; None: all were met

    def tensors(self) -> list[Tensor | None]:
        return [self.x, self.y, *self.past.tokens, *self.past.examples, *self.shares]

    def copied(self) -> Batch:
        """The same in memory of its own."""
        shares = [None if share is None else _copy(share) for share in self.shares]
        return Batch(_copy(self.x), _copy(self.y), _copied(self.past), shares)


@dataclass(frozen=True)
class Made:
    """What a gradient step leaves of a batch."""

    log_p: list[Tensor]  # of each head, log-probabilities (S, classes) of the first stream from before the step
    new: Seen  # what is to be kept of the examples

    def copied(self) -> Made:
        """The same in memory of its own."""
        return Made([_copy(of_head) for of_head in self.log_p], _copied(self.new))


Record = Callable[[Callable[[], Made]], Callable[[], Made]]
"""Makes of some work, which it may do any number of times, what does it once more each time it is called."""


def called(work: Callable[[], Made]) -> Callable[[], Made]:
    """Records nothing: for processors, where the work is just done again."""
    work()  # as on a GPU, so that what must be undone after it is undone here too
    return work


class CudaGraphs:
    """Records work as CUDA graphs, which share their memory: no two run at once, and what they make is copied.

    Parameters
    ----------
    device
        The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Made]) -> Callable[[], Made]:
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            current = torch.cuda.current_stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):  # a capture must not meet what the stream of all other work has begun
                for _ in range(WARM_UP):
                    work()
            current.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # other threads may go on with the GPU meanwhile: where steps run behind, predictions do
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                made = work()  # nothing is computed yet

        def replay() -> Made:
            graph.replay()
            return made

        return replay


class Graphs:
    """Takes steps on batches, each of whose shapes is recorded the first time it comes.

    Parameters
    ----------
    work
        A whole step on a batch: the pass, the gradients, the optimiser. It does the same operations on every batch of
        the same shapes and reads nothing else that changes, but for memory that is written to in place.
    optimiser
        What undoes the steps that recording takes.
    tables
        Tensors that the work reads and somebody else might let go; they are kept as long as the recording.
    record
        How to record: `CudaGraphs` or `called`.
    """

    def __init__(
        self,
        work: Callable[[Batch], Made],
        *,
        optimiser: Optimiser,
        tables: Callable[[], list[Tensor]],
        record: Record,
    ) -> None:
        self._work, self._optimiser, self._tables, self._record = work, optimiser, tables, record
        self._recorded: dict[object, tuple[Batch, Callable[[], Made], list[Tensor]]] = {}

    def __call__(self, batch: Batch) -> Made:
        tensors = batch.tensors()
        shapes = tuple(None if tensor is None else (tensor.shape, tensor.dtype) for tensor in tensors)
        if shapes not in self._recorded:
            self._recorded[shapes] = self._new(batch)
        static, replay, _ = self._recorded[shapes]
        for ours, theirs in zip(static.tensors(), tensors, strict=True):
            if ours is not None and theirs is not None:
                ours.copy_(theirs, non_blocking=True)
        return replay().copied()

    def _new(self, batch: Batch) -> tuple[Batch, Callable[[], Made], list[Tensor]]:
        static = batch.copied()
        with self._optimiser.undone():
            replay = self._record(lambda: self._work(static))
        return static, replay, self._tables()


def full(context: Context) -> bool:
    """Whether a context holds as much as it ever will, so that what looks back on it has the same shape from now on."""
    caches = (context.tokens, context.examples)
    return all(cache.filled == cache.window or not len(cache.past()[0]) for cache in caches)  # some have no layers


def _copied(seen: Seen) -> Seen:
    (k, v), (keys, labels) = seen.tokens, seen.examples
    tokens: Past = (_copy(k), _copy(v))
    return Seen(tokens, (_copy(keys), _copy(labels)), seen.filled)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
