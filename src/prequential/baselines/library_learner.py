"""The base of learners that wrap models of other libraries, which can only be saved by pickle, and so are not saved.

A save holds the position alone. After loading, a new model is made and trained again on the past, read from the stream
or from the learner's journal, to the same state. That is exact, safe to read and needs no support from the library; it
takes as long as the training so far did (predictions are not repeated).
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np

from prequential.baselines.library_models import check_model_options, library_errors, smoothed
from prequential.errors import BadSetting
from prequential.learners.journaled import JournaledLearner
from prequential.learners.log_proba import prior_log_proba
from prequential.learners.normalizer import Normalizer
from prequential.learners.outliers import Hint


class LibraryLearner(JournaledLearner):
    """A model of another library, which is rebuilt from the past after loading.

    A subclass makes the model in `_make`, predicts with it in `_proba` and trains it in `_fit`, always `stride`
    examples at a time: examples that do not fill a batch are pending.
    """

    small_state = True

    def __init__(
        self,
        classes: int | Sequence[Hashable] | None = None,
        *,
        model: str,
        settings: dict[str, Any] | None,
        batch: int,
        smoothing: float,
        standardize: bool,
        missing: bool,
        seed: int,
    ) -> None:
        super().__init__(classes, missing=missing)
        check_model_options(settings, smoothing, seed)
        if batch < 1:
            raise BadSetting(f"batch ({batch}) must be at least 1")
        self.path, self.settings, self.smoothing = model, dict(settings or {}), smoothing
        self.standardize, self.seed, self.stride = standardize, seed, batch
        self._num_to_relearn = 0  # examples the model must learn again before it is used
        self._begin()

    @abstractmethod
    def _make(self) -> Any:
        """A new model."""

    @abstractmethod
    def _proba(self, x: np.ndarray) -> np.ndarray:
        """The model's probabilities (n, class ids), before smoothing; rows need not sum to 1. Changes nothing.

        Called only after the model was trained at least once.
        """

    @abstractmethod
    def _fit(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        """Trains the model on a batch."""

    def _begin(self) -> None:
        self.model = self._make()
        self._normalizer: Normalizer | None = None
        self._pending_x: list[np.ndarray] = []  # standardized examples of the unfinished batch
        self._pending_ids: list[int] = []
        self._fitted = False

    def _relearn(self) -> None:
        """Trains a new model on everything that was learned before the save."""
        count, self._num_to_relearn = self._num_to_relearn, 0
        for start in range(0, count, 1024):
            try:
                chunk = self.memory.read(start, min(start + 1024, count))
            except Exception:
                self._num_to_relearn = count  # still to be done, from the beginning
                self._begin()
                raise
            self._take(chunk.x, np.asarray(self.labels.assign(chunk.y), dtype=np.int64))

    def _features(self, x: np.ndarray, keep: bool) -> np.ndarray:
        """One example (1, features) as float64, standardized where wanted; `keep` takes it into the statistics."""
        flat = x.reshape(len(x), -1).astype(np.float64)
        if not self.standardize:
            return flat
        normalizer = self._normalizer or Normalizer(flat.shape[1])
        # one row at a time: sums in another order would round otherwise, and the model would not come back to the bit
        scaled = normalizer.transform(flat).astype(np.float64)
        if keep:
            normalizer.update(flat)
            self._normalizer = normalizer
        return scaled

    def _take(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        for i, class_id in enumerate(class_ids.tolist()):
            self._pending_x.append(self._features(x[i : i + 1], keep=True))
            self._pending_ids.append(class_id)
            if len(self._pending_ids) == self.stride:
                with library_errors(self.path, self.position):
                    self._fit(np.concatenate(self._pending_x), np.asarray(self._pending_ids, dtype=np.int64))
                self._pending_x, self._pending_ids, self._fitted = [], [], True

    def _predict(self, x: np.ndarray) -> np.ndarray:
        self._relearn()
        if not self._fitted:  # some models initialize themselves in their first prediction, which would be a change
            return prior_log_proba(len(x), self.num_seen, self.labels.capacity)
        rows = np.concatenate([self._features(x[i : i + 1], keep=False) for i in range(len(x))])
        with library_errors(self.path, self.position):
            p = self._proba(rows)
        return smoothed(p, self.num_seen, self.labels.capacity, self.smoothing)

    def _learn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        self._changing = False  # where the past cannot be read, the model is made again later
        self._relearn()
        self._changing = True
        self._take(x, class_ids)

    def _hints(self) -> list[Hint]:
        return [] if self._normalizer is None else self._normalizer.hints()

    def _common(self) -> dict[str, Any]:
        return {
            "classes": self.labels.classes,
            "model": self.path,
            "settings": self.settings,
            "smoothing": self.smoothing,
            "standardize": self.standardize,
            "missing": self.missing,
            "seed": self.seed,
        }

    def _state_dict(self) -> dict[str, Any]:
        return {}  # the position is in the memory's state; the rest follows from the past

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self._begin()
        self._num_to_relearn = self.position

    def _take_copy(self, other: Self, *, snapshot: bool) -> None:
        if snapshot:
            other._relearn()  # a snapshot has no past to learn from
        super()._take_copy(other, snapshot=snapshot)
        # what other libraries cannot save, they can copy
        own = ("_guard", "memory", "labels")
        for name, value in copy.deepcopy({k: v for k, v in vars(other).items() if k not in own}).items():
            setattr(self, name, value)
