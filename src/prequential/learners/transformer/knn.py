"""The nearest of many past examples: an expert beside the heads that needs no training."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from prequential.models.kv_cache import KVCache

NEAREST = 15  # how many vote
DOUBT = 0.5  # of one average vote, which goes to all labels alike


class Neighbours:
    """The labels of the nearest of the latest examples, far beyond the window, by the plain distance of the inputs.

    A network needs thousands of examples to learn what the inputs of a small table mean; neighbours know it from the
    first ones on, where the table does not change. Where it does, the mixer soon gives them no weight.

    As with the context, examples since the last chunk border are kept apart: at the border, they are replaced by the
    whole chunk, so that what follows does not depend on the sizes in which they came.

    Parameters
    ----------
    memory
        How many of the latest examples are kept.
    chunk
        How many examples a chunk has.
    width
        How many of the inputs are compared: the first ones.
    classes
        The number of output units.

    Examples
    --------
    >>> neighbours = Neighbours(memory=4, chunk=2, width=1, classes=2)
    >>> _ = neighbours.finish_chunk(np.float32([[0], [9]]), np.array([0, 1]))
    >>> neighbours.predict(np.float32([[8]])).argmax().item()
    1
    """

    def __init__(self, *, memory: int, chunk: int, width: int, classes: int) -> None:
        self.memory, self.width, self.classes = memory, width, classes
        self._room = memory + chunk
        self._past = KVCache(
            depth=1, window=memory, chunk_tokens=chunk, key_width=width, device=torch.device("cpu"), labels=True
        )

    def predict(self, x: np.ndarray) -> Tensor:
        """The votes (n, classes) on each of n inputs as the next one. Changes nothing. What is missing to 1 is doubt."""
        return self._votes(self._compared(x), self._past.recent(), None)

    def extend(self, x: np.ndarray, slots: np.ndarray) -> Tensor:
        """The votes on examples of an unfinished chunk, each after the ones before it; they are kept."""
        new, labels = self._compared(x), torch.from_numpy(slots)
        votes = self._votes(new, self._past.recent(), labels)
        self._past.append((new[None, None], labels[None, None, :, None]))
        return votes

    def finish_chunk(self, x: np.ndarray, slots: np.ndarray) -> Tensor:
        """The votes on a whole chunk, from the last border on; moves the border behind it."""
        new, labels = self._compared(x), torch.from_numpy(slots)
        votes = self._votes(new, self._past.past(), labels)
        self._past.finish_chunk((new[None, None], labels[None, None, :, None]))
        return votes

    def macs(self) -> float:
        """Multiply-accumulates for one example."""
        return float(self.memory * self.width)

    def state_dict(self) -> dict[str, Any]:
        """Of one size from the start on: what is not there yet is 0."""
        kept = self._past.state_dict()
        x, slots = torch.as_tensor(kept["k"])[0, 0], torch.as_tensor(kept["v"])[0, 0, :, 0]
        room = (0, self._room - len(slots))
        return {"x": F.pad(x, (0, 0, *room)), "slots": F.pad(slots, room), "count": len(slots), "fresh": kept["fresh"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        count = int(state["count"])
        x, slots = torch.as_tensor(state["x"])[:count], torch.as_tensor(state["slots"])[:count]
        self._past.load_state_dict({"k": x[None, None], "v": slots[None, None, :, None], "fresh": state["fresh"]})

    def _compared(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(x)[:, : self.width].float()

    def _votes(self, x: Tensor, past: tuple[Tensor, Tensor], own: Tensor | None) -> Tensor:
        """The votes of the past on x, and, where they have labels, of the examples of x on those after them."""
        keys, labels = past[0][0, 0], past[1][0, 0, :, 0]
        if own is not None and len(own) > 1:
            keys, labels = torch.cat([keys, x]), torch.cat([labels, own])
        votes = torch.zeros(len(x), self.classes)
        if not len(labels):
            return votes
        # squared distances, but for the part that is the same for all of a row
        apart = torch.addmm(keys.square().sum(1)[None], x, keys.T, alpha=-2)  # (n, P)
        if own is not None and len(own) > 1:
            n, before = len(own), len(labels) - len(own)
            square = torch.ones(n, n, dtype=torch.bool)
            apart[:, before:].masked_fill_(square.triu(), torch.inf)  # itself and later ones
            if before + n > self.memory:  # those that the last of them push out, for each from the one before it on
                apart[:, :n].masked_fill_(square.tril(before - self.memory - 1), torch.inf)
        near, at = apart.topk(min(NEAREST, len(labels)), largest=False, sorted=False)
        near = near + x.square().sum(1, keepdim=True)
        seen = near.isfinite()  # what is too far for a number has no vote either
        near = near.clamp_(min=0).masked_fill_(~seen, 0)
        count = seen.sum(1, keepdim=True).clamp_(min=1)
        weight = torch.exp(-near / (near.sum(1, keepdim=True) / count + 1e-9)) * seen
        total = weight.sum(1, keepdim=True)
        return votes.scatter_add_(1, labels[at], weight / (total * (1 + DOUBT / count) + 1e-9))
