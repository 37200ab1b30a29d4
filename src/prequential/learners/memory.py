"""What a learner can read again of what it has learnt: a stream it follows, or a journal of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np

from prequential.errors import BadCheckpoint, BadInput
from prequential.streams.journal import Journal
from prequential.streams.stream import Chunk, Stream, Watched


class Memory:
    """The past of a learner, on disk and never in memory.

    While it follows a stream, the past is that stream's beginning and nothing is stored. Otherwise every example is
    appended to a journal; when a learner that followed a stream goes on with other examples, the past is copied into
    the journal first.

    Parameters
    ----------
    directory
        Where the journal is kept; by default in a temporary directory that goes with the memory.

    Examples
    --------
    >>> memory = Memory()
    >>> memory.keep(np.array([[1.0], [2.0]]), ["a", "b"])
    >>> memory.read(1, 2).y
    ['b']
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.length = 0  # examples learnt so far
        self._directory = directory
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._source: Watched | None = None
        self._follows = False  # whether what comes next is from the source
        self._journal: Journal | None = None

    def follow(self, stream: Stream | None) -> None:
        """Says that the past is the beginning of this stream and what comes next the rest of it; None: no longer.

        A memory that already keeps a journal goes on with it.
        """
        # where a directory was asked for, everything that is learnt is kept there
        self._follows = stream is not None and self._journal is None and self._directory is None
        if self._follows and stream is not None:
            self._source = Watched(stream)
            self._source.present = self.length

    def keep(self, x: np.ndarray, labels: Sequence[Hashable]) -> None:
        """Takes examples that are learnt now."""
        if self._follows:
            assert self._source is not None
            self._source.present += len(labels)
        else:
            if self._journal is None:
                self._begin_journal()
            assert self._journal is not None
            self._journal.append(x, labels)
        self.length += len(labels)

    def read(self, start: int, stop: int) -> Chunk:
        """Examples of the past; asking for later ones is an error."""
        past = self._source if self._follows else self._journal
        if past is None:
            raise self._lost()
        return past.read(start, stop)

    def sync(self) -> None:
        if self._journal is not None:
            self._journal.sync()

    def save(self, directory: Path) -> None:
        """Copies the journal, where there is one, to a directory."""
        if self._journal is not None:
            self._journal.copy(directory)

    def load(self, directory: Path) -> None:
        """Takes a copy of a journal that was saved."""
        if not directory.is_dir():
            raise BadCheckpoint(f"the examples that were saved with the learner are missing: there is no {directory}")
        self._journal = Journal(directory).copy(self._place())

    def adopt(self, journal: Journal) -> None:
        """Goes on with a journal, in its place."""
        self._source, self._follows, self._journal = None, False, journal

    def state(self) -> dict[str, int | bool]:
        return {"length": self.length, "journal": self._journal is not None}

    def load_state(self, state: dict[str, int | bool]) -> None:
        if state["journal"]:
            self.forget(int(state["length"]))
        self.length = int(state["length"])
        if self._source is not None:
            self._source.present = self.length

    def forget(self, length: int) -> None:
        """Holds the first `length` examples only."""
        self.length = length
        if self._journal is not None:
            self._journal.truncate(length)
        if self._source is not None:
            self._source.present = length

    def _begin_journal(self) -> None:
        if self.length and self._source is None:
            raise self._lost()
        self._journal = Journal(self._place())
        if self._source is not None:
            for start in range(0, self.length, 1024):
                chunk = self._source.read(start, min(start + 1024, self.length))
                self._journal.append(chunk.x, chunk.y)
            self._source = None

    def _place(self) -> Path:
        if self._directory is not None:
            return self._directory
        self._temporary = tempfile.TemporaryDirectory(prefix="prequential-")
        return Path(self._temporary.name)

    def _lost(self) -> BadInput:
        return BadInput(
            f"this learner has learnt {self.length} examples of a stream; "
            "give it that stream with replay_from(stream) before it learns on"
        )


def beside(path: str | Path) -> Path:
    """Where the examples of a learner saved to this file are kept."""
    return Path(path).with_name(Path(path).name + ".journal")
