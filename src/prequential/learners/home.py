"""The directory in which a live learner keeps its examples and its saves: who writes there, and what is in it."""

from __future__ import annotations

import os
import shutil
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prequential.errors import BadCheckpoint, BadInput, DamageWarning
from prequential.storage.checkpoint import CheckpointFolder, Refuse
from prequential.storage.files import (
    KeptLock,
    is_temporary,
    make_directory,
    refuse_links,
    remove_temporaries,
    storage,
    write_atomically,
)
from prequential.storage.migrations import FORMAT, migrate_home
from prequential.storage.sealed import read_sealed, write_sealed
from prequential.streams.journal.asked_log import AskedLog, Event
from prequential.streams.journal.journal import Journal
from prequential.streams.journal.log import Durability, check_durability
from prequential.streams.stream import Chunk

NAME = "prequential-home-"  # followed by the format number
FORMATS = tuple(f"{NAME}{number}" for number in range(2, FORMAT + 1))  # format 1 had no name
BEGUN = ".begun.tmp"  # there while a home is being made


class Home:
    """A directory with `learner.json` (what the learner is made with), `journal/` and `saves/`.

    One writer at a time has it. Every file holds its id, so that a file of another learner is noticed.

    Parameters
    ----------
    directory
        The directory.
    durability
        After how many examples the journal is synced; None: as it was.
    new
        Whether to make it.
    """

    def __init__(self, directory: Path, durability: Durability | None = None, *, new: bool = False) -> None:
        self.directory = directory
        if new and directory.exists():
            self._check_free()
        self.identity = ""
        self.notes: list[str] = []  # what is damaged or was repaired, a sentence each
        self._given = None if durability is None else check_durability(durability)
        self.made: dict[str, Any] = {}  # what the learner is made with
        self._process = os.getpid()
        self._asked: AskedLog | None = None
        self._saved: tuple[int, int] = (-1, 0)  # position of the newest save, and the file of events it begins with
        with storage(directory):
            make_directory(directory)
            self._lock = KeptLock(directory)
        weakref.finalize(self, self._lock.free)

    @property
    def durability(self) -> Durability:
        kept: Durability = self.made.get("durability", 100)
        return kept if self._given is None else self._given

    def begin(self, made: dict[str, Any], *, copied: Journal | None = None, past: Iterable[Chunk] = ()) -> Journal:
        """Makes a new home for a learner that is made so; its journal.

        It may begin with the examples of another journal, or with those of a stream (`past`).
        """
        self._check_free()
        self._remove_unfinished()
        with storage(self.directory):
            remove_temporaries(self.directory)
            write_atomically(self.directory / BEGUN, b"")
            self.identity = uuid.uuid4().hex
            self.made = {**made, "durability": self.durability}
            if copied is not None:
                copied.copy(self.directory / "journal", identity=self.identity)
            journal = self._journal()
            journal.claim(self.identity)
            for chunk in past:
                journal.append(chunk.x, chunk.y)
            journal.sync()
            self._write()
            remove_temporaries(self.directory)
        return journal

    @property
    def asked(self) -> AskedLog:
        """What the learner was asked by id, since its saves."""
        if self._asked is None:
            self._asked = AskedLog(self.directory / "asked", self.identity, self.durability, self.notes)
        return self._asked

    def write_events(self, events: list[Event], whole: Callable[[], list[Event]]) -> None:
        """Writes down what the learner was asked; they are on disk when this returns."""
        if os.getpid() != self._process:
            raise BadInput(
                f"this process was forked from the one that works in {self.directory}: it cannot be asked by id"
            )
        with storage(self.directory):
            self._lock.ensure()
        self.asked.append(events, whole)

    @property
    def saved_position(self) -> int:
        """The position of the newest save."""
        return max(self._saved[0], 0)

    @property
    def asked_since(self) -> int:
        """The first file of events that the newest save does not know of."""
        return self._saved[1]

    def _remove_unfinished(self) -> None:
        """Removes the journal of a home whose maker was killed before it was done: nothing was learned in it."""
        if _unfinished(self.directory):
            with storage(self.directory):
                refuse_links(self.directory, self.directory / "journal")
                shutil.rmtree(self.directory / "journal", ignore_errors=True)

    def _check_free(self) -> None:
        """Refuses a directory in which something is that a process killed while it began has not left."""
        if not _unfinished(self.directory):
            for path in self.directory.iterdir() if self.directory.is_dir() else [self.directory]:
                if path.name != ".lock" and not is_temporary(path):
                    raise BadInput(
                        f"{self.directory} is not empty; Learner.open goes on with a learner that lives there"
                    )

    def open(self) -> Journal:
        """Opens what is there, and finds out what can be used; the journal."""
        with storage(self.directory):
            names = (
                "asked",
                "learner.json",
                "journal",
                "saves",
                "journal/journal.json",
                "journal/log.bin",
                "journal/index.bin",
            )
            refuse_links(self.directory, *(self.directory / name for name in names))
            remove_temporaries(self.directory)
            remove_temporaries(self.directory / "saves")
            remove_temporaries(self.directory / "asked")
            write = self._read()
            journal = self._journal()
            if not self.identity:
                self.identity, write = journal.identity or uuid.uuid4().hex, True
            if journal.identity is None:
                if self.made.get("format") == FORMATS[-1]:
                    self.note(f"{journal.directory} is missing or empty")
                    journal.missing_log = True
                journal.claim(self.identity)
            if write or self.made.get("durability") != self.durability:
                self.made = {**self.made, "durability": self.durability}
                self._write()
        return journal

    def remember(self, more: dict[str, Any]) -> None:
        """Keeps something more of what the learner is made with; it is on disk when this returns."""
        with storage(self.directory):
            self._lock.ensure()
            before, self.made = self.made, {**self.made, **more}
            try:
                self._write()
            except BaseException:
                self.made = before
                raise

    def save(self, position: int, state: dict[str, Any], journal: Journal) -> None:
        """Writes a save; it says which home it belongs to and what the learner is made with."""
        with storage(self.directory):
            self._lock.ensure()
            refuse_links(self.directory, self.directory / "saves")
            place: dict[str, Any] = {"generation": journal.generation, "last": journal.stamp(position)}
            if "asked" in state:
                place["asked"] = self.asked.begin_file()
            home = {"id": self.identity, **place, "made": self.made}
            self._saves.write(position, {**state, "home": home})
            if "asked" in state:
                before, since = self._saved
                if before != position:  # else the save took the place of the newest, and the one before is still there
                    self.asked.forget(since)
                self._saved = position, place["asked"]
            else:
                self._saved = position, self._saved[1]

    def newest(self, journal: Journal, refuse: Refuse) -> tuple[dict[str, Any] | None, list[str]]:
        """The newest save that belongs here and that `refuse` says nothing against; why others are not used."""

        def foreign(state: dict[str, Any]) -> str | None:
            home = state.get("home") or {}
            if home.get("id", self.identity) != self.identity:
                return f"it is a save of another learner, whose id is {str(home['id'])[:40]}"
            position = state.get("position")
            if not isinstance(position, int) or position < 0:
                return "it says nothing of a position"
            if not journal.holds(int(home.get("generation", 0)), position):
                return f"the journal was cut back or closed up before example {position}"
            if None not in (last := home.get("last"), stamp := journal.stamp(position)) and last != stamp:
                return f"example {position - 1} is another one in the journal"
            return refuse(state)

        state, refused = self._saves.newest(foreign)
        self._saved = (-1, 0)
        if state is not None:
            since = (state.get("home") or {}).get("asked", 0)
            self._saved = state["position"], since if isinstance(since, int) else 0
        return state, [_short(sentence) for sentence in refused]

    def note(self, sentence: str) -> None:
        """Says something about damage: as a warning, and in `notes`."""
        self.notes.append(sentence)
        warnings.warn(sentence, DamageWarning, stacklevel=4)

    def close(self) -> None:
        self._lock.free()

    @property
    def _saves(self) -> CheckpointFolder:
        return CheckpointFolder(self.directory / "saves")

    def _journal(self) -> Journal:
        place = self.directory / "journal"
        return Journal(place, write=True, durability=self.durability, identity=self.identity or None, lock=self._lock)

    def _write(self) -> None:
        content = {key: value for key, value in self.made.items() if key not in ("format", "id")}
        self.made = {"format": FORMATS[-1], "id": self.identity, **content}
        write_sealed(self.directory / "learner.json", self.made)

    def _read(self) -> bool:
        """Finds out what the learner is made with; whether that has to be written again."""
        path = self.directory / "learner.json"
        try:
            made = read_sealed(path)
            _check_made(made, path)
        except BadCheckpoint as error:
            state, _ = self._saves.newest(lambda state: _why_not(state, path))
            if state is None:
                raise BadCheckpoint(f"{error}, and no save says what the learner is made with") from None
            made = state["home"]["made"]
            self.note(f"{error}; it was made again from a save")
            self.made, self.identity = made, str(made["id"])
            return True
        found = made.get("format")
        made = migrate_home(made, FORMATS.index(found) + 2 if found in FORMATS else 1)
        self.made, self.identity = {**made, "format": FORMATS[-1]} if found else made, str(made.get("id", ""))
        return found != FORMATS[-1]


