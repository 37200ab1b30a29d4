"""The base of the baselines that train a network by gradient descent, a chunk at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from prequential.baselines.feed_forward import Network
from prequential.errors import BadSetting
from prequential.labels import log_class_prior, num_seen_before
from prequential.learners.base import check_missing, check_seed
from prequential.learners.chunked import ChunkedLearner
from prequential.learners.gate import check_image_dtype
from prequential.learners.inputs import Inputs
from prequential.learners.log_proba import prior_where_nan, uniform_log_proba
from prequential.learners.outliers import Hint
from prequential.settings import Settings


class NetworkLearner(ChunkedLearner):
    """A network that is trained on chunks of `stride` examples.

    A chunk's examples are predicted with the parameters from before the chunk, then trained on together. Only the
    standardization moves on with every example.

    A subclass makes its parts in `_build`, predicts in `_log_probs`, trains in `_train_step`, and saves in
    `_model_state` and `_load_model_state`.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves; None: as many as come.
    chunk
        How many examples are trained on together.
    hidden_sizes
        Widths of hidden layers; none is a linear classifier.
    extractor
        For images: "convnet", "vgg", "convnext", or "none" for a classifier of pixels. "auto": convnet.
    standardize
        Whether features are standardized by past statistics; by default vectors are, images are not.
    device
        Where the network is: cpu, cuda, ...
    missing
        Whether features may be NaN.
    seed
        Seed of the weights and of the replay.
    """

    def __init__(
        self,
        classes: int | Sequence[Hashable] | None = None,
        *,
        chunk: int,
        hidden_sizes: Sequence[int],
        extractor: str,
        standardize: bool | None,
        device: str,
        missing: bool,
        seed: int,
    ) -> None:
        super().__init__(classes, missing=missing)
        if chunk < 1:
            raise BadSetting(f"chunk ({chunk}) must be at least 1")
        if any(width < 1 for width in hidden_sizes):
            raise BadSetting(f"hidden_sizes ({list(hidden_sizes)}) must be widths of at least 1")
        check_seed(seed)
        check_missing(missing, standardize)
        self.stride = chunk
        self.hidden_sizes, self.extractor, self.standardize = tuple(hidden_sizes), extractor, standardize
        like: dict[str, Any] = {
            "extractor": extractor,
            "standardize": standardize,
            "recent_window": 0,
            "change_half_life": 0,
            "num_streams": 1,
        }
        self._inputs_like = Settings(**like)
        self.device, self.seed = torch.device(device), seed
        self.inputs: Inputs | None = None  # made from the first example, which gives the shape of x
        self._num_learned = len(self.labels)  # labels in finished chunks

    def _network_config(self) -> dict[str, Any]:
        """The arguments this class takes but for `chunk`, which some subclasses call `batch`."""
        return {
            "classes": self.labels.classes,
            "hidden_sizes": list(self.hidden_sizes),
            "extractor": self.extractor,
            "standardize": self.standardize,
            "device": str(self.device),
            "missing": self.missing,
            "seed": self.seed,
        }

    @abstractmethod
    def _build(self, shape: tuple[int, ...], extractor: str) -> None:
        """Makes everything that is learned or counted, in its initial state, for x of this shape."""

    @abstractmethod
    def _log_probs(self, x: Tensor, num_seen: np.ndarray) -> Tensor:
        """Log-probabilities (n, capacity) of inputs, when so many labels (n,) had been seen; changes nothing."""

    @abstractmethod
    def _train_step(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        """Trains on a finished chunk."""

    @abstractmethod
    def _model_state(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load_model_state(self, state: dict[str, Any]) -> None: ...

    def _observe_inputs(self, x: Tensor, class_ids: np.ndarray) -> Tensor:
        """Log-probabilities of consecutive examples of one chunk, before the chunk is trained on."""
        return self._log_probs(x, num_seen_before(class_ids, self.num_seen))

    def _weighed(self, logits: Tensor, num_seen: np.ndarray | int) -> Tensor:
        """Logits (n, capacity) with the prior of labels of which so many had been seen."""
        counts = np.full(1, num_seen) if isinstance(num_seen, int) else num_seen
        prior = log_class_prior(counts, logits.shape[1])
        return logits if prior is None else logits + torch.from_numpy(prior).to(logits.device)

    def _loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The log-loss of labels that all have been seen, in a chunk that is learned or replayed."""
        return F.cross_entropy(self._weighed(logits, self._num_learned), y)

    def _grow(self, capacity: int) -> None:
        # no step was taken since the last chunk border: what was free then is still like all that is free
        if self.inputs is not None:
            self._grow_model(capacity, like=self._num_learned)

    @abstractmethod
    def _grow_model(self, capacity: int, like: int) -> None:
        """Adds outputs up to this capacity, copies of those of class id `like`."""

    def make_network(self, shape: tuple[int, ...], extractor: str) -> Network:
        """A network for inputs of this shape, with the weights that this learner's seed gives."""
        network = Network(
            shape, self.labels.capacity, hidden_sizes=self.hidden_sizes, extractor=extractor, seed=self.seed
        )
        return network.to(self.device)

    def _past(self, x: np.ndarray) -> Tensor:
        """Inputs for training: past examples, standardized by the statistics of the committed chunks."""
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

    def _predict(self, x: np.ndarray) -> np.ndarray:
        if self.inputs is None:
            return uniform_log_proba(len(x), self.labels.capacity)
        num_seen = np.full(len(x), self.num_seen)
        with torch.no_grad():
            log_probs = self._log_probs(self._tensor(self.inputs.predict(x)[0].features), num_seen)
            return prior_where_nan(log_probs.cpu().numpy(), num_seen)

    def _extend(self, x: np.ndarray, class_ids: np.ndarray, lags: np.ndarray | None) -> np.ndarray:
        assert self.inputs is not None
        with torch.no_grad():
            log_probs = self._observe_inputs(self._tensor(self.inputs.extend(x).features), class_ids)
            return prior_where_nan(log_probs.cpu().numpy(), num_seen_before(class_ids, self.num_seen))

    def _train_chunk(self, x: np.ndarray, class_ids: np.ndarray, lags: np.ndarray | None) -> None:
        assert self.inputs is not None
        self.inputs.commit(x)
        self._num_learned = max(self._num_learned, int(class_ids.max()) + 1)
        self._train_step(x, class_ids)

    def _prepare(self, x: np.ndarray) -> None:
        if self.inputs is None:
            self._begin(x.shape[1:], x.dtype)

    def _begin(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Inputs:
        inputs = Inputs(self._inputs_like, shape, dtype)
        if self.missing and not inputs.normalizes:
            raise BadSetting(f"features may be missing only where they are standardized, but x has shape {shape}")
        self._build(shape, inputs.extractor)
        self.inputs = inputs
        return inputs

    def _check(self, x: np.ndarray) -> np.ndarray:
        x = super()._check(x)
        check_image_dtype(x, None if self.inputs is None else self.inputs.image_bytes, self.position)
        return x

    def _state_dict(self) -> dict[str, Any]:
        if self.inputs is None:
            return {"inputs": None}
        return {
            "inputs": self.inputs.state_dict(),
            "image_bytes": self.inputs.image_bytes,
            **self._chunk_state(),
            "num_learned": self._num_learned,
            "parts": _copied(self._model_state()),
        }

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self.inputs, self.num_committed, self._pending_x, self._pending_ids = None, 0, [], []
        self._num_learned = int(
            state.get("num_learned", len(self.labels))
        )  # an earlier version did not tell them apart
        if state["inputs"] is None:
            return
        assert self.shape is not None
        dtype = np.dtype(np.uint8 if state["image_bytes"] else np.float32)
        self._begin(self.shape, dtype).load_state_dict(state["inputs"])
        self._load_chunk_state(state)
        self._load_model_state(state["parts"])


def _copied(state: Any) -> Any:
    """The state with tensors of its own: the learner's are changed in place."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {name: _copied(part) for name, part in state.items()}
    return [_copied(part) for part in state] if isinstance(state, list) else state
