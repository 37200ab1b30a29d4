"""For learners that take a gradient step on every block of examples and are frozen in between."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prequential.errors import BadSetting
from prequential.learners.base import OnlineLearner
from prequential.learners.baselines.network import Inputs, Network, make_inputs


class BlockLearner(OnlineLearner):
    """A network that learns in blocks of `stride` examples.

    A block's examples are predicted with the parameters from before the block, then learnt from together. However the
    examples arrive, the blocks are the same: they wait until theirs is full. Only the standardisation moves on with
    every example.

    A subclass makes its parts in `_build`, predicts in `_log_p`, learns a block in `_turn`, and saves in `_parts` and
    `_load_parts`.
    """

    def __init__(
        self,
        classes: int | Sequence[Hashable],
        *,
        block: int,
        hidden: Sequence[int],
        extractor: str,
        standardise: bool | None,
        device: str,
        missing: bool,
        seed: int,
    ) -> None:
        super().__init__(classes, missing=missing)
        if block < 1:
            raise BadSetting(f"block ({block}) must be at least 1")
        if any(width < 1 for width in hidden):
            raise BadSetting(f"hidden ({list(hidden)}) must be widths of at least 1")
        if missing and standardise is False:
            raise BadSetting("standardise (False) must be True where features may be missing: a missing one is the mean")
        self.stride = block
        self.hidden, self.extractor, self.standardise = tuple(hidden), extractor, standardise
        self.device, self.seed = torch.device(device), seed
        self.inputs: Inputs | None = None  # made when the first example shows what x looks like
        self.done = 0  # examples in finished blocks
        self._pending_x: list[np.ndarray] = []  # the unfinished block, as it came
        self._pending_slots: list[int] = []

    def _block_config(self) -> dict[str, Any]:
        """The arguments this class takes but for `block`, which subclasses call otherwise."""
        return {
            "classes": self.labels.capacity,
            "hidden": list(self.hidden),
            "extractor": self.extractor,
            "standardise": self.standardise,
            "device": str(self.device),
            "missing": self.missing,
            "seed": self.seed,
        }

    @abstractmethod
    def _build(self, shape: tuple[int, ...]) -> Network:
        """Makes whatever depends on the shape of x; a network that shows how the inputs must look."""

    @abstractmethod
    def _log_p(self, x: Tensor) -> Tensor:
        """Log-probabilities (n, capacity) of inputs, each on its own; changes nothing."""

    @abstractmethod
    def _turn(self, x: np.ndarray, slots: np.ndarray) -> None:
        """Learns from a finished block."""

    @abstractmethod
    def _parts(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load_parts(self, state: dict[str, Any]) -> None: ...

    def _piece(self, x: Tensor, slots: np.ndarray) -> Tensor:
        """Log-probabilities of consecutive examples of one block, before the block is learnt."""
        return self._log_p(x)

    def make_network(self, shape: tuple[int, ...]) -> Network:
        """The network, with the weights that this learner's seed gives."""
        network = Network(shape, self.labels.capacity, hidden=self.hidden, extractor=self.extractor, seed=self.seed)
        return network.to(self.device)

    def flush(self) -> None:
        """Learns from the unfinished block now. The next block is the rest of it."""
        if self._pending_slots:
            self._finish()

    def _predict(self, x: np.ndarray) -> np.ndarray:
        if self.inputs is None:
            return np.full((len(x), self.labels.capacity), -np.log(self.labels.capacity))
        with torch.no_grad():
            return self._log_p(self.inputs.next(x)).cpu().numpy()

    def _learn(self, x: np.ndarray, slots: np.ndarray) -> None:
        self._observe(x, slots)

    def _observe(self, x: np.ndarray, slots: np.ndarray) -> np.ndarray:
        inputs = self.inputs or self._begin(x.dtype == np.uint8)
        rows = []
        start = 0
        while start < len(slots):
            room = self.stride - (self.done + len(self._pending_slots)) % self.stride
            piece = x[start : start + room].copy()  # it is kept beyond this call, and the array is the user's
            with torch.no_grad():
                rows.append(self._piece(inputs.take(piece), slots[start : start + room]).cpu().numpy())
            self._pending_x.append(piece)
            self._pending_slots += slots[start : start + room].tolist()
            if len(piece) == room:
                self._finish()
            start += room
        return np.concatenate(rows)

    def _finish(self) -> None:
        self._turn(np.concatenate(self._pending_x), np.asarray(self._pending_slots, dtype=np.int64))
        self.done += len(self._pending_slots)
        self._pending_x, self._pending_slots = [], []

    def _begin(self, image_bytes: bool) -> Inputs:
        assert self.shape is not None
        network = self._build(self.shape)
        image_bytes = image_bytes and len(self.shape) > 1
        self.inputs = make_inputs(
            network, self.shape, image_bytes=image_bytes, standardise=self.standardise, missing=self.missing
        )
        return self.inputs

    def _checked(self, xs: Any, ys: Sequence[Hashable] | None = None) -> np.ndarray:
        x = super()._checked(xs, ys)
        if self.inputs is not None:
            self.inputs.check(x, self.position)
        return x

    def _state(self) -> dict[str, Any]:
        if self.inputs is None:
            return {"inputs": None}
        return {
            "inputs": self.inputs.state(),
            "done": self.done,
            "pending_x": np.concatenate(self._pending_x) if self._pending_x else None,
            "pending_slots": list(self._pending_slots),
            "parts": self._parts(),
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        if state["inputs"] is None:
            return
        self._begin(bool(state["inputs"]["image_bytes"])).load_state(state["inputs"])
        self.done = int(state["done"])
        self._pending_x = [] if state["pending_x"] is None else [state["pending_x"]]
        self._pending_slots = [int(slot) for slot in state["pending_slots"]]
        self._load_parts(state["parts"])
