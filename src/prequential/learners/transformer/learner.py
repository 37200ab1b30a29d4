"""The learner of the paper: a transformer with the recent past in context, trained online with replay-streams."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from prequential.errors import BadCheckpoint, BadInput, BadSetting
from prequential.learners.base import OnlineLearner, check_missing
from prequential.learners.device import find_device
from prequential.learners.gate import check_float32
from prequential.learners.home import Home, holds_learner
from prequential.learners.memory import Memory, saved_journal
from prequential.learners.outliers import Hint
from prequential.learners.transformer.async_trainer import TrainerBehind
from prequential.learners.transformer.inputs import Inputs
from prequential.learners.transformer.trainer import Examples, Replay, Trainer
from prequential.memory import check_fits
from prequential.models.transformer import Transformer
from prequential.renames import SETTINGS, takes_old_names
from prequential.settings import Settings
from prequential.storage.checkpoint import loading, read_checkpoint
from prequential.streams.journal.journal import Journal
from prequential.streams.journal.log import Durability
from prequential.streams.journal.reading import ranges
from prequential.streams.stream import Chunk, Stream
from prequential.trust import stored_arguments


@takes_old_names(SETTINGS)
class Learner(OnlineLearner):
    """A transformer that learns in context at once and by gradient steps on every chunk and its replay-streams.

    Whatever the sizes in which examples arrive, gradient steps are taken on the same chunks of `settings.chunk_size`
    examples, each with the keys and values that one pass over the whole chunk gives: the state at a chunk border
    depends on the examples alone. In between, each example learnt is in the context of the next prediction.

    By default its prediction is mixed from several: the transformer's, the labels of those examples of the window that
    are most like this one, by their inputs and by what the blocks make of them, and the votes of the nearest of
    thousands before; and an average of the parameters predicts. `method="paper"` is the transformer's alone.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves.
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

    Examples
    --------
    >>> learner = Learner(classes=2, width=16, depth=1, window=8, chunk_size=4, num_streams=2)
    >>> for t in range(40):
    ...     learner.learn([t % 3, 1.0], "yes" if t % 3 else "no")
    >>> learner.predict([1, 1.0])
    'yes'
    """

    def __init__(
        self,
        classes: int | Sequence[Hashable],
        *,
        settings: Settings | None = None,
        home: str | Path | None = None,
        durability: Durability = 100,
        device: str = "auto",
        missing: bool = False,
        **changes: Any,
    ) -> None:
        super().__init__(classes, missing=missing)
        self.settings = (settings or Settings()).changed(**changes)
        check_missing(missing, self.settings.standardize)
        self.device = find_device(device)
        self._check_memory(1)
        self.stride = self.settings.chunk_size
        self._home: Home | None = None
        self._inputs: Inputs | None = None  # made when the first example shows what x looks like
        self._trainer: Trainer | None = None
        self._memory = Memory()
        self._done = 0  # examples in finished chunks
        self._known = self._known_at_border = len(self.labels)  # labels met so far, and up to the last chunk border
        self._pending_x: list[np.ndarray] = []  # the unfinished chunk, as it came
        self._pending_slots: list[int] = []
        self._process = os.getpid()
        if home is not None:
            self._home = Home(Path(home), durability, new=True)
            self._memory = Memory(self._home.begin({"config": self.config(), "labels": self.labels.state_dict()}))

    @property
    def home(self) -> Path | None:
        """The directory it lives in, if it has one."""
        return None if self._home is None else self._home.directory

    @property
    def notes(self) -> list[str]:
        """What was found damaged or missing in its home or among its examples, and what was done about it."""
        journal = self._memory.journal
        return [*([] if self._home is None else self._home.notes), *([] if journal is None else journal.notes)]

    @property
    def model(self) -> Transformer | None:
        """The network, once there is one."""
        return None if self._trainer is None else self._trainer.model

    def config(self) -> dict[str, Any]:
        return {"classes": self.labels.capacity, "missing": self.missing, **asdict(self.settings)}

    def macs_per_example(self) -> float | None:
        """A forward and a backward pass (twice a forward one) in each of the streams, and the votes of the neighbours.

        One more forward pass where what predicts is not what learns: an average, or steps are behind.
        Where learning was stopped it is the average so far: from there on, there is one forward pass.
        """
        if self.model is None:
            return None
        forward = self.model.macs_per_example() + self.model.extractor_macs_per_example()
        assert self._trainer is not None
        votes = 0.0 if self._trainer.neighbours is None else self._trainer.neighbours.macs()
        apart = self.settings.async_steps or self.settings.effective_ema_decay > 0
        learning = (3.0 * self.settings.num_streams + apart) * forward + votes
        stop = self.settings.freeze_at
        if stop is None or stop >= self.position:
            return learning
        return (stop * learning + (self.position - stop) * (forward + votes)) / self.position

    @property
    def _relearning(self) -> bool:
        return self._memory.relearning

    @property
    def skipped_steps(self) -> int:
        return 0 if self._trainer is None else self._trainer.skipped

    def _hints(self) -> list[Hint]:
        return [] if self._inputs is None else self._inputs.hints()

    def replay_from(self, stream: Stream | None) -> None:
        """Replays from this stream instead of keeping a copy; None: what comes next is kept in a journal."""
        with self._guard.changing(), self._guard.inside(whole=False):
            self._memory.follow(stream)

    # Predicting and learning.

    def _predict(self, x: np.ndarray) -> np.ndarray:
        if self._inputs is None or self._trainer is None:
            return np.full((len(x), self.labels.capacity), -np.log(self.labels.capacity))
        return self._trainer.predict(self._inputs.alone(x), self._known)

    def _learn(self, x: np.ndarray, slots: np.ndarray) -> None:
        self._take(x, slots, report=False)

    def _observe(self, x: np.ndarray, slots: np.ndarray) -> np.ndarray:
        return self._take(x, slots, report=True)

    def flush(self) -> None:
        """Takes the steps of the unfinished chunk now. The next chunk is the rest of it."""
        with self._guard.changing():
            if not self._pending_slots:
                return
            self._wait()
            self._attempt(1, self._cut_short)
            if self._home is not None:  # the journal knows the examples, but not that the chunk was cut short here
                self.save()

    def _cut_short(self) -> None:
        self._turn(np.concatenate(self._pending_x), np.asarray(self._pending_slots))

    def _accept(self, x: np.ndarray, ys: Sequence[Hashable]) -> np.ndarray:
        if self.settings.async_steps and os.getpid() != self._process:
            raise BadInput("this process was forked: a learner whose steps run behind can predict in it, but not learn")
        slots = super()._accept(x, ys)
        self._memory.write(x, [self.labels[slot] for slot in slots])
        return slots

    def _wait(self, count: int | None = None) -> None:
        room = self.settings.chunk_size - (self._done + len(self._pending_slots)) % self.settings.chunk_size
        # a whole chunk is predicted while the steps before it are taken; for a few examples that is not worth a wait
        if self._trainer is not None and (count is None or (count >= room and count < self.settings.chunk_size)):
            self._trainer.wait()

    def _take(self, x: np.ndarray, slots: np.ndarray, report: bool) -> np.ndarray:
        """Takes examples, chunk by chunk; their log-probabilities where a report is asked for."""
        assert self._trainer is not None
        self._changing = False  # until something is changed, nothing has to be undone but what the call began with
        self._trainer.check()
        reported = []
        start = 0
        while start < len(slots):
            room = self.settings.chunk_size - (self._done + len(self._pending_slots)) % self.settings.chunk_size
            part = slice(start, start + room)
            start += room
            self._memory.advance(len(slots[part]))
            reported.append(self._take_part(x[part], slots[part], len(slots[part]) == room, report))
            if start < len(slots):
                self._guard.signals.deliver()
        return np.concatenate(reported) if report else np.empty(0)

    def _take_part(self, x: np.ndarray, slots: np.ndarray, completes: bool, report: bool) -> np.ndarray:
        """Takes examples that lie in one chunk."""
        assert self._inputs is not None
        assert self._trainer is not None
        if completes and not self._pending_slots:
            return self._turn(x, slots)
        log_p = np.empty(0)
        past = self._past_chunks(slots) if completes else None
        self._changing = True
        if report or not completes:
            log_p = self._trainer.extend_context((self._inputs.extend(x), slots, self._met(slots)))
        self._known = max(self._known, int(slots.max()) + 1)
        self._pending_x.append(x.copy())  # it is kept beyond this call, and the array is the user's
        self._pending_slots += slots.tolist()
        if completes:
            self._turn(np.concatenate(self._pending_x), np.asarray(self._pending_slots), past)
        return log_p

    def _turn(self, x: np.ndarray, slots: np.ndarray, past: list[Chunk] | None = None) -> np.ndarray:
        """One turn on a whole chunk; its log-probabilities from before the steps."""
        assert self._inputs is not None
        assert self._trainer is not None
        past = self._past_chunks(slots) if past is None else past
        self._changing = True
        self._known = self._known_at_border
        chunk = (self._inputs.finish_chunk(x), slots, self._met(slots))
        self._known = self._known_at_border = max(self._known, int(slots.max()) + 1)
        position = self._done
        self._done += len(slots)
        self._pending_x, self._pending_slots = [], []
        if self.settings.freeze_at is not None and self._done > self.settings.freeze_at:
            return self._trainer.score(chunk)
        following = self._done // self.settings.chunk_size + 1
        replay: Replay = self._past_chunk if not past else lambda reader: self._past_chunk(reader, past[reader])
        return self._trainer.turn(chunk, replay, position=position, following=following)

    def _past_chunks(self, slots: np.ndarray) -> list[Chunk]:
        """The chunks that the replay streams of the next turn read, where they are read before it changes anything."""
        assert self._trainer is not None
        done = self._done + len(self._pending_slots) + len(slots)
        frozen = self.settings.freeze_at is not None and done > self.settings.freeze_at
        if not self._memory.reads_fast or self._done < self.settings.chunk_size or frozen or self._trainer.busy:
            return []  # streams that are slow are read beside the steps, and while steps are under way, after them
        return [self._read_past(reader) for reader in range(len(self._trainer.readers))]

    def _read_past(self, reader: int) -> Chunk:
        assert self._trainer is not None
        start = (self._trainer.readers.chunk[reader] - 1) * self.settings.chunk_size
        return self._memory.read(start, start + self.settings.chunk_size)

    def _past_chunk(self, reader: int, chunk: Chunk | None = None) -> Callable[[], Examples]:
        """Reads the chunk at which a replay stream stands; calling the result makes it what it was when it was new."""
        inputs, known = self._inputs, self._known
        assert inputs is not None
        assert self._trainer is not None
        first = self._trainer.readers.chunk[reader] == 1
        chunk = self._read_past(reader) if chunk is None else chunk
        x, y = chunk.x, chunk.y
        slots = np.asarray(self.labels.assign(y), np.int64)
        return lambda: (inputs.replayed(reader, x, first=first), slots, np.full(len(slots), known))

    def _met(self, slots: np.ndarray) -> np.ndarray:
        """How many labels had been met before each of these examples, which come next."""
        if len(slots) == 1:
            return np.array([self._known])
        return np.maximum.accumulate(np.concatenate([[self._known], slots[:-1] + 1]))

    def _prepare(self, x: np.ndarray) -> None:
        if self._inputs is None:
            self._build(x.shape[1:], x.dtype)

    def _build(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Makes the network for inputs like the first example."""
        inputs = Inputs(self.settings, shape, dtype)
        if self.missing and not inputs.standardises:
            raise BadSetting(f"features may be missing only where they are standardised, but x has shape {shape}")
        self._check_memory(inputs.features)
        trainer = TrainerBehind if self.settings.async_steps else Trainer
        self._trainer = trainer(
            self.settings,
            features=inputs.features,
            extractor=inputs.extractor,
            shape=shape,
            classes=self.labels.capacity,
            device=self.device,
            neighbours=inputs.neighbours,
            compared=inputs.compared,
        )
        self._inputs = inputs

    def _check_memory(self, features: int) -> None:
        s, classes = self.settings, self.labels.capacity
        sizes = f"width ({s.width}), depth ({s.depth}), window ({s.window}), num_streams ({s.num_streams}), classes ({classes})"
        what = f"{features} features, {sizes}" if features > 1 else sizes
        if self.device.type == "cpu":
            check_fits(s.least_bytes(classes, features), what)

    def _checked(self, xs: Any, ys: Sequence[Hashable] | None = None) -> np.ndarray:
        x = super()._checked(xs, ys)
        if x.ndim > 2 or self.settings.standardize is False:
            check_float32(x, self.position)
        if self._inputs is not None and x.ndim > 2 and (x.dtype == np.uint8) != self._inputs.image_bytes:
            expected = "uint8" if self._inputs.image_bytes else "floats"
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
        cls, path: str | Path, *, home: str | Path | None = None, durability: Durability = 100, device: str = "auto"
    ) -> Self:
        """The learner that was saved to this file; in a home it begins with a save of its own."""
        if home is None:
            return cls._loaded(path, device=device)
        saved = read_checkpoint(Path(path))
        with loading(Path(path)):
            needs = bool(saved["state"]["learner"]["memory"]["journal"])
        source = Journal(saved_journal(Path(path), saved.get("journal"))) if needs else None
        learner = cls._loaded(path, device=device)
        place = Home(Path(home), durability, new=True)
        journal = place.begin({"config": learner.config(), "labels": learner.labels.state_dict()}, copied=source)
        learner._home, learner._memory = place, Memory(journal)
        with loading(Path(path)):
            learner.load_state_dict(saved["state"])
        learner.save()
        return learner

    def _load_beside(self, path: Path, saved: dict[str, Any]) -> None:
        if saved["state"]["learner"]["memory"]["journal"]:
            self._memory.load(path, saved.get("journal"))

    def _unsaved(self) -> dict[str, Any]:
        return {"device": str(self.device)}

    def _take_copy(self, other: Self) -> None:
        self._memory = other._memory.copy()
        super()._take_copy(other)

    @classmethod
    def open(cls, home: str | Path, *, durability: Durability | None = None, device: str = "auto") -> Self:
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
            learner._known = learner._known_at_border = len(learner.labels)
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
            image_bytes = self._inputs is not None and self._inputs.image_bytes
            like = np.zeros((1, *self.shape), np.uint8 if image_bytes else np.float64)
            lost = ranges(range(len(journal), self.position))
            journal.append_gap(missing, like)
            self._home.note(f"{lost} missing in {journal.directory}: they stay learnt, but are not replayed any more")
        else:
            lost_positions = journal.compact(self.position)
            if lost_positions:
                self._home.note(f"{ranges(lost_positions)} lost in {journal.directory}; those after moved up")
        for start in range(self.position, len(journal), self.stride):
            chunk = journal.read(start, start + self.stride)
            self.learn_many(chunk.x, chunk.y)
        self._memory.relearning = False

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
        self.labels, self._inputs, self._trainer = again.labels, again._inputs, again._trainer
        self._memory, self._done = again._memory, again._done
        self._known, self._known_at_border = again._known, again._known_at_border
        self._pending_x, self._pending_slots = again._pending_x, again._pending_slots

    def close(self) -> None:
        """Lets another learner have its home. What it knows stays: it can predict, but not learn."""
        with self._alone():
            if self._home is not None:
                self._memory.sync()
                if self._memory.journal is not None:
                    self._memory.journal.close()
                self._home.close()

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        self._memory.check_state(state["learner"]["memory"])

    def _state_dict(self) -> dict[str, Any]:
        pending = np.concatenate(self._pending_x) if self._pending_x else None
        trainer = None if self._trainer is None else self._trainer.state_dict()  # first: it waits for steps under way
        return {
            "image_bytes": self._inputs is not None and self._inputs.image_bytes,
            "inputs": None if self._inputs is None else self._inputs.state_dict(),
            "trainer": trainer,
            "memory": self._memory.state_dict(),
            "done": self._done,
            "known": [self._known, self._known_at_border],
            "pending_x": pending,
            "pending_slots": list(self._pending_slots),
        }

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self._inputs = self._trainer = None
        if state["inputs"] is not None:
            assert self.shape is not None
            self._build(self.shape, np.dtype(np.uint8 if state["image_bytes"] else np.float32))
            assert self._inputs is not None
            assert self._trainer is not None
            self._inputs.load_state_dict(state["inputs"])
            self._trainer.load_state_dict(state["trainer"])
        self._done = int(state["done"])
        self._known, self._known_at_border = (int(count) for count in state["known"])
        self._pending_x = [] if state["pending_x"] is None else [state["pending_x"]]
        self._pending_slots = [int(slot) for slot in state["pending_slots"]]
        self._memory.load_state_dict(state["memory"])
