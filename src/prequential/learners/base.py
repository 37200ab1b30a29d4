"""The interface of every learner: what users call."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from prequential.deprecation import warn_renamed
from prequential.errors import BadInput, BadSetting
from prequential.labels import num_seen_before
from prequential.learners import by_id
from prequential.learners.charges import Charges, Probabilities, charge
from prequential.learners.gate import as_labels, check_labels
from prequential.learners.saving import SavedLearner
from prequential.streams.stream import Stream


class OnlineLearner(SavedLearner):
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

    def decide_schema(self, rows: Any) -> None:
        """Lets these rows decide how rows with named fields are read, for good; no-op where that is decided."""
        by_id.decide_schema(self, rows)

    def check_examples(self, xs: Any, ys: Sequence[Hashable] | None = None) -> np.ndarray:
        """Several examples as an array, if they could be learned with these labels; otherwise a `BadInput` says why.

        Changes nothing. `observe` takes the array, or any part of it, in place of xs.
        """
        with self._guard.reading():
            x = self._checked(xs)
            if ys is not None:
                self.check_labels(as_labels(ys, len(x), self.position))
            return x

    def check_example(self, x: Any) -> np.ndarray:
        """One example as an array (1, ...), if it could be predicted; otherwise a `BadInput` says why."""
        with self._guard.reading():
            return self._checked_one(x)

    def check_labels(self, ys: Sequence[Hashable]) -> None:
        """Refuses labels of which one could not be learned, by a `BadInput`. Changes nothing."""
        with self._guard.reading():
            check_labels(self.labels, list(ys), self.position)

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
            return self._probabilities(*self._log_proba_one(x, id))

    def _probabilities(self, log_p: np.ndarray, known: int) -> Probabilities:
        """Log-probabilities (capacity,), of which so many are of labels seen before, by label."""
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
        if hasattr(y, "detach") and hasattr(y, "item"):  # a tensor: it is the number in it
            y = y.item()
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


def check_seed(seed: int) -> None:
    """Refuses a seed that random generators do not take."""
    if seed < 0:
        raise BadSetting(f"seed ({seed}) must be at least 0")


def check_missing(missing: bool, standardize: bool | None) -> None:
    """Refuses missing features where nothing takes their place."""
    if missing and standardize is False:
        raise BadSetting("standardize (False) must be True where features may be missing: a missing one is the mean")
