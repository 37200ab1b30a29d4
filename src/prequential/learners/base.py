"""The interface of every learner."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self, TypeVar

import numpy as np

from prequential.deprecation import warn_renamed
from prequential.errors import BadCheckpoint, BadInput, BadSetting, one_line, short
from prequential.labels import Labels, join_rows, num_seen_before, weigh_unseen
from prequential.learners import by_id
from prequential.learners.asked import Asked, Event
from prequential.learners.charges import Charges, Probabilities, charge
from prequential.learners.gate import as_examples, as_labels, check_float32, check_labels, check_shape, checked_lags
from prequential.learners.outliers import Hint
from prequential.learners.row_reader import RowReader
from prequential.learners.transaction import Guard, Uninterrupted
from prequential.memory_limits import check_fits, ran_out
from prequential.storage.checkpoint import allow, loading, read_checkpoint, write_checkpoint
from prequential.storage.files import remove_temporaries, storage
from prequential.streams.stream import Stream
from prequential.trust import stored_arguments

Made = TypeVar("Made")


class OnlineLearner(ABC):
    """A classifier that predicts each example of a stream from x and the past, and then learns it.

    A subclass writes `_predict`, `_learn`, `_state_dict` and `_load_state_dict` (and `_observe` where several examples
    can be processed faster than one by one). It sees labels as class ids 0, 1, 2, ... in the order of first appearance,
    and gives each of the `labels.capacity` class ids a probability, also those that have no label yet. All of the latter
    together weigh as one label that was seen would (`labels.py`): `num_seen` is how many were, before the next example.

    Where the number of classes is not given, the capacity grows before a call, so that a class id stays free after it.
    What a subclass has of that size it makes larger in `_grow`, or on the way.

    All methods may be called from several threads: calls that change the learner are serialized, and each prediction
    uses the state between two of them. A call that learns is atomic: it does everything or, whatever is raised,
    nothing, in memory and on disk; Ctrl-C is deferred until it is done. `copy.deepcopy` makes an independent learner.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    missing
        Whether features may be NaN, meaning "not measured".
    """

    # names for `make_learner`, each with the options it stands for; by default the class's own name
    names: ClassVar[dict[str, dict[str, Any]]] = {}
    stride: int = 1  # how many examples `observe` processes best at once
    standardize: bool | None = None  # False: features are used as they are, which float32 must hold
    small_state = False  # whether copying the state before every call costs next to nothing

    def __init__(self, classes: int | Sequence[Hashable] | None = None, *, missing: bool = False) -> None:
        self.labels = Labels(classes)
        check_fits(32.0 * self.labels.capacity, f"classes ({self.labels.capacity})")
        self.missing = missing
        self.position = 0  # how many examples it has learned
        self.shape: tuple[int, ...] | None = None  # of one x, as in the first example
        self._rows = RowReader()
        self._guard = Guard()
        self._changing = False  # inside a call: whether there is something to undo
        self.num_seen = len(self.labels)  # labels; inside a call, before the example that comes next
        self._is_snapshot = False  # whether it only predicts
        # inside a call: how many labels arrived between the prediction of each example and its own; None: none did
        self._lags: np.ndarray | None = None
        self.asked = Asked()  # what it was asked by id, and how that went
        # inside a call, of each example: the id by which its label came, and where it came from; None: of none
        self._ids: Sequence[str] | None = None
        self._origins: Sequence[str] | None = None

    @property
    def schema(self) -> Any:
        """How rows with named fields become x: a `Schema`; None as long as there were none."""
        return self._rows.schema

    @schema.setter
    def schema(self, schema: Any) -> None:
        with self._guard.changing(), self._guard.inside():
            self._rows.give(schema, self.shape)

    def read_like(self, stream: Stream) -> None:
        """Reads rows with named fields as this stream does, whose examples come next; no-op for streams without any."""
        if stream.schema is not None:
            with self._guard.changing(), self._guard.inside():
                self._rows.follow(stream.schema, self.position, self.shape)

    # What a user calls. A name that ends in _one takes one example, one that ends in _many takes several. `predict`,
    # `predict_proba` and `learn` are short for the _one forms; `observe` is predict_many and learn_many in turns.

    def predict_one(self, x: Any, *, id: Any = None) -> Hashable | None:
        """The most probable label seen so far; None before there is one. Changes nothing.

        With an id, the learner remembers what it was asked, and `learn(id=..., y=...)` gives the label later.
        """
        with self._guard.reading() if id is None else nullcontext():
            log_p, known = self._log_proba_one(x, id)
            # of probabilities, not of their logarithms: of equal ones the first is given, as by `predict_proba_one`
            return self.labels[int(np.exp(log_p[:known]).argmax())] if known else None

    def predict_proba_one(self, x: Any, *, id: Any = None) -> Probabilities:
        """The probability of each label for one example. Changes nothing; with an id as in `predict_one`."""
        with self._guard.reading() if id is None else nullcontext():
            log_p, known = self._log_proba_one(x, id)
            p = np.exp(log_p)
            unseen = float(p[known:].sum()) if known < len(p) else 0.0
            if not self.labels.open_ended:
                unseen /= max(len(p) - known, 1)
            return Probabilities(zip(self.labels.first(known), p[:known].tolist(), strict=True), unseen)

    def predict_log_proba_one(self, x: Any, *, id: Any = None) -> Probabilities:
        """The log-probability of each label for one example, in nats. Changes nothing; with an id as in `predict_one`."""
        with self._guard.reading() if id is None else nullcontext():
            log_p, known = self._log_proba_one(x, id)
            free = 1 if self.labels.open_ended else len(log_p) - known
            unseen = float(np.logaddexp.reduce(log_p[known:])) - math.log(free) if free else -math.inf
            return Probabilities(zip(self.labels.first(known), log_p[:known].tolist(), strict=True), unseen)

    def _log_proba_one(self, x: Any, id: Any) -> tuple[np.ndarray, int]:
        """Log-probabilities (capacity,), and how many of them are of labels seen before."""
        if id is not None:
            return by_id.ask(self, x, id)
        return self._predict(self._checked_one(x))[0], len(self.labels)

    def predict_many(self, xs: Any) -> list[Hashable | None]:
        """The most probable label seen so far for each of n examples. Changes nothing."""
        with self._guard.reading():
            log_p, known = self.predict_log_proba_many(xs), self.labels.known
            return [known[k] for k in log_p[:, : len(known)].argmax(1)] if known else [None] * len(log_p)

    def predict_proba_many(self, xs: Any) -> np.ndarray:
        """Probabilities (n, capacity) of n examples, each predicted on its own; columns as in the log form."""
        log_p = self.predict_log_proba_many(xs)
        p: np.ndarray = np.exp(log_p)
        return p

    def predict_log_proba_many(self, xs: Any) -> np.ndarray:
        """Log-probabilities (n, capacity) of n examples, each predicted on its own. Changes nothing.

        Column k belongs to `labels.known[k]`; the columns after those belong to labels not seen yet.
        """
        with self._guard.reading():
            return self._predict(self._checked(xs))

    def learn_one(self, x: Any = None, y: Hashable = None, *, id: Any = None) -> Charges | None:
        """Learns from one example, or with an id and a label from what was predicted by that id before.

        Labels by id may come late and in any order. The charge of the prediction that was made then is returned. The
        same label again is ignored, another one is refused. A label that comes before its prediction waits for it.
        """
        if id is None:
            with self._guard.changing():
                self._rows.forget_decided()  # by a call that failed
                self._take_in(self._one(x), [y], self._learn, one=True)
            return None
        return by_id.learn(self, [id], [y]) if x is None else by_id.learn_with_x(self, x, y, id)

    def predict_log_proba_late(self, xs: Any, waiting: Any = None, *, since: int = 0) -> np.ndarray:
        """Log-probabilities (n, capacity) of n examples that are asked one after another, while labels are out.

        `waiting` are the examples that were asked before and whose labels have not arrived, oldest first, the last
        `since` of them since the newest label arrived. Each of xs waits, too, when the next one is asked. Changes
        nothing.
        """
        with self._guard.reading():
            x = self._checked(xs)
            rows = x[:0] if waiting is None or not len(waiting) else self._checked(waiting)
            return self._predict_late(x, rows, since)

    def learn_many(
        self, xs: Any = None, ys: Any = None, asked_at: Any = None, *, ids: Sequence[Any] | None = None
    ) -> Charges | None:
        """Learns from several examples, oldest first: from all of them, or where something is raised, from none.

        `asked_at` says how many labels this learner had been given when it was asked for each of them, where the labels
        come late. A learner that can then learns to predict without the labels in between. With ids instead of xs, it
        learns what was predicted by those ids before, as in `learn_one`.
        """
        if ids is None:
            self._take_in(xs, ys, self._learn, asked_at)
            return None
        if xs is not None:
            raise BadInput(f"example {self.position}: got xs and ids, expected one of them")
        return by_id.learn(self, ids, ys)

    def observe(self, xs: Any, ys: Sequence[Hashable], *, origins: Sequence[str] | None = None) -> Charges:
        """Predicts, scores and learns each of several examples in turn, as `predict` and `learn` one by one would.

        `origins` says where each came from; the journal of a live learner keeps it.
        """
        return self._take_in(xs, ys, self._charged, origins=origins)

    def observe_late(
        self, waiting: Any, xs: Any, ys: Sequence[Hashable], asked_at: Any = None, *, since: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Predicts n examples in turn, and after each of them learns the oldest one whose label is still out.

        `waiting` and `since` are as for `predict_log_proba_late`; `ys` (n,) are the labels of the n oldest of `waiting`
        and `xs` together, and `asked_at` is theirs. Gives the log-probabilities
        (n, capacity) of xs, and how many labels had been seen when each was asked.
        """
        with self._guard.changing():
            rows = self._checked(xs)
            if len(ys) != len(rows):
                raise BadInput(f"example {self.position}: got {len(rows)} inputs and {len(ys)} labels")
            if len(waiting):
                rows = np.concatenate([self._checked(waiting), rows])
            return self._take_in(rows[: len(ys)], ys, lambda _, ids: self._ask_and_learn(rows, ids, since), asked_at)

    def _ask_and_learn(self, rows: np.ndarray, class_ids: np.ndarray, since: int) -> tuple[np.ndarray, np.ndarray]:
        num_seen = num_seen_before(class_ids, self.num_seen)
        return self._observe_late(rows, class_ids, since), num_seen

    def predict(self, x: Any, *, id: Any = None) -> Hashable | None:
        """Short for `predict_one`."""
        return self.predict_one(x, id=id)

    def predict_proba(self, x: Any, *, id: Any = None) -> Probabilities:
        """Short for `predict_proba_one`."""
        return self.predict_proba_one(x, id=id)

    def learn(self, x: Any = None, y: Hashable = None, *, id: Any = None) -> Charges | None:
        """Short for `learn_one`."""
        return self.learn_one(x, y, id=id)

    def limit_asked(self, **limits: Any) -> None:
        """Sets how much may wait for labels: `max_pending`, `max_seconds` and `max_bytes`, as in `Asked`."""
        by_id.limit(self, limits)

    def predict_log_proba(self, xs: Any) -> np.ndarray:
        """Deprecated: `predict_log_proba_many`."""
        warn_renamed("predict_log_proba", "predict_log_proba_many")
        return self.predict_log_proba_many(xs)

    def state(self) -> dict[str, Any]:
        """Deprecated: `state_dict`."""
        warn_renamed("state", "state_dict")
        return self.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        """Deprecated: `load_state_dict`."""
        warn_renamed("load_state", "load_state_dict")
        self.load_state_dict(state)

    def _charged(self, x: np.ndarray, class_ids: np.ndarray) -> Charges:
        # an example's label may be new, and labels new in this call count as seen only for the examples after it
        num_seen = num_seen_before(class_ids, self.num_seen)
        log_p = self._observe(x, class_ids)
        return charge(log_p, class_ids, num_seen, open_ended=self.labels.open_ended)

    def replay_from(self, stream: Stream | None) -> None:
        """Declares that the past and the coming examples are those of this stream, from its start on.

        So a learner can read examples before `position` again from the stream, instead of keeping a copy. None: the
        coming examples are not from that stream. Learners without replay ignore it.
        """

    def flush(self) -> None:
        """Learns from pending examples now. Learners without pending examples ignore it."""

    def macs_per_example(self) -> float | None:
        """Multiply-accumulates spent per example on predicting and learning; None where they are not counted."""
        return None

    @property
    def skipped_steps(self) -> int:
        """Gradient steps that were not taken because the gradient was not finite."""
        return 0

    def hints(self, names: Sequence[str] | None = None) -> list[str]:
        """Suspicious values in the features, at most one sentence for each; `names` are those of the features."""
        examples, names = self.position, names if names is not None else self._names
        return [
            hint.sentence(examples, names[hint.feature] if names is not None and hint.feature < len(names) else None)
            for hint in self._hints()
        ]

    def _hints(self) -> list[Hint]:
        return []

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything that future predictions depend on: nested dicts of arrays, tensors and JSON values."""
        self._check_can_learn()  # a snapshot has not all of it
        with self._alone():
            return self._whole_state()

    def _whole_state(self) -> dict[str, Any]:
        shape = None if self.shape is None else list(self.shape)
        return {
            "labels": self.labels.state_dict(),
            "position": self.position,
            "shape": shape,
            **({} if self.schema is None else {"schema": self.schema.to_dict()}),
            **({"asked": self.asked.state_dict()} if self.asked.used else {}),
            "learner": self._state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores exactly the moment at which `state_dict()` was taken."""
        with self._guard.changing(), self._guard.inside(whole=False):
            self._check_state(state)
            schema = self._stored_schema(state)
            try:
                if schema is not None:
                    self._rows.load(schema)
                self.labels.load_state_dict(state["labels"])
                self.num_seen = len(self.labels)
                self.position = int(state["position"])
                self.shape = None if state["shape"] is None else tuple(state["shape"])
                self.asked = Asked()
                if "asked" in state:
                    self.asked.load_state_dict(state["asked"])
                self._load_state_dict(state["learner"])
            except BaseException as error:
                self._mark_broken(error)
                raise
            self._guard.broken = self._guard.mend = None

    @staticmethod
    def _stored_schema(state: dict[str, Any]) -> Any:
        """How rows are read, as it was saved; None where nothing was."""
        if (stored := state.get("schema")) is None:
            return None
        from prequential.streams.formats.schema import Schema

        schema = Schema.from_dict(stored)
        if state["shape"] is not None and list(state["shape"]) != [schema.width]:
            raise BadCheckpoint(f"its schema makes {schema.width} features, but x has shape {state['shape']!r}")
        return schema

    def _check_state(self, state: dict[str, Any]) -> None:
        """Refuses the state of another kind of learner, before anything is allocated for it."""
        capacity, position, shape = state["labels"]["capacity"], state["position"], state["shape"]
        classes = None if state["labels"].get("open_ended", False) else capacity
        if classes != self.labels.classes:
            raise BadCheckpoint(f"it was saved with classes {classes!r}, expected {self.labels.classes}")
        if type(capacity) is not int or capacity < 1:
            raise BadCheckpoint(f"it was saved with {short(capacity)} class ids, expected a whole number")
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
        self._check_can_learn()
        with self._alone(), storage(Path(path)), self._beside(Path(path)) as more:
            kind = {"kind": type(self).__name__, "module": type(self).__module__}
            saved = {**kind, "config": self.config(), "state": self._whole_state(), **more}
            write_checkpoint(Path(path), saved)
            remove_temporaries(Path(path).parent, shared=True, of=Path(path).name)  # of saves that were killed

    @contextmanager
    def _beside(self, path: Path) -> Iterator[dict[str, Any]]:
        """Writes data that does not go into the file beside it; yields what the file says of it. By default nothing."""
        yield {}

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
            learner._load_beside(Path(path), saved)
            learner.load_state_dict(saved["state"])
        return learner

    def _load_beside(self, path: Path, saved: dict[str, Any]) -> None:
        """Reads what `save` left beside the file, before the state is loaded. By default nothing."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if self._is_snapshot:  # nothing can change it
            return self
        with self._alone():
            copied = self._copied(snapshot=False)
        memo[id(self)] = copied
        return copied

    def snapshot(self) -> Self:
        """A copy of this moment to predict from while the learner learns on; it cannot learn.

        It copies what predicts, and nothing that only learning needs: no journal, no optimizer.
        """
        if self._is_snapshot:
            return self
        with self._alone():
            return self._copied(snapshot=True)

    def _copied(self, *, snapshot: bool) -> Self:
        copied = type(self)(**self.config(), **self._unsaved())
        asked = self.asked
        try:
            self.asked = Asked() if snapshot else asked  # a snapshot remembers nothing
            copied._take_copy(self, snapshot=snapshot)
        finally:
            self.asked = asked
        copied._is_snapshot = snapshot
        return copied

    def _check_can_learn(self) -> None:
        if self._is_snapshot:
            raise BadInput(
                "this learner is a snapshot, which only predicts; learn with the one it was taken of and save that, or "
                "a copy.deepcopy of it"
            )

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={one_line(repr(value), 60)}" for name, value in self._shown_settings().items())
        return f"<{type(self).__name__}({given}): {', '.join(self._standing())}>"

    def _shown_settings(self) -> dict[str, Any]:
        """The arguments that differ from the defaults."""
        defaults = {name: given.default for name, given in inspect.signature(type(self)).parameters.items()}
        return {name: value for name, value in self.config().items() if name not in defaults or value != defaults[name]}

    def _standing(self) -> list[str]:
        """Where it stands, for `repr`."""
        known = len(self.labels)
        return [
            f"{self.position:,} example{'s' * (self.position != 1)} learned",
            f"{known:,} label{'s' * (known != 1)} seen",
            *([f"{len(self.asked):,} predictions wait for labels"] if len(self.asked) else []),
            *(["a snapshot"] if self._is_snapshot else []),
        ]

    def _unsaved(self) -> dict[str, Any]:
        """Arguments of the constructor that are not part of what is saved."""
        return {}

    def _take_copy(self, other: Self, *, snapshot: bool) -> None:
        """Copies the state of another learner that was made with the same arguments; for a snapshot, not its past."""
        self.load_state_dict(other._whole_state())

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        name = type(self).__name__
        raise BadInput(
            f"a {name} cannot be pickled: save(path) and {name}.load(path) bring it to another process, and "
            "copy.deepcopy(learner) makes another one here"
        )

    # What a subclass writes. x is checked, (n, *shape); class_ids are those of the labels, (n,) int64.

    def config(self) -> dict[str, Any]:
        """The arguments that build this learner anew, as JSON values; by default its attributes of the same names."""
        names = [name for name in inspect.signature(type(self)).parameters if name != "classes"]
        return {"classes": self.labels.classes, **{name: getattr(self, name) for name in names}}

    def _prepare(self, x: np.ndarray) -> None:
        """Makes what depends on the shape of x, before the first example is learned; may refuse it."""

    @abstractmethod
    def _predict(self, x: np.ndarray) -> np.ndarray:
        """Log-probabilities (n, capacity), each example on its own; must not change the learner."""

    def _predict_late(self, x: np.ndarray, waiting: np.ndarray, since: int) -> np.ndarray:
        """The same for examples asked one after another behind others, all without labels; by default no different.

        The last `since` of those others were asked after the newest label arrived.
        """
        return self._predict(x)

    @abstractmethod
    def _learn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        """Learns from the examples in order."""

    def _observe(self, x: np.ndarray, class_ids: np.ndarray) -> np.ndarray:
        """Log-probabilities (n, capacity), row i predicted after learning the rows before it; learns them all."""
        rows = []
        for i in range(len(class_ids)):
            rows.append(self._predict(x[i : i + 1]))
            self._learn(x[i : i + 1], class_ids[i : i + 1])
            self._count_labels(class_ids[i : i + 1])
        return np.concatenate(rows)

    def _observe_late(self, rows: np.ndarray, class_ids: np.ndarray, since: int) -> np.ndarray:
        """Predicts each of the last n rows, and then learns the next of the first n, which have these labels."""
        asked, waiting = rows[len(rows) - len(class_ids) :], len(rows) - len(class_ids)
        predicted, num_seen = [], num_seen_before(class_ids, self.num_seen)
        for i in range(len(class_ids)):
            predicted.append(self._predict_late(asked[i : i + 1], rows[i : i + waiting], 0 if i else since))
            self._learn(rows[i : i + 1], class_ids[i : i + 1])
            self._count_labels(class_ids[i : i + 1])
        return join_rows(predicted, num_seen, self.labels.capacity)

    def _count_labels(self, class_ids: np.ndarray) -> None:
        """These examples have been learned: what is predicted next knows their labels."""
        self.num_seen = max(self.num_seen, largest(class_ids) + 1)

    def _grow(self, capacity: int) -> None:
        """Makes room for this many class ids: the free ones are all alike. Does it, or where something is raised, not.

        Probabilities of labels that were seen must not change by it, and neither may that of all others together.
        """

    @abstractmethod
    def _state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load_state_dict(self, state: dict[str, Any]) -> None: ...

    # Checking, before anything changes.

    def _checked(self, xs: Any) -> np.ndarray:
        """xs as an array, after all checks of examples."""
        rows = self._rows.find(xs)
        missing = self._takes_missing(rows=rows is not None)
        if rows is not None:
            xs = self._rows.encoded(rows, first=self.position, shape=self.shape)
        return self._check(as_examples(xs, self.position, missing=missing, names=self._names))

    def _checked_one(self, x: Any) -> np.ndarray:
        """One example as an array (1, *shape), after all checks."""
        rows = self._rows.find(x, one=True)
        return self._checked(rows) if rows is not None else self._check(self._one_array(x))

    def _check(self, x: np.ndarray) -> np.ndarray:
        """The same examples, as `as_examples` gives them, if they are like those before."""
        if len(x) == 0:
            raise BadInput(f"example {self.position}: got 0 inputs and 0 labels")
        check_shape(x, self.shape, self.position)
        if self.standardize is False:
            check_float32(x, self.position)
        return x

    @property
    def _relearning(self) -> bool:
        """Whether it is learning its own journal again, in which version 0.1 may have kept the label None."""
        return False

    def _make_ready(self, x: np.ndarray) -> None:
        """`_prepare`, where too little memory gives a sentence as well."""
        try:
            self._prepare(x)
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            shape = x.shape[1:]
            raise BadInput(
                f"example {self.position}: x has shape {shape}, for which there is not enough memory"
            ) from None

    def _takes_missing(self, *, rows: bool = False) -> bool:
        """Whether x may hold NaN: where the user says so, and in rows, if the learner can be made to take it."""
        if self.missing or self._relearning:
            return True
        return (rows or self.schema is not None or self._rows.decides) and self._fills_missing

    @property
    def _fills_missing(self) -> bool:
        """Whether something takes the place of missing values."""
        return self.standardize is not False and _knows_missing(type(self))

    @property
    def _names(self) -> list[str] | None:
        """The names of the features, where they have some."""
        return None if self.schema is None else self.schema.feature_names

    def _one(self, x: Any) -> Any:
        """One example as several: rows with named fields, or an array that `as_examples` has checked."""
        rows = self._rows.find(x, one=True)
        return rows if rows is not None else self._one_array(x)

    def _one_array(self, x: Any) -> np.ndarray:
        return as_examples(x, self.position, missing=self._takes_missing(), one=True, names=self._names)

    def _admitted(self, xs: Any, ys: Any, *, one: bool) -> tuple[np.ndarray, list[Hashable]]:
        """Examples and labels to learn from, converted and checked; `one` is what `_one` gives."""
        if one and type(xs) is np.ndarray:
            x = xs
        else:
            xs = self._rows.learnable(xs, first=self.position, shape=self.shape)
            x = as_examples(xs, self.position, missing=self._takes_missing(), names=self._names)
        y = ys if one else as_labels(ys, len(x), self.position)
        x = self._check(x)
        check_labels(self.labels, y, self.position, allow_none=self._relearning)
        return x, y

    # All or nothing.

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the learner exclusively, after steps that run in a thread are finished."""
        with self._guard.changing():
            self._wait()
            with self._guard.inside():
                yield

    def _wait(self, count: int | None = None) -> None:
        """Waits until so many examples can be learned at once (None: until no step runs); others may predict."""

    def _take_in(
        self,
        xs: Any,
        ys: Sequence[Hashable],
        act: Callable[[np.ndarray, np.ndarray], Made],
        asked_at: Any = None,
        *,
        ids: Sequence[str] | None = None,
        origins: Sequence[str] | None = None,
        one: bool = False,
    ) -> Made:
        """Calls `act` with checked examples, which it learns; if anything is raised, nothing has changed.

        `one`: xs are what `_one` gives, and ys a list.
        """
        with self._guard.changing():
            self._check_can_learn()
            x, y = self._admitted(xs, ys, one=one)
            self._lags = None if asked_at is None else checked_lags(asked_at, len(x), self.position)
            self._ids, self._origins = ids, origins
            self._wait(len(x))

            def take() -> Made:
                self._make_ready(x)
                if self._rows.adopt():
                    self._keep_schema()
                class_ids = self._accept(x, y)
                self._begin_call(class_ids)
                self._changing = True
                made = act(x, class_ids)
                self.position += len(class_ids)
                self.num_seen = len(self.labels)
                return made

            return self._attempt(len(x), take)

    def _attempt(self, count: int, act: Callable[[], Made]) -> Made:
        """Calls what learns so many examples; if it raises after setting `_changing`, the learner is restored."""
        with self._guard.inside(), Uninterrupted() as self._guard.signals:
            before = self._before(count)
            self._changing = False
            try:
                return act()
            except BaseException as error:
                self._revert(before, error)
                raise
            finally:
                self._release_snapshot()

    def _before(self, count: int) -> dict[str, Any]:
        """What it takes to undo a call that learns so many examples."""
        snapshot = self._snapshot() if self.position == 0 or self._needs_snapshot(count) else None
        labels = {"known": len(self.labels), "capacity": self.labels.capacity}
        return {**labels, "shape": self.shape, "schema": self.schema, "snapshot": snapshot}

    def _needs_snapshot(self, count: int) -> bool:
        """Whether the state is copied before a call that learns so many examples, to undo it if it fails.

        By default where the copy costs little: a small state, or a call of more than one chunk.
        """
        return self.small_state or count > self.stride

    def _snapshot(self) -> Any:
        """What `_restore` needs to undo a call. Learners with large states may return less than all of it."""
        return self._state_dict()

    def _restore(self, snapshot: Any) -> None:
        self._load_state_dict(snapshot)

    def _release_snapshot(self) -> None:
        """The call is over: what was recorded to undo it is no longer needed."""

    def _revert(self, before: dict[str, Any], error: BaseException) -> None:
        """Restores everything; if that is impossible, the learner refuses all further calls."""
        self.labels.forget(before["known"])
        self.labels.capacity, self.num_seen = before["capacity"], before["known"]
        self.shape = before["shape"]
        self._rows.schema = before["schema"]
        try:
            if before["snapshot"] is not None:
                if self._changing or self.position == 0:
                    self._restore(before["snapshot"])
            elif self._changing:
                self._recover(error)
        except BaseException as second:
            self._mark_broken(error if isinstance(second, NotImplementedError) else second)
        self._changing = False

    def _recover(self, error: BaseException) -> None:
        """Restores the state from a save and the journal. By default there is none."""
        raise NotImplementedError

    def _mark_broken(self, error: BaseException) -> None:
        why = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        self._guard.broken = (
            f"this learner stopped inside a step ({why}), so that its state is inconsistent; load an earlier save"
        )

    def _keep_schema(self) -> None:
        """Keeps the schema that the first rows decide, before they are learned. By default in the state alone."""

    def _keep_events(self, events: list[Event]) -> None:
        """Writes down what it was asked, before it is remembered. By default nowhere."""

    def _accept(self, x: np.ndarray, ys: Sequence[Hashable]) -> np.ndarray:
        self.shape = x.shape[1:]
        return np.asarray(self.labels.assign(ys), dtype=np.int64)

    def _begin_call(self, class_ids: np.ndarray) -> None:
        """Before examples with these class ids are learned."""
        self._make_room(class_ids)

    def _make_room(self, class_ids: np.ndarray) -> None:
        """Grows, where after these class ids none would be free."""
        capacity = self.labels.capacity_for(largest(class_ids) + 1)
        if capacity > self.labels.capacity:
            self._grow(capacity)
            self.labels.capacity = capacity


