"""Several processes that work on one learner: each computes some of its streams, and their gradients are added up.

`torchrun` starts the processes and tells each which one it is; `torch.distributed` carries the numbers, by gloo between
processors and by NCCL between GPUs. Without it there is one process, and everything here does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn

from prequential.errors import BadSetting, PrequentialError

PATIENCE = timedelta(minutes=10)  # how long one process waits for another, which may be writing a checkpoint


class Ranks:
    """The processes of a run, and which one this is.

    Parameters
    ----------
    rank, count
        The number of this process, from 0 on, and how many there are.
    device
        Where this process computes.

    Examples
    --------
    >>> ranks = Ranks()
    >>> ranks.first, ranks.owns(7)
    (True, True)
    """

    def __init__(self, rank: int = 0, count: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.count = rank, count
        self.device = device or torch.device("cpu")

    @property
    def first(self) -> bool:
        """Whether this is the process that scores and writes."""
        return self.rank == 0

    def owns(self, stream: int) -> bool:
        """Whether a stream is computed here; the reported one, 0, is the first process's."""
        return stream % self.count == self.rank

    def check(self, streams: int, updates: str) -> None:
        """Refuses what cannot be spread over the processes."""
        if self.count > 1 and updates != "joint":
            raise BadSetting(f"updates ({updates}) must be joint where {self.count} processes share the streams")
        if self.count > streams:
            raise BadSetting(f"num_streams ({streams}) must be at least as many as processes ({self.count})")

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replaces every gradient by the sum over all processes, in one message."""
        if self.count == 1:
            return
        # what no stream of this process reaches, none reaches: all of them go through the same network
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        with _others():
            distributed.all_reduce(flat)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def from_first(self, tensor: Tensor) -> Tensor:
        """What the first process has in this tensor, in all of them."""
        if self.count > 1:
            tensor = tensor.contiguous()
            with _others():
                distributed.broadcast(tensor, 0)
        return tensor

    def text_from_first(self, text: str) -> str:
        """What the first process says, in all of them."""
        said = [text]
        if self.count > 1:
            with _others():
                distributed.broadcast_object_list(said, 0, device=self.device)
        return said[0]

    def gather(self, mine: dict[int, Any]) -> dict[int, Any]:
        """What all processes have, by number, in the first one; the others get their own."""
        if self.count == 1:
            return mine
        parts: list[Any] | None = [None] * self.count if self.first else None
        with _others():
            distributed.gather_object(mine, parts, 0)
        return {number: value for part in parts or [mine] for number, value in part.items()}

    def agree(self, stop: bool, save: bool) -> tuple[bool, bool]:
        """Whether any process was asked to stop, and whether the first one wants to save."""
        if self.count == 1:
            return stop, save
        flags = torch.tensor([stop, save and self.first], dtype=torch.int32, device=self.device)
        with _others():
            distributed.all_reduce(flags, distributed.ReduceOp.MAX)
        return bool(flags[0]), bool(flags[1])


_here = Ranks()


def here() -> Ranks:
    """The processes this one belongs to; itself alone unless it has joined others."""
    return _here


def join(device: str = "auto") -> Ranks:
    """Joins the processes that `torchrun` has started with this one, if it has."""
    global _here
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count > 1 and not distributed.is_initialized():
        local = int(os.environ.get("LOCAL_RANK", "0"))
        cuda = device != "cpu" and torch.cuda.is_available()
        place = torch.device("cuda", local) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(place)
        distributed.init_process_group("nccl" if cuda else "gloo", timeout=PATIENCE)
        _here = Ranks(distributed.get_rank(), distributed.get_world_size(), place)
    return _here


def leave() -> None:
    """Leaves the other processes."""
    global _here
    if distributed.is_initialized():
        distributed.destroy_process_group()
    _here = Ranks()


@contextmanager
def _others() -> Iterator[None]:
    """Turns the loss of another process into a sentence."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).strip().splitlines()
        raise PrequentialError(
            f"another process of this run is gone ({text[0][:120] if text else 'no word'}); start it again with `resume`, with as many "
            "processes as you like, and it goes on from its last checkpoint"
        ) from None
