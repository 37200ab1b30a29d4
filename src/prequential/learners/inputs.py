"""From what a user hands over to what the network takes: vectors normalized by the past, images scaled."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from prequential.errors import BadSetting
from prequential.learners.normalizer import After, Normalizer, bounded
from prequential.learners.outliers import Hint
from prequential.learners.versioned import Versioned
from prequential.native.experts import NativeExperts
from prequential.settings import Settings
from prequential.storage.checkpoint import allow

COMPARISONS = 2**18  # of single features, to find the neighbors of an example
CHANNELS = (1, 3, 4)  # of ordinary images
FEW = 256  # up to so many features, each is also given relative to the recent past
SUMS = ("count", "mean", "square")


class Inputs:
    """Turns examples like the first one into float arrays: (n, features), or (n, channels, height, width) for images.

    Vectors are normalized by the statistics of the past, in two versions as everything else: committed and current.

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
        self._recent = (
            settings.recent_window if settings.recent_window is not None else (300 if self.width <= FEW else 0)
        )
        self.num_neighbors = settings.num_neighbors or 0
        if settings.num_neighbors is None and settings.method == "mixed" and settings.use_input and self._vectors:
            self.num_neighbors = min(4096, COMPARISONS // self.width) if self.width <= FEW else 0
        if self.num_neighbors and not self._vectors:
            raise BadSetting(f"num_neighbors ({self.num_neighbors}) needs vectors, but x has shape {shape}")
        self.num_trees = settings.num_trees
        if self.num_trees and not self._vectors:
            raise BadSetting(f"num_trees ({self.num_trees}) needs vectors, but x has shape {shape}")
        self.normalizes = not image if settings.standardize is None else settings.standardize and self._vectors
        self.features = self.width * (2 if self.normalizes and self._recent else 1) if self._vectors else 0
        self._normalizer = Versioned(self._make_normalizer()) if self.normalizes else None

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, After | None]:
        """Examples to predict, each as the next one; for one alone, also the statistics with it. Changes nothing."""
        if self._normalizer is None:
            return self._scaled(x), None
        if len(x) > 1:
            return self._normalizer.current.transform_each(self._flat(x)), None
        return self._normalizer.current.peek(self._flat(x))

    @property
    def calm_normalizer(self) -> Normalizer | None:
        """What normalizes the next example, where the native core can do it; None: `predict` has to."""
        current = None if self._normalizer is None else self._normalizer.current
        return current if current is not None and current.calm else None

    def predict_sequence(self, x: np.ndarray, first: int) -> np.ndarray:
        """Examples asked one after another, from number `first` on; those before it have no label yet, but count."""
        if self._normalizer is None:
            return self._scaled(x[first:])
        return self._normalizer.current.transform_sequence(self._flat(x))[0][first:]

    def extend(self, x: np.ndarray, predicted: tuple[np.ndarray, After | None] | None = None) -> np.ndarray:
        """Examples after the chunk boundary; `predicted` is what `predict` gave for this very example, if it did."""
        if self._normalizer is None:
            return self._scaled(x) if predicted is None else predicted[0]
        current = self._normalizer.current
        features, after = current.transform_sequence(self._flat(x)) if predicted is None else predicted
        assert after is not None
        self._normalizer.extend(current.moved(after))
        return features

    def transform_chunk(self, x: np.ndarray) -> np.ndarray:
        """A chunk or its beginning, from the last boundary on. Changes nothing."""
        if self._normalizer is None:
            return self._scaled(x)
        return self.transform_replayed(x, copy.copy(self._normalizer.committed))

    def commit(self, x: np.ndarray) -> np.ndarray:
        """A whole chunk, from the last boundary on."""
        if self._normalizer is None:
            return self._scaled(x)
        committed = copy.copy(self._normalizer.committed)
        features = self.transform_replayed(x, committed)
        self._normalizer.commit(committed)
        return features

    def new_normalizer(self) -> Normalizer | None:
        """Empty statistics, for a replay stream that begins; None where nothing is normalized."""
        return self._make_normalizer() if self.normalizes else None

    def transform_replayed(self, x: np.ndarray, normalizer: Normalizer | None) -> np.ndarray:
        """A whole chunk by these statistics, which move on with it."""
        if normalizer is None:
            return self._scaled(x)
        if not len(x):  # all of it is damaged on disk
            return np.empty((0, self.features), np.float32)
        features, after = normalizer.transform_sequence(self._flat(x))
        normalizer.take(after)
        normalizer.forget()  # at the end of every chunk, so that it does not depend on the sizes examples come in
        return features

    def past(self, x: np.ndarray) -> np.ndarray:
        """Any examples of the past, by the committed statistics. Changes nothing."""
        return self._scaled(x) if self._normalizer is None else self._normalizer.committed.apply(self._flat(x))

    def hints(self) -> list[Hint]:
        """Values far outside a feature's range that recur."""
        return [] if self._normalizer is None else self._normalizer.current.hints()

    def state_dict(self) -> dict[str, Any]:
        if self._normalizer is None:
            return {}
        return {
            "committed": self._normalizer.committed.state_dict(),
            "current": self._normalizer.current.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._normalizer is None:
            return
        if "border" in state:  # as an earlier version wrote it
            state = {"committed": migrate_statistics(state["border"]), "current": migrate_statistics(state["live"])}
        committed, current = self._make_normalizer(), self._make_normalizer()
        committed.load_state_dict(state["committed"])
        current.load_state_dict(state["current"])
        self._normalizer.commit(committed)
        self._normalizer.extend(current)

    def _make_normalizer(self) -> Normalizer:
        return Normalizer(self.width, recent=self._recent or None, native=self._native)

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
