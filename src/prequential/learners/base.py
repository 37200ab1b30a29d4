"""The one small interface behind which every learner stands."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from prequential.checkpoint import allow, loading, read_checkpoint, write_checkpoint
from prequential.errors import BadCheckpoint, BadInput, BadSetting, PrequentialError
from prequential.labels import Labels
from prequential.learners.gate import as_examples, as_labels, check_float32, check_labels, check_shape
from prequential.memory import check_fits, ran_out
from prequential.streams.stream import Stream
from prequential.trust import stored_arguments


class Probabilities(dict[Hashable, float]):
    """The probability of each label met so far; asking for a label never met gives its share of the rest."""

    def __init__(self, known: Iterable[tuple[Hashable, float]], unseen: float) -> None:
        super().__init__(known)
        self.unseen = unseen  # the probability of any one label that was never met

    def __missing__(self, label: Hashable) -> float:
        return self.unseen


@dataclass(frozen=True)
class Charges:
    """What n examples cost, in the order they came. All of it was fixed before their labels were learnt."""

    log_loss: np.ndarray  # (n,) -log p(y_t | x_t, past) in nats
    predicted: np.ndarray  # (n,) the unit of the most probable label met so far, -1 before there is one
    correct: np.ndarray  # (n,) whether that was the label
    confidence: np.ndarray  # (n,) the probability given to the predicted label


class OnlineLearner(ABC):
    """Predicts a label from x and the past, is told the label, learns.

    A subclass writes `_predict` and `_learn` (and `_observe` where a chunk can be done faster than one by one),
    `config`, `_state` and `_load_state`. It sees labels only as the numbers of their output units, and must give
    every one of the `capacity` units a probability, those not yet given to any label included.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves.
    missing
        Whether features may be NaN, meaning "not measured".
    """

    stride: int = 1  # how many examples `observe` handles best at once
    standardise: bool | None = None  # False: features are used as they are, which float32 must hold

    def __init__(self, classes: int | Sequence[Hashable], *, missing: bool = False) -> None:
        self.labels = Labels(classes)
        check_fits(32.0 * self.labels.capacity, f"classes ({self.labels.capacity})")
        self.missing = missing
        self.position = 0  # how many examples it has learnt from
        self.shape: tuple[int, ...] | None = None  # of one x; found from the first example

    # What a user calls.

    def predict_proba(self, x: Any) -> Probabilities:
        """The probability of each label for one example. Changes nothing."""
        log_p = self.predict_log_proba(self._one(x))[0]
        known = len(self.labels)
        free = self.labels.capacity - known
        p = np.exp(log_p)
        return Probabilities(
            zip(self.labels.known, p[:known].tolist(), strict=True), float(p[known:].sum()) / free if free else 0.0
        )

    def predict(self, x: Any) -> Hashable | None:
        """The most probable label met so far; None before there is one. Changes nothing."""
        p = self.predict_proba(x)
        return max(p, key=p.__getitem__) if p else None

    def predict_log_proba(self, xs: Any) -> np.ndarray:
        """Log-probabilities (n, capacity) of n examples, each predicted on its own. Changes nothing.

        Column k belongs to `labels.known[k]`; the columns after those belong to labels not met yet.
        """
        return self._predict(self._checked(xs))

    def learn(self, x: Any, y: Hashable) -> None:
        """Learns from one example."""
        self.learn_many(self._one(x), [y])

    def learn_many(self, xs: Any, ys: Sequence[Hashable]) -> None:
        """Learns from several examples, oldest first."""
        x, y = self._admitted(xs, ys)
        self._make_ready(x)
        with self._taking(x, y) as slots:
            self._learn(x, slots)
        self.position += len(slots)

    def observe(self, xs: Any, ys: Sequence[Hashable]) -> Charges:
        """Predicts, is charged for and learns from each example in turn, as `predict` and `learn` one by one would."""
        x, y = self._admitted(xs, ys)
        self._make_ready(x)
        known_before = len(self.labels)
        with self._taking(x, y) as slots:
            log_p = self._observe(x, slots)
        self.position += len(slots)
        # an example's label may be new, and labels new in this call count as known only for the examples after it
        known = np.maximum.accumulate(np.concatenate([[known_before], slots[:-1] + 1]))
        return charge(log_p, slots, known)

    def replay_from(self, stream: Stream | None) -> None:
        """Says that what was learnt so far and what comes next are the examples of this stream, from its start on.

        So those before `position` can be read again there. None: what comes next is not from that stream. Learners
        that never look back ignore it.
        """

    def flush(self) -> None:
        """Learns from whatever was put off until later. Learners that put nothing off ignore it."""

    def macs_per_example(self) -> float | None:
        """Multiply-accumulates spent per example on predicting and learning; None where they are not counted."""
        return None

    # Saving.

    def state(self) -> dict[str, Any]:
        """Everything that what comes next depends on: nested dicts of arrays, tensors and JSON values."""
        shape = None if self.shape is None else list(self.shape)
        return {"labels": self.labels.state(), "position": self.position, "shape": shape, "learner": self._state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on from exactly where `state()` was taken."""
        self._check_state(state)
        self.labels.load_state(state["labels"])
        self.position = int(state["position"])
        self.shape = None if state["shape"] is None else tuple(state["shape"])
        self._load_state(state["learner"])

    def _check_state(self, state: dict[str, Any]) -> None:
        """Refuses a state that is not one of this learner, before anything is allocated for it."""
        capacity, position, shape = state["labels"]["capacity"], state["position"], state["shape"]
        if capacity != self.labels.capacity:
            raise BadCheckpoint(f"it was saved with classes {capacity!r}, expected {self.labels.capacity}")
        sizes = [1] if shape is None else shape
        if type(position) is not int or not all(type(size) is int and size > 0 for size in sizes):
            raise BadCheckpoint(
                f"it was saved at example {position!r} with x of shape {shape!r}, expected whole numbers"
            )
        if position < 0 or len(state["labels"]["known"]) > capacity:
            raise BadCheckpoint(f"it was saved at example {position} with {len(state['labels']['known'])} labels")
        allow(8 * capacity, f"{capacity} classes")
        allow(8 * math.prod(sizes), f"x of shape {tuple(sizes)}")

    def save(self, path: str | Path) -> None:
        """Writes the learner to one file, atomically."""
        write_checkpoint(Path(path), {"kind": type(self).__name__, "config": self.config(), "state": self.state()})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The learner that was saved to this file."""
        return cls._loaded(path)

    @classmethod
    def _loaded(cls, path: str | Path, **more: Any) -> Self:
        """`load`, with arguments of the constructor that are not part of what was saved."""
        saved = read_checkpoint(Path(path))
        if saved.get("kind") != cls.__name__:
            raise BadCheckpoint(f"{path} holds a {saved.get('kind')}, not a {cls.__name__}")
        with loading(Path(path)):
            learner = cls(**stored_arguments(cls, saved.get("config"), path), **more)
            learner._load_beside(Path(path), saved["state"])
            learner.load_state(saved["state"])
        return learner

    def _load_beside(self, path: Path, state: dict[str, Any]) -> None:
        """Takes what `save` left beside the file, before the state is loaded. Most learners leave nothing there."""

    # What a subclass writes. x is checked, (n, *shape); slots are the output units of the labels, (n,) int64.

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The arguments that build this learner anew, as JSON values."""

    def _prepare(self, x: np.ndarray) -> None:
        """Makes what depends on what x looks like, before the first example is taken; may refuse it."""

    @abstractmethod
    def _predict(self, x: np.ndarray) -> np.ndarray:
        """Log-probabilities (n, capacity), each example on its own; must not change the learner."""

    @abstractmethod
    def _learn(self, x: np.ndarray, slots: np.ndarray) -> None:
        """Learns from the examples in order."""

    def _observe(self, x: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Log-probabilities (n, capacity), row i predicted after learning the rows before it; learns them all."""
        rows = []
        for i in range(len(slots)):
            rows.append(self._predict(x[i : i + 1]))
            self._learn(x[i : i + 1], slots[i : i + 1])
        return np.concatenate(rows)

    @abstractmethod
    def _state(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load_state(self, state: dict[str, Any]) -> None: ...

    # Checking, before anything changes.

    def _checked(self, xs: Any, ys: Sequence[Hashable] | None = None) -> np.ndarray:
        """xs as an array, after everything that could be wrong with it or with the labels has been looked for."""
        x = as_examples(xs, self.position, missing=self.missing)
        if len(x) == 0 or (ys is not None and len(ys) != len(x)):
            raise BadInput(f"example {self.position}: got {len(x)} inputs and {0 if ys is None else len(ys)} labels")
        check_shape(x, self.shape, self.position)
        if self.standardise is False:
            check_float32(x, self.position)
        if ys is not None:
            check_labels(self.labels, ys, self.position)
        return x

    def _make_ready(self, x: np.ndarray) -> None:
        """`_prepare`, where too little memory is a sentence as well."""
        try:
            self._prepare(x)
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            shape = x.shape[1:]
            raise BadInput(
                f"example {self.position}: x has shape {shape}, for which there is not enough memory"
            ) from None

    def _one(self, x: Any) -> np.ndarray:
        """One example as several."""
        return as_examples(x, self.position, missing=self.missing, one=True)

    def _admitted(self, xs: Any, ys: Any) -> tuple[np.ndarray, list[Hashable]]:
        """Examples and labels to learn from, converted and checked."""
        x = as_examples(xs, self.position, missing=self.missing)
        y = as_labels(ys, len(x), self.position)
        return self._checked(x, y), y

    @contextmanager
    def _taking(self, x: np.ndarray, ys: Sequence[Hashable]) -> Iterator[np.ndarray]:
        """The units of the labels of examples that are learnt inside; where they are refused there, nothing has changed."""
        known, shape = len(self.labels), self.shape
        slots = self._commit(x, ys)
        try:
            yield slots
        except PrequentialError:
            self._undo(known, shape)
            raise

    def _undo(self, known: int, shape: tuple[int, ...] | None) -> None:
        """Takes `_commit` back. What `_learn` and `_observe` changed before they refused, they take back themselves."""
        labels = self.labels.state()
        self.labels.load_state({**labels, "known": labels["known"][:known]})
        self.shape = shape

    def _commit(self, x: np.ndarray, ys: Sequence[Hashable]) -> np.ndarray:
        self.shape = x.shape[1:]
        return np.asarray(self.labels.assign(ys), dtype=np.int64)


def check_seed(seed: int) -> None:
    """Refuses a seed that random generators do not take."""
    if seed < 0:
        raise BadSetting(f"seed ({seed}) must be at least 0")


def check_missing(missing: bool, standardise: bool | None) -> None:
    """Refuses missing features where nothing takes their place."""
    if missing and standardise is False:
        raise BadSetting("standardise (False) must be True where features may be missing: a missing one is the mean")


def charge(log_p: np.ndarray, slots: np.ndarray, known: np.ndarray) -> Charges:
    """What each example costs, given the log-probabilities of all units and how many labels were known at that time.

    The mass on units no label has been given yet is shared equally among the labels that could still come, so the
    probabilities of all `capacity` labels add up to one and a label never met before costs exactly what was set
    aside for it.
    """
    n, capacity = log_p.shape
    log_p = log_p.astype(np.float64)
    rows = np.arange(n)
    log_loss = -log_p[rows, slots]
    for i in np.flatnonzero(slots >= known):
        rest = log_p[i, known[i] :]
        log_loss[i] = -(np.logaddexp.reduce(rest) - np.log(capacity - known[i]))
    met = np.where(np.arange(capacity) < known[:, None], log_p, -np.inf)  # (n, capacity)
    predicted = np.where(known > 0, met.argmax(1), -1)
    confidence = np.where(known > 0, np.exp(met[rows, np.maximum(predicted, 0)]), 0.0)
    return Charges(log_loss, predicted, predicted == slots, confidence)