def largest(class_ids: np.ndarray) -> int:
    """The largest of some class ids; of one alone without NumPy, which takes ten times as long."""
    return int(class_ids[0]) if len(class_ids) == 1 else int(class_ids.max())


@lru_cache
def _knows_missing(kind: type) -> bool:
    """Whether learners of a class can be made to take missing values."""
    return "missing" in inspect.signature(kind).parameters


def uniform_where_nan(log_p: np.ndarray) -> np.ndarray:
    """Log-probabilities (..., classes), uniform where a network that has diverged gives no number."""
    if not math.isnan(log_p.sum()):  # the usual case: a sum is faster than a look at each
        return log_p
    broken = np.isnan(log_p).any(-1, keepdims=True)
    return np.where(broken, -np.log(log_p.shape[-1]), log_p).astype(log_p.dtype) if broken.any() else log_p


def prior_where_nan(log_p: np.ndarray, num_seen: np.ndarray) -> np.ndarray:
    """Log-probabilities (n, classes), those of the prior where a network that has diverged gives no number."""
    broken = np.isnan(log_p).any(-1, keepdims=True)
    if not broken.any():
        return log_p
    prior = weigh_unseen(uniform_log_proba(*log_p.shape), num_seen)
    return np.where(broken, prior, log_p).astype(log_p.dtype)


def uniform_log_proba(count: int, classes: int) -> np.ndarray:
    """Log-probabilities (count, classes) with all classes equally probable: the prediction before any example."""
    return np.full((count, classes), -np.log(classes))


def prior_log_proba(count: int, num_seen: int, classes: int) -> np.ndarray:
    """Log-probabilities (count, classes) where nothing is known but how many labels have been seen."""
    return weigh_unseen(uniform_log_proba(count, classes), np.full(count, num_seen))


def check_seed(seed: int) -> None:
    """Refuses a seed that random generators do not take."""
    if seed < 0:
        raise BadSetting(f"seed ({seed}) must be at least 0")


def check_missing(missing: bool, standardize: bool | None) -> None:
    """Refuses missing features where nothing takes their place."""
    if missing and standardize is False:
        raise BadSetting("standardize (False) must be True where features may be missing: a missing one is the mean")
