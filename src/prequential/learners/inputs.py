"""From what a user hands over to what the network takes: vectors normalized by the past, images scaled."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np

from prequential.errors import BadSetting
from prequential.learners.moving_average import MovingAverage
from prequential.learners.normalizer import After, Normalizer, bounded
from prequential.learners.outliers import Hint
from prequential.learners.versioned import Versioned
from prequential.native.experts import NativeExperts
from prequential.settings import Settings
from prequential.storage.checkpoint import allow

COMPARISONS = 2**18  # of single features, to find the neighbors of an example
CHANNELS = (1, 3, 4)  # of ordinary images
FEW = 256  # up to so many features, each is also given relative to the recent past
CHANGING = 64  # up to so many, each is also given as its difference from a moving average
HALF_LIFE = 16  # of that average, in rows
TREES = 100
SUMS = ("count", "mean", "square")


class Statistics:
    """What is known of earlier examples, as far as inputs depend on it. Replaced by `copy`, never changed in place.

    Parameters
    ----------
    normalizer, average
        Of the features, where they are normalized, and where their differences from a moving average are given.
    """

    def __init__(self, normalizer: Normalizer | None, average: MovingAverage | None) -> None:
        self.normalizer, self.average = normalizer, average

    def copy(self) -> Statistics:
        return Statistics(copy.copy(self.normalizer), self.average)

    def state_dict(self) -> dict[str, Any]:
        state = {} if self.normalizer is None else self.normalizer.state_dict()
        return state if self.average is None else {**state, "average": self.average.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.normalizer is not None:
            self.normalizer.load_state_dict(state)
        if self.average is not None:
            self.average.load_state_dict(state["average"])


class Rows(NamedTuple):
    """Examples as the learner takes them."""

    features: np.ndarray  # (n, features) or images, for the network
    raw: np.ndarray  # (n, ...) as they came, with differences from the moving average where these are given


class Inputs:
    """Turns examples like the first one into float arrays: (n, features), or (n, channels, height, width) for images.

    Vectors are normalized by the statistics of the past, in two versions as everything else: committed and current.
    Each feature of a vector can be given a second time, as its difference from a moving average of the rows before.

    Parameters
    ----------
    settings
        Whether to normalize, and what else to give.
    shape, dtype
        Of the first example.
    native
        What normalizes in the native core, where it does.
    """

    def __init__(
        self, settings: Settings, shape: tuple[int, ...], dtype: np.dtype[Any], native: NativeExperts | None = None
    ) -> None:
        self._native = native
        allow(1000 * settings.num_streams, f"{settings.num_streams} streams")
        image = len(shape) > 1
        self.extractor = settings.extractor if settings.extractor != "auto" else ("convnet" if image else "none")
        if self.extractor != "none" and not image:
            raise BadSetting(f"extractor ({self.extractor}) needs images, but x has shape {shape}")
        self.image_bytes = image and dtype == np.uint8
        self._channels_first = len(shape) == 3 and _channels_first(shape, settings.channel_order)
        self.image_shape = (*shape[1:], shape[0]) if self._channels_first else shape  # channels last
        self._vectors = self.extractor == "none"
        self.width = int(np.prod(shape))  # numbers of one x
        mixes = settings.method == "mixed" and settings.use_input and self._vectors
        self.normalizes = not image if settings.standardize is None else settings.standardize and self._vectors
        half_life = settings.change_half_life
        if half_life is None:
            half_life = HALF_LIFE if mixes and self.normalizes and self.width <= CHANGING else 0
        if half_life and not self.normalizes:
            raise BadSetting(f"change_half_life ({half_life}) needs standardized vectors, but x has shape {shape}")
        self._half_life = half_life
        self.wide = self.width * (2 if half_life else 1)  # with the differences from the moving average
        self._recent = (
            settings.recent_window if settings.recent_window is not None else (300 if self.width <= FEW else 0)
        )
        self.num_neighbors = settings.num_neighbors or 0
        if settings.num_neighbors is None and mixes:
            self.num_neighbors = min(4096, COMPARISONS // self.width) if self.width <= FEW else 0
        if self.num_neighbors and not self._vectors:
            raise BadSetting(f"num_neighbors ({self.num_neighbors}) needs vectors, but x has shape {shape}")
        self.num_trees = settings.num_trees or 0
        if settings.num_trees is None and mixes:
            self.num_trees = TREES if self.width <= FEW else 0
        if self.num_trees and not self._vectors:
            raise BadSetting(f"num_trees ({self.num_trees}) needs vectors, but x has shape {shape}")
        self.features = self.wide * (2 if self.normalizes and self._recent else 1) if self._vectors else 0
        self._statistics = Versioned(self.new_statistics())

    def predict(self, x: np.ndarray) -> tuple[Rows, After | None]:
        """Examples to predict, each as the next one; for one alone, also the statistics with it. Changes nothing."""
        raw, normalizer = self.next_rows(x), self._statistics.current.normalizer
        if normalizer is None:
            return Rows(self._scaled(x), raw), None
        if len(x) > 1:
            return Rows(normalizer.transform_each(self._flat(raw)), raw), None
        features, after = normalizer.peek(self._flat(raw))
        return Rows(features, raw), after

    def next_rows(self, x: np.ndarray) -> np.ndarray:
        """Examples, each as the next one, as experts see them that take no features. Changes nothing."""
        average = self._statistics.current.average
        return x if average is None else average.widen_each(self._flat(x))

    @property
    def calm_normalizer(self) -> Normalizer | None:
        """What normalizes the next example, where the native core can do it; None: `predict` has to."""
        current = self._statistics.current.normalizer
        return current if current is not None and current.calm else None

    def predict_sequence(self, x: np.ndarray, first: int) -> Rows:
        """Examples asked one after another, from number `first` on; those before it have no label yet, but count."""
        now = self._statistics.current
        raw = x if now.average is None else now.average.widen(self._flat(x))[0]
        if now.normalizer is None:
            return Rows(self._scaled(x[first:]), raw[first:])
        return Rows(now.normalizer.transform_sequence(self._flat(raw))[0][first:], raw[first:])

    def extend(self, x: np.ndarray, predicted: tuple[np.ndarray, After | None] | None = None) -> Rows:
        """Examples after the chunk boundary; `predicted` is what `predict` gave for this very example, if it did."""
        now = self._statistics.current
        raw, average = (x, None) if now.average is None else now.average.widen(self._flat(x))
        if now.normalizer is None:
            return Rows(self._scaled(x) if predicted is None else predicted[0], raw)
        features, after = now.normalizer.transform_sequence(self._flat(raw)) if predicted is None else predicted
        assert after is not None
        self._statistics.extend(Statistics(now.normalizer.moved(after), average))
        return Rows(features, raw)

    def transform_chunk(self, x: np.ndarray) -> np.ndarray:
        """A chunk or its beginning, from the last boundary on. Changes nothing."""
        return self.transform_replayed(x, self._statistics.committed.copy()).features

    def commit(self, x: np.ndarray) -> Rows:
        """A whole chunk, from the last boundary on."""
        committed = self._statistics.committed.copy()
        rows = self.transform_replayed(x, committed)
        self._statistics.commit(committed)
        return rows

    def new_statistics(self) -> Statistics:
        """Empty ones, for a replay stream that begins."""
        if not self.normalizes:
            return Statistics(None, None)
        average = MovingAverage(self.width, half_life=self._half_life, native=self._native) if self._half_life else None
        return Statistics(Normalizer(self.wide, recent=self._recent or None, native=self._native), average)

    def transform_replayed(self, x: np.ndarray, statistics: Statistics) -> Rows:
        """A whole chunk by these statistics, which move on with it."""
        raw, normalizer = x, statistics.normalizer
        if normalizer is None:
            return Rows(self._scaled(x), raw)
        if not len(x):  # all of it is damaged on disk
            return Rows(np.empty((0, self.features), np.float32), raw)
        if statistics.average is not None:
            raw, statistics.average = statistics.average.widen(self._flat(x))
        features, after = normalizer.transform_sequence(self._flat(raw))
        normalizer.take(after)
        normalizer.forget()  # at the end of every chunk, so that it does not depend on the sizes examples come in
        return Rows(features, raw)

    def past(self, x: np.ndarray) -> np.ndarray:
        """Any examples of the past, by the committed statistics. Changes nothing."""
        committed = self._statistics.committed
        if committed.normalizer is None:
            return self._scaled(x)
        raw = self._flat(x) if committed.average is None else committed.average.widen_each(self._flat(x))
        return committed.normalizer.apply(raw)

    def hints(self) -> list[Hint]:
        """Values far outside a feature's range that recur."""
        normalizer = self._statistics.current.normalizer
        return [] if normalizer is None else [hint for hint in normalizer.hints() if hint.feature < self.width]

    def state_dict(self) -> dict[str, Any]:
        if not self.normalizes:
            return {}
        return {
            "committed": self._statistics.committed.state_dict(),
            "current": self._statistics.current.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self.normalizes:
            return
        if "border" in state:  # as an earlier version wrote it
            state = {"committed": migrate_statistics(state["border"]), "current": migrate_statistics(state["live"])}
        committed, current = self.new_statistics(), self.new_statistics()
        committed.load_state_dict(state["committed"])
        current.load_state_dict(state["current"])
        self._statistics.commit(committed)
        self._statistics.extend(current)

    def _flat(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), -1)

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        scaled = bounded(x.astype(np.float32))  # always a copy: the array is the user's
        if self.image_bytes:
            scaled /= 255
        if self._vectors:
            return self._flat(scaled)
        if scaled.ndim == 3:
            return scaled[:, None]
        return scaled if self._channels_first else np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def _channels_first(shape: tuple[int, ...], order: str) -> bool:
    """Whether images of this shape have their channels first; what could be meant either way is not guessed."""
    if order == "auto" and shape[0] in CHANNELS and shape[2] not in CHANNELS:
        raise BadSetting(
            f"x has shape {shape}, which looks like (channels, height, width); expected (height, width, channels), or "
            "set channel_order to first (or to last, if it is right as it is)"
        )
    return order == "first"


def migrate_statistics(state: dict[str, Any]) -> dict[str, Any]:
    """The statistics of a normalizer as an earlier version wrote them: in parts, over all and over the recent past."""
    sums = {name: np.concatenate([part[name] for part in state["parts"]]) for name in SUMS}
    return {**sums, "guard": state.get("guard")}
