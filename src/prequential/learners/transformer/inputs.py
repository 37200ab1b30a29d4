"""From what a user hands over to what the network takes: vectors standardised by the past, images scaled."""

from __future__ import annotations

from typing import Any

import numpy as np

from prequential.errors import BadSetting
from prequential.learners.normalizer import After, Normaliser, bounded
from prequential.learners.outliers import Hint
from prequential.settings import Settings
from prequential.storage.checkpoint import allow

COMPARISONS = 2**18  # of single features, to find the neighbours of an example
SUMS = ("count", "mean", "square")
FEW = 256  # up to so many features, each is also given relative to the recent past


class Scales:
    """The features standardised by all of the past, and beside them by its latest part: what is unusual just now."""

    def __init__(self, width: int, recent: int) -> None:
        self._normaliser = Normaliser(width, recent=recent or None)
        self._times = 2 if recent else 1

    def each(self, x: np.ndarray) -> np.ndarray:
        return self._normaliser.each(x)

    def following(self, x: np.ndarray) -> tuple[np.ndarray, After]:
        return self._normaliser.following(x)

    def take(self, after: After) -> None:
        self._normaliser.take(after)

    def apply(self, x: np.ndarray) -> np.ndarray:
        return self._normaliser.apply(x)

    def taken(self, x: np.ndarray, *, chunk: bool) -> np.ndarray:
        """Consecutive new examples, which are taken into the statistics; at the end of a chunk, what is old loses weight."""
        standardised, after = self._normaliser.along(x)
        self._normaliser.take(after)
        if chunk:
            self._normaliser.forget()
        return standardised

    def hints(self) -> list[Hint]:
        return self._normaliser.hints()

    def state_dict(self) -> dict[str, Any]:
        state = self._normaliser.state_dict()
        parts = {name: np.split(state[name], self._times) for name in SUMS}
        each = [{name: of_all[i] for name, of_all in parts.items()} for i in range(self._times)]
        return {"parts": each, "guard": state["guard"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        sums = {name: np.concatenate([part[name] for part in state["parts"]]) for name in SUMS}
        self._normaliser.load_state_dict({**sums, "guard": state.get("guard")})


class Inputs:
    """Turns examples like the first one into float arrays: (n, features), or (n, channels, height, width) for images.

    It keeps two sets of statistics: those at the last chunk border, from which a whole chunk is standardised in one
    go, and those up to the last example, for predictions in between. At the border the second becomes the first, so
    that the past does not depend on the sizes in which the examples came.
    """

    def __init__(self, settings: Settings, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        allow(1000 * settings.num_streams, f"{settings.num_streams} streams")
        image = len(shape) > 1
        self.extractor = settings.extractor if settings.extractor != "auto" else ("convnet" if image else "none")
        if self.extractor != "none" and not image:
            raise BadSetting(f"extractor ({self.extractor}) needs images, but x has shape {shape}")
        self.image_bytes = image and dtype == np.uint8
        self._vectors = self.extractor == "none"
        self._width = int(np.prod(shape))
        self._recent = (
            settings.recent_window if settings.recent_window is not None else (300 if self._width <= FEW else 0)
        )
        self.neighbours = settings.num_neighbors or 0
        if settings.num_neighbors is None and settings.method == "mixed" and settings.use_input and self._vectors:
            self.neighbours = min(4096, COMPARISONS // self._width) if self._width <= FEW else 0
        if self.neighbours and not self._vectors:
            raise BadSetting(f"num_neighbors ({self.neighbours}) needs vectors, but x has shape {shape}")
        self.compared = self._width
        standardize = not image if settings.standardize is None else settings.standardize and self._vectors
        self.features = self._width * (2 if standardize and self._recent else 1) if self._vectors else 0
        self._border = self._statistics() if standardize else None
        self._live = self._statistics() if standardize else None
        # the last example to predict, if it was alone: itself, standardised, and the statistics with it
        self._foreseen: tuple[np.dtype[Any], bytes, np.ndarray, After] | None = None
        self._replays = [self._statistics() for _ in range(settings.num_streams - 1)] if standardize else []

    @property
    def standardises(self) -> bool:
        return self._border is not None

    def alone(self, x: np.ndarray) -> np.ndarray:
        """Examples to predict, each on its own."""
        if self._live is None:
            return self._scaled(x)
        if len(x) > 1:
            return self._live.each(self._flat(x))
        standardised, after = self._live.following(self._flat(x))
        self._foreseen = (x.dtype, x.tobytes(), standardised, after)
        return standardised

    def extend(self, x: np.ndarray) -> np.ndarray:
        """Examples of an unfinished chunk, as they come."""
        if self._live is None:
            return self._scaled(x)
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is not None and foreseen[0] == x.dtype and foreseen[1] == x.tobytes():
            self._live.take(foreseen[3])
            return foreseen[2]
        return self._live.taken(self._flat(x), chunk=False)

    def finish_chunk(self, x: np.ndarray) -> np.ndarray:
        """A whole chunk, from the last border on; moves the border behind it."""
        if self._border is None or self._live is None:
            return self._scaled(x)
        standardised = self._border.taken(self._flat(x), chunk=True)
        self._live.load_state_dict(self._border.state_dict())
        self._foreseen = None
        return standardised

    def replayed(self, reader: int, x: np.ndarray, *, first: bool) -> np.ndarray:
        """The chunk a replay stream reads next (its first, after it went back), exactly as it was when it was new.

        A replay stream reads from the start on without leaving anything out, so statistics of its own, taken along the
        way, are those of that time. With the statistics of now, the past would look unlike the present.
        """
        if self._border is None:
            return self._scaled(x)
        if first:
            self._replays[reader] = self._statistics()
        if not len(x):  # all of it is damaged on disk
            return np.empty((0, self.features), np.float32)
        return self._replays[reader].taken(self._flat(x), chunk=True)

    def past(self, x: np.ndarray) -> np.ndarray:
        """Any examples of the past, by the statistics at the last border. Changes nothing."""
        return self._scaled(x) if self._border is None else self._border.apply(self._flat(x))

    def hints(self) -> list[Hint]:
        """Values far outside a feature's range that recur."""
        return [] if self._live is None else self._live.hints()

    def state_dict(self) -> dict[str, Any]:
        if self._border is None or self._live is None:
            return {}
        replays = [statistics.state_dict() for statistics in self._replays]
        return {"border": self._border.state_dict(), "live": self._live.state_dict(), "replays": replays}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._foreseen = None
        if self._border is not None and self._live is not None:
            self._border.load_state_dict(state["border"])
            self._live.load_state_dict(state["live"])
            for statistics, saved in zip(self._replays, state["replays"], strict=True):
                statistics.load_state_dict(saved)

    def _statistics(self) -> Scales:
        return Scales(self._width, self._recent)

    def _flat(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), -1)

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        scaled = bounded(x.astype(np.float32))  # always a copy: the array is the user's
        if self.image_bytes:
            scaled /= 255
        if self._vectors:
            return self._flat(scaled)
        return scaled[:, None] if scaled.ndim == 3 else np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))