def holds_learner(directory: Path) -> bool:
    """Whether a directory looks like a home."""
    there = any((directory / name).exists() for name in ("learner.json", "saves", "journal"))
    return there and not _unfinished(directory)


def _unfinished(directory: Path) -> bool:
    return (directory / BEGUN).is_file() and not any((directory / name).exists() for name in ("learner.json", "saves"))


def _check_made(made: Any, path: Path) -> None:
    good = isinstance(made, dict) and isinstance(made.get("config"), dict) and isinstance(made.get("labels"), dict)
    if good and "format" in made and made["format"] not in FORMATS:
        raise BadInput(f"{path} has format {str(made['format'])[:40]!r}, expected {FORMATS[-1]!r}")
    if good and "format" in made:
        good = isinstance(made.get("id"), str) and bool(made["id"])
        try:
            check_durability(made["durability"])
        except (KeyError, BadInput):
            good = False
    if not good:
        raise BadCheckpoint(f"{path} is damaged: it does not say what a learner is made with")


def _why_not(state: dict[str, Any], path: Path) -> str | None:
    try:
        _check_made(state["home"]["made"], path)
        return None if state["home"]["made"]["id"] == state["home"]["id"] else "its ids differ"
    except (KeyError, TypeError, BadCheckpoint, BadInput):
        return "it does not say what the learner is made with"


def _short(sentence: str) -> str:
    return sentence if len(sentence) <= 280 else sentence[:279] + "…"
