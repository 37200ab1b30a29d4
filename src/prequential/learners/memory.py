"""What a learner can read again of what it has learned: a stream it follows, or a journal of its own."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import uuid
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from prequential.errors import BadCheckpoint, BadInput
from prequential.storage.files import DirectoryLock, make_directory, refuse_links, storage, sync_directory
from prequential.storage.scratch import ScratchDirectory
from prequential.streams.journal.journal import Journal
from prequential.streams.journal.log import Mark
from prequential.streams.stream import CausalView, Chunk, Stream


class Before(NamedTuple):
    """How a memory was before examples were taken."""

    length: int
    journal: Journal | None
    mark: Mark | None
    source: CausalView | None
    follows: bool


class Memory:
    """The past of a learner, on disk and never in memory.

    While it follows a stream, the past is that stream's beginning and nothing is stored. Otherwise every example is
    appended to a journal; when a learner that followed a stream goes on with other examples, the past is copied into
    the journal first.

    Parameters
    ----------
    journal
        The journal to go on with; by default one is made in a temporary directory, which goes with the memory.

    Examples
    --------
    >>> memory = Memory()
    >>> memory.write(np.array([[1.0], [2.0]]), ["a", "b"])
    >>> memory.advance(2)
    >>> memory.read(1, 2).y
    ['b']
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self.length = 0  # examples learned so far
        self.relearning = False  # whether what is learned is in the journal already
        self._scratch: ScratchDirectory | None = None
        self._source: CausalView | None = None
        self._follows = False  # whether what comes next is from the source
        self._journal = journal

    @property
    def journal(self) -> Journal | None:
        return self._journal

    def follow(self, stream: Stream | None) -> None:
        """Says that the past is the beginning of this stream and what comes next the rest of it; None: no longer.

        A memory that already keeps a journal goes on with it.
        """
        self._follows = stream is not None and self._journal is None
        if self._follows and stream is not None:
            self._source = CausalView(stream)
            self._source.present = self.length

    def write(
        self,
        x: np.ndarray,
        labels: Sequence[Hashable],
        *,
        asked_at: Sequence[int] | None = None,
        ids: Sequence[str] | None = None,
        origins: Sequence[str] | None = None,
    ) -> None:
        """Keeps examples that are learned now, all or none; they can be read when `advance` has counted them.

        `asked_at`, `ids` and `origins` are as for `Journal.append`.
        """
        if self._follows or self.relearning:
            return
        if self._journal is None:
            self._begin_journal()
        assert self._journal is not None
        self._journal.append(x, labels, asked_at=asked_at, ids=ids, origins=origins)

    def advance(self, count: int) -> None:
        """Counts examples that were written as learned."""
        self.length += count
        if self._follows:
            assert self._source is not None
            self._source.present += count

    def before(self) -> Before:
        """What `restore` brings back."""
        mark = None if self._journal is None else self._journal.mark()
        return Before(self.length, self._journal, mark, self._source, self._follows)

    def restore(self, before: Before) -> None:
        """Takes back all that came since; never fails."""
        self.length, self._journal, mark, self._source, self._follows = before
        if self._source is not None:
            self._source.present = self.length
        if self._journal is not None and mark is not None and not self.relearning:
            self._journal.rollback(mark)

    def read(self, start: int, stop: int) -> Chunk:
        """Examples of the past, without those that are damaged on disk; asking for later ones is an error."""
        if self._source is not None:
            return self._source.read(start, stop)
        if self._journal is None:
            raise self._lost()
        if not 0 <= start < stop <= self.length:
            raise BadInput(f"replay asked for examples {start} to {stop}, but the present is at {self.length}")
        return self._journal.readable(start, stop)

    @property
    def reads_fast(self) -> bool:
        """Whether reading is from a journal, of which several chunks may well be read before the first is used."""
        return not self._follows and self._journal is not None

    def sync(self) -> None:
        if self._journal is not None:
            self._journal.sync()

    @contextlib.contextmanager
    def saved_beside(self, path: Path) -> Iterator[dict[str, str]]:
        """Copies the journal, where there is one, beside a file that is written inside and names the copy.

        Each copy has a folder of its own, and the older ones go when the file is in place: at every moment the file
        that is there and the copy it names are whole.
        """
        place = beside(path)
        with storage(place):
            refuse_links(place.parent, place)
            if self._journal is None and not place.is_dir():
                yield {}
                return
            make_directory(place)
            with DirectoryLock(place):
                token = self._token(place)
                try:
                    if self._journal is not None:
                        self._journal.copy(place / token)
                        sync_directory(place)
                    yield {} if self._journal is None else {"journal": token}
                except BaseException:
                    shutil.rmtree(place / token, ignore_errors=True)
                    raise
                for old in place.iterdir():
                    if old.name != token and re.fullmatch("[0-9a-f]{32}", old.name) and not old.is_symlink():
                        shutil.rmtree(old, ignore_errors=True)
                for name in ("x.bin", "y.bin", "labels.jsonl", "journal.json"):  # of an earlier version
                    (place / name).unlink(missing_ok=True)
            if self._journal is None:
                (place / ".lock").unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # something of somebody else is in it
                    place.rmdir()

    def _token(self, place: Path) -> str:
        """A name for a copy of the journal that is not taken; the same for the same examples, where it can be."""
        known = "" if self._journal is None else f"{self._journal.identity} {len(self._journal)}"
        token = hashlib.md5(known.encode(), usedforsecurity=False).hexdigest()
        return uuid.uuid4().hex if (place / token).exists() else token

    def load(self, path: Path, token: object) -> None:
        """Takes a copy of the journal that was saved beside a file, which names it so."""
        directory = saved_journal(path, token)
        self._scratch = ScratchDirectory()
        Journal(directory).copy(self._scratch.path, scratch=True)
        self._journal = Journal(self._scratch.path, write=True, scratch=True)

    def copy(self) -> Memory:
        """A memory of its own with the same past: a stream is shared, a journal copied to a temporary directory."""
        copied = Memory()
        copied.length = self.length
        if self._source is not None:
            copied._source, copied._follows = CausalView(self._source.stream), self._follows
            copied._source.present = self.length
        if self._journal is not None:
            copied._scratch = ScratchDirectory()
            self._journal.copy(copied._scratch.path, scratch=True)
            copied._journal = Journal(copied._scratch.path, write=True, scratch=True)
        return copied

    def snapshot(self) -> Memory:
        """A memory that says how much was learned and holds nothing of it."""
        empty = Memory()
        empty.length = self.length
        return empty

    def state_dict(self) -> dict[str, int | bool]:
        return {"length": self.length, "journal": self._journal is not None}

    def check_state(self, state: dict[str, int | bool]) -> None:
        """Refuses a state that needs examples which are not here."""
        length = int(state["length"])
        if state["journal"] and self._journal is not None and not self.relearning and length > len(self._journal):
            raise BadInput(
                f"the journal {self._journal.directory} holds {len(self._journal)} examples, expected at least {length}"
            )

    def load_state_dict(self, state: dict[str, int | bool]) -> None:
        self.length = int(state["length"])
        if state["journal"] and self._journal is not None and not self.relearning:
            self._journal.truncate(self.length)
        if self._source is not None:
            self._source.present = self.length

    def past(self) -> Iterator[Chunk]:
        """What was learned, where it is in a stream and not in a journal."""
        if self.length and self._source is None:
            raise self._lost()
        for start in range(0, self.length, 1024):
            assert self._source is not None
            yield self._source.read(start, min(start + 1024, self.length))

    def _begin_journal(self) -> None:
        if self.length and self._source is None:
            raise self._lost()
        scratch = ScratchDirectory()
        journal = Journal(scratch.path, write=True, scratch=True)
        for chunk in self.past():
            journal.append(chunk.x, chunk.y)
        self._scratch, self._journal, self._source = scratch, journal, None

    def _lost(self) -> BadInput:
        return BadInput(
            f"this learner has learned {self.length} examples of a stream; "
            "give it that stream with replay_from(stream) before it learns on"
        )


def beside(path: str | Path) -> Path:
    """Where the examples of a learner saved to this file are kept."""
    return Path(path).with_name(Path(path).name + ".journal")


def saved_journal(path: Path, token: object) -> Path:
    """The folder of the journal that a file names; in files of earlier versions, which name none, it is the only one."""
    if token is not None and not (isinstance(token, str) and re.fullmatch("[0-9a-f]{32}", token)):
        raise BadCheckpoint(f"{path} names {str(token)[:40]!r} as its journal, which is no name of one")
    place = beside(path) if token is None else beside(path) / str(token)
    if not place.is_dir():
        raise BadCheckpoint(f"the examples that were saved with the learner are missing: there is no {place}")
    return place
