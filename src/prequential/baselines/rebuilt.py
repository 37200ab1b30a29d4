"""For learners around models of other libraries, which can be saved only as code to execute (pickle): not at all.

What is saved is how far the model has come. After loading, it is made anew and taught the past again, from the stream or
from the learner's journal, to the same state. That is exact, safe to read and needs nothing from the other library, and it
costs as much time as all the learning so far did (the predictions are not repeated).
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from prequential.baselines.remembering import Remembering
from prequential.errors import BadInput, BadSetting, PrequentialError, one_line
from prequential.learners.base import check_seed
from prequential.learners.normalizer import Normaliser
from prequential.learners.outliers import Hint


class Rebuilt(Remembering):
    """A learner whose model is rebuilt from the past.

    A subclass makes the model in `_make`, predicts with it in `_proba` and teaches it in `_teach`, always `stride` examples
    at a time: the ones that do not fill a batch wait.
    """

    small_state = True

    def __init__(
        self,
        classes: int | Sequence[Hashable],
        *,
        model: str,
        settings: dict[str, Any] | None,
        batch: int,
        smoothing: float,
        standardise: bool,
        missing: bool,
        seed: int,
    ) -> None:
        super().__init__(classes, missing=missing)
        check_seed(seed)
        if settings is not None and not isinstance(settings, dict):
            raise BadSetting(f"settings is a {type(settings).__name__}, expected pairs such as {{name: value}}")
        if not 0 < smoothing < 1:
            raise BadSetting(
                f"smoothing ({smoothing}) must be above 0 and below 1: otherwise a label can cost infinitely much"
            )
        if batch < 1:
            raise BadSetting(f"batch ({batch}) must be at least 1")
        self.path, self.settings, self.smoothing = model, dict(settings or {}), smoothing
        self.standardise, self.seed, self.stride = standardise, seed, batch
        self._behind = 0  # examples the model must be taught again before it is used
        self._begin()

    @abstractmethod
    def _make(self) -> Any:
        """A new model."""

    @abstractmethod
    def _proba(self, x: np.ndarray) -> np.ndarray:
        """The model's probabilities (n, capacity), before smoothing; rows may lack mass or be empty. Changes nothing.

        It is asked only after the model has been taught something.
        """

    @abstractmethod
    def _teach(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        """Teaches the model a batch."""

    def _begin(self) -> None:
        self.model = self._make()
        self._normaliser: Normaliser | None = None
        self._x: list[np.ndarray] = []  # standardised examples of the unfinished batch
        self._class_ids: list[int] = []
        self._taught = False

    def _ready(self) -> None:
        """Teaches the model what it knew when it was saved."""
        behind, self._behind = self._behind, 0
        for start in range(0, behind, 1024):
            try:
                chunk = self.memory.read(start, min(start + 1024, behind))
            except Exception:
                self._behind = behind  # still to be done, from the beginning
                self._begin()
                raise
            self._take(chunk.x, np.asarray(self.labels.assign(chunk.y), dtype=np.int64))

    def _features(self, x: np.ndarray, keep: bool) -> np.ndarray:
        """One example (1, features) as float64, standardised where wanted; `keep` takes it into the statistics."""
        flat = x.reshape(len(x), -1).astype(np.float64)
        if not self.standardise:
            return flat
        normaliser = self._normaliser or Normaliser(flat.shape[1])
        # one row at a time: sums in another order would round otherwise, and the model would not come back to the bit
        scaled = normaliser.transform(flat).astype(np.float64)
        if keep:
            normaliser.update(flat)
            self._normaliser = normaliser
        return scaled

    def _take(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        for i, class_id in enumerate(class_ids.tolist()):
            self._x.append(self._features(x[i : i + 1], keep=True))
            self._class_ids.append(class_id)
            if len(self._class_ids) == self.stride:
                with self._of_library():
                    self._teach(np.concatenate(self._x), np.asarray(self._class_ids, dtype=np.int64))
                self._x, self._class_ids, self._taught = [], [], True

    def _predict(self, x: np.ndarray) -> np.ndarray:
        self._ready()
        if not self._taught:  # some models set themselves up when they are first asked, which would be a change
            return np.full((len(x), self.labels.capacity), -np.log(self.labels.capacity))
        rows = np.concatenate([self._features(x[i : i + 1], keep=False) for i in range(len(x))])
        with self._of_library():
            p = self._proba(rows)
        return self._smoothed(p)

    @contextmanager
    def _of_library(self) -> Iterator[None]:
        """What the other library raises is a sentence, too; the numbers or the settings do not suit its model."""
        try:
            yield
        except PrequentialError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {one_line(error, 120)}"
            raise BadInput(f"example {self.position}: model {self.path!r} cannot take it: {why}") from error

    def _learn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        self._changing = False  # where the past cannot be read, the model is made again later
        self._ready()
        self._changing = True
        self._take(x, class_ids)

    def _smoothed(self, p: np.ndarray) -> np.ndarray:
        """Log-probabilities: what is there brought to sum 1 (uniform where nothing is), mixed with the uniform."""
        p = np.where(np.isfinite(p) & (p > 0), p, 0.0)
        total = p.sum(1, keepdims=True)
        K = self.labels.capacity
        p = np.where(total > 0, p / np.where(total > 0, total, 1.0), 1 / K)
        return np.log((1 - self.smoothing) * p + self.smoothing / K)

    def _hints(self) -> list[Hint]:
        return [] if self._normaliser is None else self._normaliser.hints()

    def _common(self) -> dict[str, Any]:
        return {
            "classes": self.labels.capacity,
            "model": self.path,
            "settings": self.settings,
            "smoothing": self.smoothing,
            "standardise": self.standardise,
            "missing": self.missing,
            "seed": self.seed,
        }

    def _state_dict(self) -> dict[str, Any]:
        return {}  # how far it has come is in the memory's state; the rest follows from the past

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self._begin()
        self._behind = self.position

    def _take_copy(self, other: Self) -> None:
        super()._take_copy(other)
        # what other libraries cannot save, they can copy
        own = ("_guard", "memory", "labels")
        for name, value in copy.deepcopy({k: v for k, v in vars(other).items() if k not in own}).items():
            setattr(self, name, value)
