"""For learners that take a gradient step on every block of examples and are frozen in between."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prequential.baselines.network import Network
from prequential.errors import BadInput, BadSetting
from prequential.learners.base import OnlineLearner, check_missing, check_seed
from prequential.learners.gate import check_float32
from prequential.learners.outliers import Hint
from prequential.learners.transformer.inputs import Inputs
from prequential.settings import Settings


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
        check_seed(seed)
        check_missing(missing, standardise)
        self.stride = block
        self.hidden, self.extractor, self.standardise = tuple(hidden), extractor, standardise
        self._inputs_like = Settings(extractor=extractor, standardise=standardise, recent=0, streams=1)  # type: ignore[arg-type]
        self.device, self.seed = torch.device(device), seed
        self.inputs: Inputs | None = None  # made when the first example shows what x looks like
        self.done = 0  # examples in finished blocks
        self._pending_x: list[np.ndarray] = []  # the unfinished block, as it came
        self._pending_class_ids: list[int] = []

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
    def _build(self, shape: tuple[int, ...], extractor: str) -> None:
        """Makes everything that is learned or counted, as it is before the first example, whose shape this is."""

    @abstractmethod
    def _log_p(self, x: Tensor) -> Tensor:
        """Log-probabilities (n, capacity) of inputs, each on its own; changes nothing."""

    @abstractmethod
    def _turn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        """Learns from a finished block."""

    @abstractmethod
    def _parts(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load_parts(self, state: dict[str, Any]) -> None: ...

    def _piece(self, x: Tensor, class_ids: np.ndarray) -> Tensor:
        """Log-probabilities of consecutive examples of one block, before the block is learnt."""
        return self._log_p(x)

    def make_network(self, shape: tuple[int, ...], extractor: str) -> Network:
        """A network for inputs of this shape, with the weights that this learner's seed gives."""
        network = Network(shape, self.labels.capacity, hidden=self.hidden, extractor=extractor, seed=self.seed)
        return network.to(self.device)

    def _past(self, x: np.ndarray) -> Tensor:
        """Inputs for learning: examples of the past, by the statistics up to the last block."""
        assert self.inputs is not None
        return self._tensor(self.inputs.past(x))

    def _tensor(self, inputs: np.ndarray) -> Tensor:
        return torch.from_numpy(inputs).to(self.device)

    @property
    def skipped_steps(self) -> int:
        return 0 if self.inputs is None else self._skipped()

    def _skipped(self) -> int:
        """Steps that were not taken, once there is a network."""
        return 0

    def _hints(self) -> list[Hint]:
        return [] if self.inputs is None else self.inputs.hints()

    def flush(self) -> None:
        """Learns from the unfinished block now. The next block is the rest of it."""
        with self._guard.changing():
            if self._pending_class_ids:
                self._attempt(1, self._finish)

    def _predict(self, x: np.ndarray) -> np.ndarray:
        if self.inputs is None:
            return np.full((len(x), self.labels.capacity), -np.log(self.labels.capacity))
        with torch.no_grad():
            return self._log_p(self._tensor(self.inputs.alone(x))).cpu().numpy()

    def _learn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        self._observe(x, class_ids)

    def _observe(self, x: np.ndarray, class_ids: np.ndarray) -> np.ndarray:
        assert self.inputs is not None
        rows = []
        start = 0
        while start < len(class_ids):
            room = self.stride - (self.done + len(self._pending_class_ids)) % self.stride
            piece = x[start : start + room].copy()  # it is kept beyond this call, and the array is the user's
            with torch.no_grad():
                rows.append(
                    self._piece(self._tensor(self.inputs.extend(piece)), class_ids[start : start + room]).cpu().numpy()
                )
            self._pending_x.append(piece)
            self._pending_class_ids += class_ids[start : start + room].tolist()
            if len(piece) == room:
                self._finish()
            start += room
        return np.concatenate(rows)

    def _finish(self) -> None:
        assert self.inputs is not None
        self._changing = True
        x = np.concatenate(self._pending_x)
        self.inputs.finish_chunk(x)
        self._turn(x, np.asarray(self._pending_class_ids, dtype=np.int64))
        self.done += len(self._pending_class_ids)
        self._pending_x, self._pending_class_ids = [], []

    def _prepare(self, x: np.ndarray) -> None:
        if self.inputs is None:
            self._begin(x.shape[1:], x.dtype)

    def _begin(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Inputs:
        inputs = Inputs(self._inputs_like, shape, dtype)
        if self.missing and not inputs.standardises:
            raise BadSetting(f"features may be missing only where they are standardised, but x has shape {shape}")
        self._build(shape, inputs.extractor)
        self.inputs = inputs
        return inputs

    def _checked(self, xs: Any, ys: Sequence[Hashable] | None = None) -> np.ndarray:
        x = super()._checked(xs, ys)
        if x.ndim > 2:
            check_float32(x, self.position)
        if self.inputs is not None and x.ndim > 2 and (x.dtype == np.uint8) != self.inputs.image_bytes:
            expected = "uint8" if self.inputs.image_bytes else "floats"
            raise BadInput(f"example {self.position}: the image is {x.dtype}, but the first one was {expected}")
        return x

    def _state_dict(self) -> dict[str, Any]:
        if self.inputs is None:
            return {"inputs": None}
        return {
            "inputs": self.inputs.state_dict(),
            "image_bytes": self.inputs.image_bytes,
            "done": self.done,
            "pending_x": np.concatenate(self._pending_x) if self._pending_x else None,
            "pending_slots": list(self._pending_class_ids),
            "parts": _copied(self._parts()),
        }

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self.inputs, self.done, self._pending_x, self._pending_class_ids = None, 0, [], []
        if state["inputs"] is None:
            return
        assert self.shape is not None
        dtype = np.dtype(np.uint8 if state["image_bytes"] else np.float32)
        self._begin(self.shape, dtype).load_state_dict(state["inputs"])
        self.done = int(state["done"])
        self._pending_x = [] if state["pending_x"] is None else [state["pending_x"]]
        self._pending_class_ids = [int(class_id) for class_id in state["pending_slots"]]
        self._load_parts(state["parts"])


def _copied(state: Any) -> Any:
    """The state with tensors of its own: the learner's are changed in place."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {name: _copied(part) for name, part in state.items()}
    return [_copied(part) for part in state] if isinstance(state, list) else state
