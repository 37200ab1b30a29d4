"""Learners that live in a directory: with a journal of what they learned, with saves, and opened again after a kill."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from prequential.errors import BadCheckpoint, BadInput, BadSetting
from prequential.learners import by_id
from prequential.learners.asked import Event
from prequential.learners.chunked import ChunkedLearner
from prequential.learners.home import Home, holds_learner
from prequential.learners.memory import Memory, saved_journal
from prequential.storage.checkpoint import loading, read_checkpoint
from prequential.streams.journal.journal import Journal
from prequential.streams.journal.log import Durability
from prequential.streams.journal.reading import ranges
from prequential.streams.stream import Stream
from prequential.trust import names_from, stored_arguments

Watch = Callable[[Any, Journal, int, int], None]  # of a learner that learns a range of its journal again


class HomeLearner(ChunkedLearner):
    """A learner that keeps its past in a journal, and where it is given a home, itself there as well.

    In a home, examples are written to the journal before they are learned. A learner that was killed is opened from its
    newest save and learns again what came after it. Without a home, the journal is in a temporary directory.

    A subclass takes `device` as an argument of its constructor, calls `_settle_new` at its end, and puts
    `memory.state_dict()` into its state as `memory`.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    missing
        Whether features may be NaN, meaning "not measured".
    """

    device: torch.device

    def __init__(self, classes: int | Sequence[Hashable] | None = None, *, missing: bool = False) -> None:
        super().__init__(classes, missing=missing)
        self._home: Home | None = None
        self._memory = Memory()

    def _settle_new(self, home: str | Path, durability: Durability) -> None:
        """Makes a home for a learner that has learned nothing."""
        self._home = Home(Path(home), durability, new=True)
        self._memory = Memory(self._home.begin(self._made()))

    @property
    def home(self) -> Path | None:
        """The directory it lives in, if it has one."""
        return None if self._home is None else self._home.directory

    @property
    def journal(self) -> Journal | None:
        """The examples that it keeps, where it keeps them itself."""
        return self._memory.journal

    @property
    def saved_position(self) -> int:
        """How many examples it had learned when it was last saved in its home; 0 where it was not."""
        return 0 if self._home is None else self._home.saved_position

    def unsynced_files(self) -> list[Path]:
        """The files of its home that take what comes next: syncing them makes all so far survive a power cut."""
        if self._home is None or self._memory.journal is None:
            return []
        return [path for path in (self._memory.journal.path, self._home.asked.path) if path is not None]

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

    def replay_from(self, stream: Stream | None) -> None:
        """Replays from this stream instead of keeping a copy; None: what comes next is kept in a journal."""
        with self._guard.changing(), self._guard.inside(whole=False):
            self._memory.follow(stream)

    # Saving and opening.

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

    @classmethod
    def open(
        cls,
        home: str | Path,
        *,
        durability: Durability | None = None,
        device: str = "auto",
        trust: bool = False,
        watch: Watch | None = None,
    ) -> Self:
        """The learner that lives in this directory, as it was after the last example it was given.

        It goes on from its newest save and learns again, from the journal, what came after that. Where something in
        the home is damaged or missing, it goes on with everything else; each such thing is said in a `DamageWarning`
        and in `notes`. `watch` is called with the learner, the journal and a range of it, before that is learned again.
        """
        directory = Path(home)
        if not directory.is_dir() or not holds_learner(directory):
            raise BadInput(f"{directory} holds no learner; Learner(..., home=...) makes one there")
        place = Home(directory, durability)
        try:
            journal = place.open()
            with names_from(directory, trust=trust):
                learner = cls._from_save(place, journal, device)
            learner._catch_up(journal, watch)
        except BaseException:
            place.close()
            raise
        return learner

    @classmethod
    def _from_save(cls, place: Home, journal: Journal, device: str) -> Self:
        """The learner of a home, as it was at its newest save that can be used; else a new one."""
        found: list[Self] = []

        def refuse(state: dict[str, Any]) -> str | None:
            learner = cls._new_in(place, journal, device)
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
            place.note(f"{sentence}; {'an earlier save is used' if found else 'everything is learned again'}")
        return found[0] if found else cls._new_in(place, journal, device)

    @classmethod
    def _new_in(cls, place: Home, journal: Journal, device: str) -> Self:
        """A learner made as that of a home was, which has learned nothing yet."""
        path = place.directory / "learner.json"
        with loading(path):
            learner = cls(**{**stored_arguments(cls, place.made.get("config"), path), "device": device})
            learner.labels.load_state_dict(place.made["labels"])
            if len(journal) or place.made.get("schema_given"):  # else no row was learned by it
                learner._rows.load(cls._stored_schema({"shape": None, **place.made}))
        learner._begin_with_labels()
        learner._home, learner._memory = place, Memory(journal)
        learner._memory.relearning = True
        return learner

    def _catch_up(self, journal: Journal, watch: Watch | None = None) -> None:
        """Learns what came after the save; where examples are lost, the journal and the learner are made to agree."""
        assert self._home is not None
        missing = self.position - len(journal)
        if missing > 0:  # what was learned from them is in the save
            assert self.shape is not None
            like = np.zeros((1, *self.shape), np.uint8 if self._image_bytes else np.float64)
            lost = ranges(range(len(journal), self.position))
            journal.append_gap(missing, like)
            self._home.note(f"{lost} missing in {journal.directory}: they stay learned, but are not replayed any more")
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
            self._relearn(journal, start, min(start + self.stride, boundary), watch)
        # one by one, as live examples mostly come: in one call, what is current would differ in its last bits
        for start in range(self.position, len(journal)):
            self._relearn(journal, start, start + 1, watch)
        self.asked.settle()
        self._memory.relearning = False

    def _relearn(self, journal: Journal, start: int, stop: int, watch: Watch | None) -> None:
        """Learns examples of the journal again, as late as their labels came."""
        if watch is not None:
            watch(self, journal, start, stop)
        chunk, (asked_at, ids) = journal.read(start, stop), journal.arrivals(start, stop)
        at_once = np.array_equal(asked_at, np.arange(start, stop))
        self.learn_many(chunk.x, chunk.y, asked_at=None if at_once else asked_at)
        by_id.relearned(self, start, asked_at, ids, chunk.y)

    def close(self) -> None:
        """Lets another learner have its home. What it knows stays: it can predict, but not learn."""
        with self._alone():
            if self._home is not None:
                self._memory.sync()
                self._home.asked.sync()
                if self._memory.journal is not None:
                    self._memory.journal.close()
                self._home.close()

    def flush(self) -> None:
        """Takes the steps of the unfinished chunk now. The next chunk is the rest of it."""
        with self._guard.changing():
            pending = bool(self._pending_ids)
            super().flush()
            if pending and self._home is not None:  # the journal does not know that the chunk was cut short here
                self.save()

    def _made(self) -> dict[str, Any]:
        """What a home keeps of how its learner is made."""
        schema = {} if self.schema is None else {"schema": self.schema.to_dict(), "schema_given": self._rows.given}
        return {"config": self.config(), "labels": self.labels.state_dict(), **schema}

    # What the base classes leave to it.

    def _keep_schema(self) -> None:
        if self._home is not None and not self._memory.relearning:
            self._home.remember({"schema": self.schema.to_dict(), "schema_given": self._rows.given})

    def _keep_events(self, events: list[Event]) -> None:
        if self._home is not None:
            self._home.write_events(events, self.asked.whole)

    @property
    def _relearning(self) -> bool:
        return self._memory.relearning

    def _accept(self, x: np.ndarray, ys: Sequence[Hashable]) -> np.ndarray:
        class_ids = super()._accept(x, ys)
        labels = [self.labels[class_id] for class_id in class_ids]
        asked_at = None if self._lags is None else (self.position + np.arange(len(x)) - self._lags).tolist()
        self._memory.write(x, labels, asked_at=asked_at, ids=self._ids, origins=self._origins)
        return class_ids

    def _begin_part(self, count: int) -> None:
        self._memory.advance(count)

    @contextmanager
    def _beside(self, path: Path) -> Iterator[dict[str, Any]]:
        with self._memory.saved_beside(path) as named:
            yield named

    def _load_beside(self, path: Path, saved: dict[str, Any]) -> None:
        if saved["state"]["learner"]["memory"]["journal"]:
            self._memory.load(path, saved.get("journal"))

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        self._memory.check_state(state["learner"]["memory"])

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
        self._become(again)

    def _become(self, again: Self) -> None:
        """Takes over everything of a learner that was made in its place."""
        self.position, self.shape = again.position, again.shape
        self.labels, self._memory, self.asked = again.labels, again._memory, again.asked
        self._load_chunk_state(again._chunk_state())

    def _begin_with_labels(self) -> None:
        """Counts labels that are known before the first example as seen."""
        self.num_seen = len(self.labels)

    @property
    def _image_bytes(self) -> bool:
        """Whether x are images of bytes."""
        return False
