"""The learner of the paper: a transformer with the recent past in context, trained online with replay-streams."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np

from prequential.errors import BadInput, EngineWarning
from prequential.imports import import_object, is_object_name
from prequential.labels import join_rows, num_seen_before
from prequential.learners.abstract import largest
from prequential.learners.base import check_missing
from prequential.learners.chunked import Ask
from prequential.learners.device import find_device
from prequential.learners.gate import check_float32, check_image_dtype
from prequential.learners.home_learner import HomeLearner
from prequential.learners.inputs import Rows
from prequential.learners.log_proba import uniform_log_proba
from prequential.learners.normalizer import After
from prequential.learners.outliers import Hint
from prequential.learners.replay import ReplayChunk
from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.engine import Choice, EngineName, changed_engine, choose_engine
from prequential.learners.transformer.ensemble import Prediction
from prequential.learners.transformer.one_row import OneRow
from prequential.learners.transformer.parts import Parts, check_memory, make_parts
from prequential.learners.transformer.passes import NetworkPass
from prequential.learners.transformer.predictor import IdleTrainer, copy_predictor
from prequential.learners.transformer.state_migrations import migrate_learner_state
from prequential.learners.versioned import Versioned
from prequential.models.extractors.own import name_of
from prequential.models.lookback import MAX_LAG
from prequential.models.make import OwnNetwork
from prequential.models.transformer import Transformer
from prequential.renames import SETTINGS, takes_old_names
from prequential.settings import Settings
from prequential.specs import parse_call
from prequential.streams.journal.log import Durability

QUERIES_AT_ONCE = 128  # examples predicted in one pass where labels come late


class LastPrediction(NamedTuple):
    """The latest prediction of a single x: learning that x next computes nothing twice."""

    dtype: np.dtype[Any]
    x: bytes
    normalized: tuple[np.ndarray, After | None] | None  # what `Inputs.predict` gave; None: `OneRow` has it
    prediction: Prediction | None  # None: `OneRow` has it

    def is_of(self, x: np.ndarray) -> bool:
        """Whether it is of this x; by bytes, as 0 and -0 are equal."""
        return len(x) == 1 and x.dtype == self.dtype and x.tobytes() == self.x


@takes_old_names(SETTINGS)
class Learner(HomeLearner):
    """The default learner: a transformer with the recent labeled past in its context, trained online with replay.

    A learned example is in the context of the next prediction at once. Every `chunk_size` examples there is a gradient
    step on them, and one on a chunk of each replay stream. Chunks are the same however examples arrive, one by one or
    many at once, so results do not depend on it.

    By default several predictions are mixed by their past losses: the transformer's, the labels of similar examples in
    the window, and those of the nearest of the last few thousand examples. A moving average of the parameters predicts.
    `method="paper"` is the plain transformer.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    settings
        All settings at once. Single ones can also be given by name: `Learner(width=64)`.
    home
        A directory in which a live learner keeps its examples and its saves; `Learner.open(home)` continues from it.
        Only one learner at a time can use it. Without a home, examples are in a temporary directory.
    durability
        When a home is synced to disk, so that it survives even a power cut: after this many examples, "sync" for after
        every call, or "save" for only when it is saved. A killed process loses nothing either way.
    device
        Where to compute: auto, cpu, cuda, cuda:1, ...
    missing
        Whether features may be NaN, meaning "not measured".
    schema
        How rows with named fields (dicts, data frames) become x, a `Schema`: that of a `TableStream` or
        `Schema.from_rows(...)`. By default the first rows decide it.

    Examples
    --------
    >>> learner = Learner(classes=2, width=16, depth=1, window=8, chunk_size=4, num_streams=2)
    >>> for t in range(40):
    ...     learner.learn([t % 3, 1.0], "yes" if t % 3 else "no")
    >>> learner.predict([1, 1.0])
    'yes'
    """

    predicts_in_training = True

    def __init__(
        self,
        classes: int | Sequence[Hashable] | None = None,
        *,
        settings: Settings | None = None,
        home: str | Path | None = None,
        durability: Durability = 100,
        device: str = "auto",
        missing: bool = False,
        schema: Any = None,
        **changes: Any,
    ) -> None:
        super().__init__(classes, missing=missing)
        self.schema = schema
        extractor = changes.get("extractor")
        if extractor is not None and not isinstance(extractor, str):
            changes["extractor"] = name_of(extractor)
        self.settings = (settings or Settings()).changed(**changes)
        self._own_extractor = _find_own_extractor(self.settings.extractor, extractor)
        check_missing(missing, self.settings.standardize)
        self.device = find_device(device)
        if self.settings.engine == "native":
            choose_engine(self.settings, device=self.device)  # refuses it at once where it cannot be used
        self.engine_note: str | None = None  # where another engine had saved what was loaded
        check_memory(self.settings, 1, num_classes=self.labels.capacity, device=self.device)
        self.stride = self.settings.chunk_size
        self._parts: Parts | None = None  # made when the first example shows what x looks like
        self._num_seen = Versioned(len(self.labels))  # labels seen so far
        self._num_late = 0  # examples in finished chunks whose labels came late
        self._to_replay: list[ReplayChunk] = []  # what the next turn replays, as it was read
        self._last_prediction: LastPrediction | None = None  # if it was of one x, and nothing was learned since
        self._process = os.getpid()
        if home is not None:
            self._settle_new(home, durability)

    @property
    def _fills_missing(self) -> bool:
        return self.settings.standardize is not False

    @property
    def model(self) -> Transformer | None:
        """The network, once there is one."""
        return None if self._parts is None else self._parts.trainer.model

    def config(self) -> dict[str, Any]:
        return {"classes": self.labels.classes, "missing": self.missing, **asdict(self.settings)}

    def macs_per_example(self) -> float | None:
        """A forward and a backward pass (twice a forward one) in each of the streams, and what the other experts take.

        One more forward pass where what predicts is not the pass that learns: an EMA, async steps, or dropout; and one
        more for those examples whose labels came late, which were predicted long before.
        Where learning was stopped it is the average so far: from there on, there is one forward pass.
        """
        if self._parts is None:
            return None
        forward, others = self._parts.ensemble.network.macs(), self._parts.ensemble.macs()
        learning = (3.0 * self.settings.num_streams + self._parts.trainer.separate) * forward + others
        if self._num_late:
            learning += (forward + others) * self._num_late / max(self.num_committed, 1)
        stop = self.settings.freeze_at
        if stop is None or stop >= self.position:
            return learning
        return (stop * learning + (self.position - stop) * (forward + others)) / self.position

    @property
    def engine(self) -> Choice | None:
        """What computes, once the first example has shown what x looks like."""
        return None if self._parts is None else self._parts.trainer.engine

    @property
    def stepping(self) -> bool:
        """Whether gradient steps are under way in a thread (`async_steps`)."""
        return self._parts is not None and self._parts.trainer.busy

    @property
    def skipped_steps(self) -> int:
        return 0 if self._parts is None else self._parts.trainer.skipped_steps

    def _hints(self) -> list[Hint]:
        return [] if self._parts is None else self._parts.inputs.hints()

    # Predicting and learning.

    def _predict(self, x: np.ndarray) -> np.ndarray:
        if self._parts is None:
            return uniform_log_proba(len(x), self.labels.capacity)
        one_row = self._parts.ensemble.one_row
        if one_row is not None and len(x) == 1 and not self.settings.label_delay:
            return self._predict_one(one_row, x)
        rows, after = self._parts.inputs.predict(x)
        num_seen = np.array([self._num_seen.current] * len(x))  # np.full takes three times as long
        queries = Queries(rows.features, num_seen, raw=rows.raw)
        if self.settings.label_delay:
            missing = np.zeros(len(x), dtype=np.int64)
            queries = replace(queries, missing=missing, position=missing + self.settings.label_delay)
        with self._parts.trainer.predicting():
            prediction = self._parts.ensemble.predict(queries)
        if len(x) == 1:
            self._last_prediction = LastPrediction(x.dtype, x.tobytes(), (rows.features, after), prediction)
        return prediction.log_probs.copy()  # it is the caller's, and the prediction may be used again

    def _predict_one(self, one_row: OneRow, x: np.ndarray) -> np.ndarray:
        """The same for one example in the native core."""
        assert self._parts is not None
        self._parts.trainer.check()
        inputs, num_seen = self._parts.inputs, self._num_seen.current
        normalizer, normalized, log_probs = inputs.calm_normalizer, None, None
        if normalizer is not None:
            log_probs = one_row.normalize_and_predict(inputs.next_rows(x), normalizer, num_seen)
        if log_probs is None:
            (features, raw), after = inputs.predict(x)
            normalized = features, after
            log_probs = one_row.predict(features, num_seen, raw=raw)
        self._last_prediction = LastPrediction(x.dtype, x.tobytes(), normalized, None)
        return log_probs.copy()

    def _predict_late(self, x: np.ndarray, waiting: np.ndarray, since: int) -> np.ndarray:
        if self._parts is None or (len(x) == 1 and not len(waiting)):
            return self._predict(x)
        asked = self.position + len(waiting)  # before the first of x
        waiting = waiting[-MAX_LAG:]
        context = min(since, len(waiting), asked % self.stride)
        rows = self._parts.inputs.predict_sequence(np.concatenate([waiting, x]), len(waiting) - context)
        position = len(waiting) + np.arange(len(x))
        num_seen = np.full(len(x), self._num_seen.current)
        chunk = (asked + np.arange(len(x))) // self.stride
        return self._answer(rows, num_seen, np.zeros_like(position), position, chunk)

    def _observe_late(self, rows: np.ndarray, class_ids: np.ndarray, since: int) -> np.ndarray:
        assert self._parts is not None
        inputs, waiting = self._parts.inputs, len(rows) - len(class_ids)
        since = min(since, waiting, MAX_LAG, (self.position + waiting) % self.stride)
        predicted: list[np.ndarray] = []

        def ask(part: slice) -> Callable[[], None]:
            # by the statistics of what came before: features of later rows must not reach them
            count, first = part.stop - part.start, max(part.start, part.start + waiting - MAX_LAG)
            context = 0 if part.start else since  # from then on, a label arrives between any two
            asked = inputs.predict_sequence(rows[first : part.stop + waiting], part.start + waiting - first - context)
            num_seen = num_seen_before(class_ids[part], self._num_seen.current)

            def predict() -> None:
                missing = np.arange(count, 0, -1)  # of the labels of this part, which the current state has by now
                chunk = np.arange(count)  # so that none sees another
                predicted.append(self._answer(asked, num_seen, missing, waiting - missing, chunk))

            return predict

        num_seen = num_seen_before(class_ids, self._num_seen.current)
        self._take_chunks(rows[: len(class_ids)], class_ids, report=False, ask=ask)
        return join_rows(predicted, num_seen, self.labels.capacity)

    def _answer(
        self, rows: Rows, num_seen: np.ndarray, missing: np.ndarray, position: np.ndarray, chunk: np.ndarray
    ) -> np.ndarray:
        """Log-probabilities (n, capacity) of examples whose labels come late, in the chunks of these numbers (n,).

        `rows` may begin with those of the first one's chunk that were asked just before it.
        """
        assert self._parts is not None
        position = np.maximum(position, (self.settings.label_delay or 0) - missing)
        parts, features = [], rows.features
        extra = len(features) - len(position)
        raw = rows.raw[extra:]
        with self._parts.trainer.predicting():
            for start in range(0, len(position), QUERIES_AT_ONCE):
                at = slice(start, start + QUERIES_AT_ONCE)
                count = extra if not start else int(np.count_nonzero(chunk[:start] == chunk[start]))
                context = features[extra + start - count : extra + start] if count else None
                x = features[extra:][at]
                queries = Queries(x, num_seen[at], missing[at], position[at], chunk[at], raw[at], context)
                parts.append(self._parts.ensemble.predict(queries).log_probs)
        return np.concatenate(parts)

    def _accept(self, x: np.ndarray, ys: Sequence[Hashable]) -> np.ndarray:
        if self.settings.async_steps and os.getpid() != self._process:
            raise BadInput("this process was forked: a learner with async_steps can predict in it, but not learn")
        return super()._accept(x, ys)

    def _take_chunks(
        self, x: np.ndarray, class_ids: np.ndarray, *, report: bool, ask: Ask | None = None
    ) -> list[np.ndarray]:
        assert self._parts is not None
        self._changing = False
        self._parts.trainer.check()
        return super()._take_chunks(x, class_ids, report=report, ask=ask)

    def _extend(self, x: np.ndarray, class_ids: np.ndarray, lags: np.ndarray | None) -> np.ndarray:
        assert self._parts is not None
        last, self._last_prediction = self._last_prediction, None
        if last is not None and (lags is not None or not last.is_of(x)):
            last = None
        one_row = self._parts.ensemble.one_row
        if one_row is not None and lags is None and len(x) == 1 and not self.settings.label_delay:
            return self._extend_one(one_row, x, int(class_ids[0]), last)
        rows = self._parts.inputs.extend(x, None if last is None else last.normalized)
        batch = self._batch(rows.features, rows.raw, class_ids, self._num_seen.current, lags)
        if lags is not None and self._pending_ids:
            batch = self._after_pending(batch, x)
        with self._parts.trainer.predicting():
            log_probs = self._parts.ensemble.extend(batch, None if last is None else last.prediction)
        self._num_seen.extend(max(self._num_seen.current, largest(class_ids) + 1))
        return log_probs

    def _extend_one(self, one_row: OneRow, x: np.ndarray, class_id: int, last: LastPrediction | None) -> np.ndarray:
        """The same for one example in the native core, where it is predicted and then added faster than in a pass."""
        assert self._parts is not None
        if last is None:
            self._predict(x)
            last, self._last_prediction = self._last_prediction, None
        assert last is not None
        rows = self._parts.inputs.extend(x, last.normalized or one_row.normalized())
        num_seen = self._num_seen.current
        log_probs = one_row.append(rows.features, class_id, num_seen)
        self._num_seen.extend(max(num_seen, class_id + 1))
        return log_probs.copy()

    def _after_pending(self, batch: Batch, x: np.ndarray) -> Batch:
        """Examples that the pass over their whole chunk lets see earlier ones of it without their labels."""
        assert self._parts is not None
        if len(x) == 1 and self._parts.ensemble.network.passes.takes_labels_away:
            return replace(batch, unlabeled=found) if (found := self._num_waiting_with(batch)) else batch
        lags = np.minimum([*self._pending_lags, int(cast(np.ndarray, batch.lags)[0])], MAX_LAG)
        bounds = np.arange(len(lags)) - np.maximum(lags, self.settings.label_delay or 0)
        if bounds[-1] != bounds[-2]:
            return batch
        features = self._parts.inputs.transform_chunk(np.concatenate([*self._pending_x, x]))
        class_ids = np.asarray(self._pending_ids, dtype=np.int64)
        pending = self._batch(features[: len(class_ids)], None, class_ids, self._num_seen.committed, lags[:-1])
        return replace(batch, pending=pending)

    def _num_waiting_with(self, batch: Batch) -> int:
        """How many of the latest examples of the chunk were asked since the same label arrived as this one."""
        least, count = self.settings.label_delay or 0, len(self._pending_lags)
        bound = count - max(int(cast(np.ndarray, batch.lags)[0]), least)
        same = 0
        for i in range(count - 1, -1, -1):
            if i - max(min(self._pending_lags[i], MAX_LAG), least) != bound:
                break
            same += 1
        return same

    def _prepare_chunk(self, count: int) -> None:
        assert self._parts is not None
        # read before anything changes: a stream or a disk that fails leaves the learner as it was
        stop = self.num_committed + count
        self._to_replay = [] if self._frozen(stop) or self._first_turn else self._parts.replay.read(stop)

    def _train_chunk(self, x: np.ndarray, class_ids: np.ndarray, lags: np.ndarray | None) -> np.ndarray:
        """The steps on a chunk and on what is replayed; its log-probabilities from before them."""
        assert self._parts is not None
        inputs, ensemble, replay, trainer = self._parts
        self._last_prediction = None
        self._num_late += 0 if lags is None else int(np.count_nonzero(lags))
        rows = inputs.commit(x)
        batch = self._batch(rows.features, rows.raw, class_ids, self._num_seen.committed, lags)
        self._num_seen.commit(max(self._num_seen.committed, int(class_ids.max()) + 1))
        start, stop = self.num_committed, self.num_committed + len(class_ids)

        def forward() -> NetworkPass | None:
            with trainer.predicting():
                return ensemble.network.forward(batch)

        def commit(passed: NetworkPass | None) -> np.ndarray:
            return ensemble.commit(batch, passed)

        if self._frozen(stop):
            passed = forward()
            trainer.finish()
            return commit(passed)
        if self._first_turn:
            replayed = replay.repeat(batch)
        else:
            replayed = replay.batches(self._to_replay, self._num_seen.committed, batch.lags)
        log_probs = trainer.train_chunk(batch, replayed, start, forward=forward, commit=commit)
        replay.advance(start, stop)
        return log_probs

    @property
    def _first_turn(self) -> bool:
        """Whether there is no chunk to replay yet."""
        return self.num_committed < self.settings.chunk_size

    def _frozen(self, stop: int) -> bool:
        """Whether a chunk that ends here is no longer learned by gradient."""
        return self.settings.freeze_at is not None and stop > self.settings.freeze_at

    def _batch(
        self,
        features: np.ndarray,
        raw: np.ndarray | None,
        class_ids: np.ndarray,
        num_seen: int,
        lags: np.ndarray | None,
    ) -> Batch:
        if self.settings.label_delay:
            lags = np.maximum(np.zeros_like(class_ids) if lags is None else lags, self.settings.label_delay)
        if lags is not None:
            lags = np.minimum(lags, MAX_LAG)
        return Batch(features, class_ids, num_seen_before(class_ids, num_seen), lags, raw)

    def _wait(self, count: int | None = None) -> None:
        # a whole chunk is predicted while the steps before it are taken; for a few examples that is not worth a wait
        if self._parts is not None and (count is None or self.room <= count < self.settings.chunk_size):
            self._parts.trainer.wait()

    def _grow(self, capacity: int) -> None:
        self._last_prediction = None  # it has fewer class ids
        if self._parts is not None:
            # all that were free at the last chunk border are still alike: there was no step since then
            self._parts.trainer.grow(capacity, like=self._num_seen.committed)
            self._parts.ensemble.grow(capacity)

    def _prepare(self, x: np.ndarray) -> None:
        if self._parts is None:
            self._parts = self._build(x.shape[1:], x.dtype)

    def _build(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Parts:
        """Makes everything for inputs like the first example."""
        return make_parts(
            self.settings,
            shape,
            dtype,
            labels=self.labels,
            memory=self._memory,
            device=self.device,
            missing=self.missing,
            extractor=self._own_extractor,
        )

    def _check(self, x: np.ndarray) -> np.ndarray:
        x = super()._check(x)
        if self.settings.standardize is False:
            check_float32(x, self.position)
        check_image_dtype(x, None if self._parts is None else self._image_bytes, self.position)
        return x

    # Its state, and copies of it.

    @property
    def _image_bytes(self) -> bool:
        return self._parts is not None and self._parts.inputs.image_bytes

    def _become(self, again: Self) -> None:
        super()._become(again)
        self._parts, self._num_seen, self._num_late = again._parts, again._num_seen, again._num_late
        self._last_prediction = None

    def _begin_with_labels(self) -> None:
        super()._begin_with_labels()
        self._num_seen.commit(self.num_seen)

    def _unsaved(self) -> dict[str, Any]:
        return {"device": str(self.device)}

    def _take_copy(self, other: Self, *, snapshot: bool) -> None:
        self._own_extractor = other._own_extractor
        if snapshot:
            self._take_predictor(other)
            return
        self._memory = other._memory.copy()
        super()._take_copy(other, snapshot=snapshot)

    def _take_predictor(self, other: Self) -> None:
        """Copies what predicts, and nothing of what learns."""
        self.labels, self._num_seen = copy.deepcopy((other.labels, other._num_seen))
        self.position, self.shape, self.num_seen = other.position, other.shape, other.num_seen
        self._rows.load(other.schema)
        if other._parts is not None:
            inputs, ensemble = copy_predictor(other._parts.inputs, other._parts.ensemble)
            trainer = IdleTrainer(ensemble.network.model, other._parts.trainer)
            self._parts = Parts(inputs, ensemble, cast(Any, None), cast(Any, trainer))

    def _shown_settings(self) -> dict[str, Any]:
        defaults = {"classes": None, "missing": False, **asdict(Settings())}
        return {name: value for name, value in self.config().items() if value != defaults.get(name, Settings)}

    def _standing(self) -> list[str]:
        engine = [] if self.engine is None else [f"engine {self.engine.name}"]
        return [*super()._standing(), *engine, *([] if self.home is None else [f"home {str(self.home)!r}"])]

    def _state_dict(self) -> dict[str, Any]:
        parts = None if self._parts is None else self._parts.state_dict()
        return {
            **self._chunk_state(),
            "num_seen": {"committed": self._num_seen.committed, "current": self._num_seen.current},
            "num_late": self._num_late,
            "memory": self._memory.state_dict(),
            "parts": parts,
        }

    def _compare_engines(self, before: str, now: EngineName) -> None:
        self.engine_note = None
        if before != now:
            self.engine_note = changed_engine(before, now)
            warnings.warn(self.engine_note, EngineWarning, stacklevel=6)

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        if "parts" not in state:
            state = migrate_learner_state(state)
        self._parts = self._last_prediction = None
        saved = state["parts"]
        if saved is not None:
            assert self.shape is not None
            self._parts = self._build(self.shape, np.dtype(np.uint8 if saved["image_bytes"] else np.float32))
            self._parts.load_state_dict(saved)
            self._compare_engines(str(saved.get("engine", "torch")), self._parts.trainer.engine.name)
        self._num_late = int(state.get("num_late", 0))
        self._num_seen.commit(int(state["num_seen"]["committed"]))
        self._num_seen.extend(int(state["num_seen"]["current"]))
        self._load_chunk_state(state)
        self._memory.load_state_dict(state["memory"])


def _find_own_extractor(name: str, given: Any) -> OwnNetwork | None:
    """The extractor of one's own that the settings name, imported now, where it is known whose word the name is."""
    plain, options = parse_call(name)
    if given is not None and not isinstance(given, str):
        return OwnNetwork(given, options)
    return OwnNetwork(import_object(plain, "extractor"), options) if is_object_name(plain) else None
