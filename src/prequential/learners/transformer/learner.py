"""The learner of the paper: a transformer with the recent past in context, trained online with replay-streams."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np

from prequential.errors import BadCheckpoint, BadInput, BadSetting, EngineWarning
from prequential.imports import import_object, is_object_name
from prequential.labels import join_rows, num_seen_before
from prequential.learners import by_id
from prequential.learners.abstract import largest
from prequential.learners.asked import Event
from prequential.learners.base import check_missing
from prequential.learners.chunked import Ask, ChunkedLearner
from prequential.learners.device import find_device
from prequential.learners.gate import check_float32
from prequential.learners.home import Home, holds_learner
from prequential.learners.inputs import Inputs
from prequential.learners.log_proba import uniform_log_proba
from prequential.learners.memory import Memory, saved_journal
from prequential.learners.normalizer import After
from prequential.learners.outliers import Hint
from prequential.learners.replay import ReplayChunk
from prequential.learners.transformer.async_trainer import AsyncTrainer
from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.distributed import here
from prequential.learners.transformer.engine import Choice, EngineName, changed_engine, choose_engine, make_passes
from prequential.learners.transformer.ensemble import Ensemble, Prediction
from prequential.learners.transformer.experts import NetworkExpert, make_experts
from prequential.learners.transformer.normalized_replay import NormalizedReplay
from prequential.learners.transformer.predictor import IdleTrainer, copy_predictor
from prequential.learners.transformer.state_migrations import migrate_learner_state
from prequential.learners.transformer.trainer import Trainer
from prequential.learners.versioned import Versioned
from prequential.memory_limits import check_fits
from prequential.models.extractors.own import name_of
from prequential.models.lookback import MAX_LAG
from prequential.models.make import OwnNetwork, make_model
from prequential.models.transformer import Transformer
from prequential.native.experts import native_experts
from prequential.renames import SETTINGS, takes_old_names
from prequential.settings import Settings
from prequential.specs import parse_call
from prequential.storage.checkpoint import loading, read_checkpoint
from prequential.streams.journal.journal import Journal
from prequential.streams.journal.log import Durability
from prequential.streams.journal.reading import ranges
from prequential.streams.stream import Stream
from prequential.trust import names_from, stored_arguments

QUERIES_AT_ONCE = 128  # examples predicted in one pass where labels come late


class Parts(NamedTuple):
    """What a learner is made of, in the order in which an example passes through it."""

    inputs: Inputs
    ensemble: Ensemble
    replay: NormalizedReplay
    trainer: Trainer


class LastPrediction(NamedTuple):
    """The latest prediction of a single x: learning that x next computes nothing twice."""

    dtype: np.dtype[Any]
    x: bytes
    features: np.ndarray
    after: After | None
    prediction: Prediction

    def is_of(self, x: np.ndarray) -> bool:
        """Whether it is of this x; by bytes, as 0 and -0 are equal."""
        return len(x) == 1 and x.dtype == self.dtype and x.tobytes() == self.x


@takes_old_names(SETTINGS)
class Learner(ChunkedLearner):
    """A transformer that learns in context at once and by gradient steps on every chunk and its replay-streams.

    Whatever the sizes in which examples arrive, gradient steps are taken on the same chunks of `settings.chunk_size`
    examples, each with the keys and values that one pass over the whole chunk gives: the state at a chunk border
    depends on the examples alone. In between, each example learnt is in the context of the next prediction.

    By default its prediction is mixed from several: the transformer's, the labels of those examples of the window that
    are most like this one, by their inputs and by what the blocks make of them, and the labels of the nearest of
    thousands before; and an average of the parameters predicts. `method="paper"` is the transformer's alone.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    settings
        What the learner is made of; single settings can be given by name as well.
    home
        A directory in which a live learner keeps its examples and its saves. Without it they are in a temporary
        one, gone with the learner. One learner at a time has it, until it is gone or `close()` is called.
    durability
        When what is learnt in a home is synced to disk, so that it survives a power cut too: after every so many
        examples, "sync" for every call, or "save" for only when it is saved. Killed processes lose nothing either way.
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
        self._check_memory(1)
        self.stride = self.settings.chunk_size
        self._home: Home | None = None
        self._parts: Parts | None = None  # made when the first example shows what x looks like
        self._memory = Memory()
        self._num_seen = Versioned(len(self.labels))  # labels seen so far
        self._num_late = 0  # examples in finished chunks whose labels came late
        self._to_replay: list[ReplayChunk] = []  # what the next turn replays, as it was read
        self._last_prediction: LastPrediction | None = None  # if it was of one x, and nothing was learned since
        self._process = os.getpid()
        if home is not None:
            self._home = Home(Path(home), durability, new=True)
            self._memory = Memory(self._home.begin(self._made()))

    def _made(self) -> dict[str, Any]:
        """What a home keeps of how its learner is made."""
        schema = {} if self.schema is None else {"schema": self.schema.to_dict(), "schema_given": self._rows.given}
        return {"config": self.config(), "labels": self.labels.state_dict(), **schema}

    @property
    def _fills_missing(self) -> bool:
        return self.settings.standardize is not False

    def _keep_schema(self) -> None:
        if self._home is not None and not self._memory.relearning:
            self._home.remember({"schema": self.schema.to_dict(), "schema_given": self._rows.given})

    @property
    def home(self) -> Path | None:
        """The directory it lives in, if it has one."""
        return None if self._home is None else self._home.directory

    @property
    def journal(self) -> Journal | None:
        """The examples that it keeps, where it keeps them itself."""
        return self._memory.journal

    def remember(self, **more: str) -> None:
        """Keeps something in its home for whoever opens it, such as which column of a table was the label."""
        if self._home is not None and any(self.remembered(name) != text for name, text in more.items()):
            self._home.remember({"notes": {**self._home.made.get("notes", {}), **more}})

    def remembered(self, name: str) -> str | None:
        """What `remember` has kept."""
        notes = {} if self._home is None else self._home.made.get("notes", {})
        found = notes.get(name) if isinstance(notes, dict) else None
        return found if isinstance(found, str) else None

    @property
    def notes(self) -> list[str]:
        """What was found damaged or missing in its home or among its examples, and what was done about it."""
        journal = self._memory.journal
        return [*([] if self._home is None else self._home.notes), *([] if journal is None else journal.notes)]

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
    def skipped_steps(self) -> int:
        return 0 if self._parts is None else self._parts.trainer.skipped_steps

    def _hints(self) -> list[Hint]:
        return [] if self._parts is None else self._parts.inputs.hints()

    def replay_from(self, stream: Stream | None) -> None:
        """Replays from this stream instead of keeping a copy; None: what comes next is kept in a journal."""
        with self._guard.changing(), self._guard.inside(whole=False):
            self._memory.follow(stream)

    @property
    def _relearning(self) -> bool:
        return self._memory.relearning

    # Predicting and learning.

    def _predict(self, x: np.ndarray) -> np.ndarray:
        if self._parts is None:
            return uniform_log_proba(len(x), self.labels.capacity)
        features, after = self._parts.inputs.predict(x)
        queries = Queries(features, np.array([self._num_seen.current] * len(x)))  # np.full takes three times as long
        if self.settings.label_delay:
            missing = np.zeros(len(x), dtype=np.int64)
            queries = replace(queries, missing=missing, position=missing + self.settings.label_delay)
        with self._parts.trainer.predicting():
            prediction = self._parts.ensemble.predict(queries)
        if len(x) == 1:
            self._last_prediction = LastPrediction(x.dtype, x.tobytes(), features, after, prediction)
        return prediction.log_probs.copy()  # it is the caller's, and the prediction may be used again

    def _predict_late(self, x: np.ndarray, waiting: np.ndarray, since: int) -> np.ndarray:
        if self._parts is None or (len(x) == 1 and not len(waiting)):
            return self._predict(x)
        asked = self.position + len(waiting)  # before the first of x
        waiting = waiting[-MAX_LAG:]
        context = min(since, len(waiting), asked % self.stride)
        features = self._parts.inputs.predict_sequence(np.concatenate([waiting, x]), len(waiting) - context)
        position = len(waiting) + np.arange(len(x))
        num_seen = np.full(len(x), self._num_seen.current)
        chunk = (asked + np.arange(len(x))) // self.stride
        return self._answer(features, num_seen, np.zeros_like(position), position, chunk)

    def _observe_late(self, rows: np.ndarray, class_ids: np.ndarray, since: int) -> np.ndarray:
        assert self._parts is not None
        inputs, waiting = self._parts.inputs, len(rows) - len(class_ids)
        since = min(since, waiting, MAX_LAG, (self.position + waiting) % self.stride)
        predicted: list[np.ndarray] = []

        def ask(part: slice) -> Callable[[], None]:
            # by the statistics of what came before: features of later rows must not reach them
            count, first = part.stop - part.start, max(part.start, part.start + waiting - MAX_LAG)
            context = 0 if part.start else since  # from then on, a label arrives between any two
            features = inputs.predict_sequence(
                rows[first : part.stop + waiting], part.start + waiting - first - context
            )
            num_seen = num_seen_before(class_ids[part], self._num_seen.current)

            def predict() -> None:
                missing = np.arange(count, 0, -1)  # of the labels of this part, which the current state has by now
                chunk = np.arange(count)  # so that none sees another
                predicted.append(self._answer(features, num_seen, missing, waiting - missing, chunk))

            return predict

        num_seen = num_seen_before(class_ids, self._num_seen.current)
        self._take_chunks(rows[: len(class_ids)], class_ids, report=False, ask=ask)
        return join_rows(predicted, num_seen, self.labels.capacity)

    def _answer(
        self, features: np.ndarray, num_seen: np.ndarray, missing: np.ndarray, position: np.ndarray, chunk: np.ndarray
    ) -> np.ndarray:
        """Log-probabilities (n, capacity) of examples whose labels come late, in the chunks of these numbers (n,).

        `features` may begin with those of rows of the first one's chunk that were asked just before it.
        """
        assert self._parts is not None
        position = np.maximum(position, (self.settings.label_delay or 0) - missing)
        parts = []
        extra = len(features) - len(position)
        with self._parts.trainer.predicting():
            for start in range(0, len(position), QUERIES_AT_ONCE):
                at = slice(start, start + QUERIES_AT_ONCE)
                count = extra if not start else int(np.count_nonzero(chunk[:start] == chunk[start]))
                context = features[extra + start - count : extra + start] if count else None
                x = features[extra:][at]
                queries = Queries(x, num_seen[at], missing[at], position[at], chunk[at], context)
                parts.append(self._parts.ensemble.predict(queries).log_probs)
        return np.concatenate(parts)

    def _accept(self, x: np.ndarray, ys: Sequence[Hashable]) -> np.ndarray:
        if self.settings.async_steps and os.getpid() != self._process:
            raise BadInput("this process was forked: a learner with async_steps can predict in it, but not learn")
        class_ids = super()._accept(x, ys)
        labels = [self.labels[class_id] for class_id in class_ids]
        asked_at = None if self._lags is None else (self.position + np.arange(len(x)) - self._lags).tolist()
        self._memory.write(x, labels, asked_at=asked_at, ids=self._ids, origins=self._origins)
        return class_ids

    def _keep_events(self, events: list[Event]) -> None:
        if self._home is not None:
            self._home.write_events(events, self.asked.whole)

    def _take_chunks(
        self, x: np.ndarray, class_ids: np.ndarray, *, report: bool, ask: Ask | None = None
    ) -> list[np.ndarray]:
        assert self._parts is not None
        self._changing = False
        self._parts.trainer.check()
        return super()._take_chunks(x, class_ids, report=report, ask=ask)

    def _begin_part(self, count: int) -> None:
        self._memory.advance(count)

    def _extend(self, x: np.ndarray, class_ids: np.ndarray, lags: np.ndarray | None) -> np.ndarray:
        assert self._parts is not None
        last, self._last_prediction = self._last_prediction, None
        if last is not None and (lags is not None or not last.is_of(x)):
            last = None
        alone = last is None and lags is None and len(x) == 1 and not self.settings.label_delay
        if alone and self._parts.trainer.engine.name == "native":
            self._predict(x)  # in the core, one example alone is predicted and then appended faster than in a pass
            last, self._last_prediction = self._last_prediction, None
        features = self._parts.inputs.extend(x, None if last is None else (last.features, last.after))
        batch = self._batch(features, class_ids, self._num_seen.current, lags)
        if lags is not None and self._pending_ids:
            batch = self._after_pending(batch, x)
        with self._parts.trainer.predicting():
            log_probs = self._parts.ensemble.extend(batch, None if last is None else last.prediction)
        self._num_seen.extend(max(self._num_seen.current, largest(class_ids) + 1))
        return log_probs

    def _after_pending(self, batch: Batch, x: np.ndarray) -> Batch:
        """Examples that the pass over their whole chunk lets see earlier ones of it without their labels."""
        assert self._parts is not None
        lags = np.minimum([*self._pending_lags, int(cast(np.ndarray, batch.lags)[0])], MAX_LAG)
        bounds = np.arange(len(lags)) - np.maximum(lags, self.settings.label_delay or 0)
        if bounds[-1] != bounds[-2]:
            return batch
        features = self._parts.inputs.transform_chunk(np.concatenate([*self._pending_x, x]))
        class_ids = np.asarray(self._pending_ids, dtype=np.int64)
        pending = self._batch(features[: len(class_ids)], class_ids, self._num_seen.committed, lags[:-1])
        return replace(batch, pending=pending)

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
        batch = self._batch(inputs.commit(x), class_ids, self._num_seen.committed, lags)
        self._num_seen.commit(max(self._num_seen.committed, int(class_ids.max()) + 1))
        start, stop = self.num_committed, self.num_committed + len(class_ids)
        passed = None
        if trainer.separate or self._frozen(stop):
            with trainer.predicting():
                passed = ensemble.network.forward(batch)
        if self._frozen(stop):
            trainer.finish()
        else:
            if self._first_turn:
                replayed = replay.repeat(batch)
            else:
                replayed = replay.batches(self._to_replay, self._num_seen.committed, batch.lags)
            passed = trainer.train_chunk(batch, replayed, start) or passed
            replay.advance(start, stop)
        return ensemble.commit(batch, passed)

    @property
    def _first_turn(self) -> bool:
        """Whether there is no chunk to replay yet."""
        return self.num_committed < self.settings.chunk_size

    def _frozen(self, stop: int) -> bool:
        """Whether a chunk that ends here is no longer learned by gradient."""
        return self.settings.freeze_at is not None and stop > self.settings.freeze_at

    def _batch(self, features: np.ndarray, class_ids: np.ndarray, num_seen: int, lags: np.ndarray | None) -> Batch:
        if self.settings.label_delay:
            lags = np.maximum(np.zeros_like(class_ids) if lags is None else lags, self.settings.label_delay)
        if lags is not None:
            lags = np.minimum(lags, MAX_LAG)
        return Batch(features, class_ids, num_seen_before(class_ids, num_seen), lags)

    def flush(self) -> None:
        """Takes the steps of the unfinished chunk now. The next chunk is the rest of it."""
        with self._guard.changing():
            pending = bool(self._pending_ids)
            super().flush()
            if pending and self._home is not None:  # the journal does not know that the chunk was cut short here
                self.save()

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
        s, num_classes = self.settings, self.labels.capacity
        inputs = Inputs(s, shape, dtype)
        if self.missing and not inputs.normalizes:
            raise BadSetting(f"features may be missing only where they are standardized, but x has shape {shape}")
        self._check_memory(inputs.features)
        model = make_model(
            s,
            features=inputs.features,
            extractor=inputs.extractor,
            shape=inputs.image_shape,
            num_classes=num_classes,
            own=self._own_extractor,
        ).to(self.device)
        engine = choose_engine(s, device=self.device, processes=here().count, model=model)
        native = native_experts() if engine.name == "native" else None
        if native is not None:
            inputs = Inputs(s, shape, dtype, native)
        trainer = (AsyncTrainer if s.async_steps else Trainer)(model, s, here(), engine=engine)
        network = NetworkExpert(make_passes(engine, trainer.prediction_model), trainer.prediction_context, here())
        replay = NormalizedReplay(
            s.num_streams - 1,
            chunk_size=s.chunk_size,
            memory=self._memory,
            labels=self.labels,
            inputs=inputs,
            seed=s.seed,
        )
        others = make_experts(s, inputs, num_classes=num_classes, native=native)
        ensemble = Ensemble(network, others, open_ended=self.labels.open_ended, native=native)
        return Parts(inputs, ensemble, replay, trainer)

    def _check_memory(self, features: int) -> None:
        s, classes = self.settings, self.labels.capacity
        sizes = f"width ({s.width}), depth ({s.depth}), window ({s.window}), num_streams ({s.num_streams}), classes ({classes})"
        what = f"{features} features, {sizes}" if features > 1 else sizes
        if self.device.type == "cpu":
            check_fits(s.least_bytes(classes, features), what)

    def _check(self, x: np.ndarray) -> np.ndarray:
        x = super()._check(x)
        if x.ndim > 2 or self.settings.standardize is False:
            check_float32(x, self.position)
        if self._parts is not None and x.ndim > 2 and (x.dtype == np.uint8) != self._parts.inputs.image_bytes:
            expected = "uint8" if self._parts.inputs.image_bytes else "floats"
            raise BadInput(f"example {self.position}: the image is {x.dtype}, but the first one was {expected}")
        return x

    # Keeping what was learnt.

    def save(self, path: str | Path | None = None) -> None:
        """Writes the learner to one file, atomically; the examples it replays from are copied beside it.

        Without a path it is saved in its home, where `Learner.open` finds it.
        """
        if path is not None:
            super().save(path)
            return
        if self._home is None:
            raise BadInput("save needs a path: this learner was made without a home")
        with self._alone():
            journal = self._memory.journal
            assert journal is not None
            self._memory.sync()
            self._home.save(self.position, self._whole_state(), journal)

    @contextmanager
    def _beside(self, path: Path) -> Iterator[dict[str, Any]]:
        with self._memory.saved_beside(path) as named:
            yield named

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        home: str | Path | None = None,
        durability: Durability = 100,
        device: str = "auto",
        trust: bool = False,
    ) -> Self:
        """The learner that was saved to this file; in a home it begins with a save of its own.

        `trust` allows to import an extractor that the file names, which runs its code.
        """
        with names_from(Path(path), trust=trust):
            return cls._load(path, home=home, durability=durability, device=device)

    @classmethod
    def _load(cls, path: str | Path, *, home: str | Path | None, durability: Durability, device: str) -> Self:
        if home is None:
            return cls._loaded(path, device=device)
        saved = read_checkpoint(Path(path))
        with loading(Path(path)):
            needs = bool(saved["state"]["learner"]["memory"]["journal"])
        source = Journal(saved_journal(Path(path), saved.get("journal"))) if needs else None
        learner = cls._loaded(path, device=device)
        place = Home(Path(home), durability, new=True)
        journal = place.begin(learner._made(), copied=source)
        learner._home, learner._memory = place, Memory(journal)
        with loading(Path(path)):
            learner.load_state_dict(saved["state"])
        learner.save()
        return learner

    def settle(self, home: str | Path, *, durability: Durability = 100) -> None:
        """Gives a learner without a home one, in which it lives from now on; its past is copied there.

        Where its past is the stream of a run, that is read once.
        """
        with self._alone():
            self._check_can_learn()
            if self._home is not None:
                raise BadInput(f"this learner lives in {self.home} already")
            state, memory = self._whole_state(), self._memory
            place = Home(Path(home), durability, new=True)
            try:
                past = () if memory.journal is not None else memory.past()
                self._memory = Memory(place.begin(self._made(), copied=memory.journal, past=past))
                self._home = place
                self.load_state_dict(state)  # everything that reads the past reads it there
                self.save()
            except BaseException:
                self._home, self._memory = None, memory
                self.load_state_dict(state)
                place.close()
                raise

    def _load_beside(self, path: Path, saved: dict[str, Any]) -> None:
        if saved["state"]["learner"]["memory"]["journal"]:
            self._memory.load(path, saved.get("journal"))

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

    @classmethod
    def open(
        cls, home: str | Path, *, durability: Durability | None = None, device: str = "auto", trust: bool = False
    ) -> Self:
        """The learner that lives in this directory, as it was after the last example it was given.

        It goes on from its newest save and learns again, from the journal, what came after that. Where something in
        the home is damaged or missing, it goes on with everything else; each such thing is said in a `DamageWarning`
        and in `notes`.
        """
        directory = Path(home)
        if not directory.is_dir() or not holds_learner(directory):
            raise BadInput(f"{directory} holds no learner; Learner(..., home=...) makes one there")
        place = Home(directory, durability)
        try:
            journal = place.open()
            with names_from(directory, trust=trust):
                learner = cls._from_save(place, journal, device)
            learner._catch_up(journal)
        except BaseException:
            place.close()
            raise
        return learner

    @classmethod
    def _from_save(cls, place: Home, journal: Journal, device: str) -> Self:
        """The learner of a home, as it was at its newest save that can be used; else a new one."""
        found: list[Learner] = []

        def make() -> Learner:
            path = place.directory / "learner.json"
            with loading(Path(path)):
                learner = cls(**stored_arguments(cls, place.made.get("config"), path), device=device)
                learner.labels.load_state_dict(place.made["labels"])
                if len(journal) or place.made.get("schema_given"):  # else no row was learned by it
                    learner._rows.load(cls._stored_schema({"shape": None, **place.made}))
            learner.num_seen = len(learner.labels)
            learner._num_seen.commit(learner.num_seen)
            learner._home, learner._memory = place, Memory(journal)
            learner._memory.relearning = True
            return learner

        def refuse(state: dict[str, Any]) -> str | None:
            learner = make()
            try:
                learner.load_state_dict(state)
            except (BadCheckpoint, BadInput, BadSetting) as error:
                return str(error)
            found.append(learner)
            return None

        state, refused = place.newest(journal, refuse)
        if state is None and (journal.missing_log or (refused and not len(journal))):
            why = refused[0] if refused else f"{journal.directory / 'log.bin'} is missing, and there is no save"
            raise BadCheckpoint(f"{why}; nothing is left to go on from")
        for sentence in refused:
            place.note(f"{sentence}; {'an earlier save is used' if found else 'everything is learnt again'}")
        return cast(Self, found[0] if found else make())

    def _catch_up(self, journal: Journal) -> None:
        """Learns what came after the save; where examples are lost, the journal and the learner are made to agree."""
        assert self._home is not None
        missing = self.position - len(journal)
        if missing > 0:  # what was learnt from them is in the save
            assert self.shape is not None
            image_bytes = self._parts is not None and self._parts.inputs.image_bytes
            like = np.zeros((1, *self.shape), np.uint8 if image_bytes else np.float64)
            lost = ranges(range(len(journal), self.position))
            journal.append_gap(missing, like)
            self._home.note(f"{lost} missing in {journal.directory}: they stay learnt, but are not replayed any more")
        else:
            lost_positions = journal.compact(self.position)
            if lost_positions:
                self._home.note(f"{ranges(lost_positions)} lost in {journal.directory}; those after moved up")
        for event in self._home.asked.read(self._home.asked_since):
            try:
                self.asked.apply(event)
            except (KeyError, TypeError, ValueError, BadCheckpoint) as error:
                self._home.note(
                    f"an event in {self._home.asked.directory} was left out: {type(error).__name__}: {error}"[:280]
                )
        boundary = len(journal) - len(journal) % self.stride
        for start in range(self.position, boundary, self.stride):
            self._relearn(journal, start, min(start + self.stride, boundary))
        # one by one, as live examples mostly come: in one call, what is current would differ in its last bits
        for start in range(self.position, len(journal)):
            self._relearn(journal, start, start + 1)
        self.asked.settle()
        self._memory.relearning = False

    def _relearn(self, journal: Journal, start: int, stop: int) -> None:
        """Learns examples of the journal again, as late as their labels came."""
        chunk, (asked_at, ids) = journal.read(start, stop), journal.arrivals(start, stop)
        at_once = np.array_equal(asked_at, np.arange(start, stop))
        self.learn_many(chunk.x, chunk.y, asked_at=None if at_once else asked_at)
        by_id.relearned(self, start, asked_at, ids, chunk.y)

    def _before(self, count: int) -> dict[str, Any]:
        return {**super()._before(count), "memory": self._memory.before()}

    def _revert(self, before: dict[str, Any], error: BaseException) -> None:
        self._memory.restore(before["memory"])
        super()._revert(before, error)

    def _recover(self, error: BaseException) -> None:
        """Goes back to the newest save, and learns again what came after it."""
        journal = self._memory.journal
        if self._home is None or journal is None or self._memory.relearning:
            raise NotImplementedError
        try:
            again = self._from_save(self._home, journal, str(self.device))
            again._catch_up(journal)
        except BaseException:
            self._guard.mend = lambda: self._recover(error)  # the next call tries again
            raise
        self._guard.mend = None
        self.position, self.shape = again.position, again.shape
        self.labels, self._memory, self._parts = again.labels, again._memory, again._parts
        self._num_seen, self._num_late, self.asked = again._num_seen, again._num_late, again.asked
        self._last_prediction = None
        self._load_chunk_state(again._chunk_state())

    def close(self) -> None:
        """Lets another learner have its home. What it knows stays: it can predict, but not learn."""
        with self._alone():
            if self._home is not None:
                self._memory.sync()
                self._home.asked.sync()
                if self._memory.journal is not None:
                    self._memory.journal.close()
                self._home.close()

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        self._memory.check_state(state["learner"]["memory"])

    def _state_dict(self) -> dict[str, Any]:
        parts = None
        if self._parts is not None:
            inputs, ensemble, replay, trainer = self._parts
            trained = trainer.state_dict()  # first: it waits for steps under way
            parts = {
                "engine": trainer.engine.name,
                "image_bytes": inputs.image_bytes,
                "inputs": inputs.state_dict(),
                "ensemble": ensemble.state_dict(),
                "replay": replay.state_dict(),
                "trainer": trained,
            }
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
            for name in ("inputs", "ensemble", "replay", "trainer"):
                getattr(self._parts, name).load_state_dict(saved[name])
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
