"""Replay streams: where in the past each of them reads, and the chunks they read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from prequential.labels import Labels
from prequential.learners.memory import Memory

AHEAD = 4  # chunks that are read at once for a stream
SMALL = 2**16  # bytes of them at most


class ReplayPositions:
    """The positions of the replay streams, counted in chunks from 1.

    At turn n every stream reads its chunk and moves on to the next one; then, each by its own draw, it goes back to
    chunk 1 with probability 1/n. That makes the chunk read at turn n >= 2 exactly uniform on 1..n-1: strictly past.
    (At turn 1 there is no past yet; the streams read chunk 1, which has just been scored.)

    Parameters
    ----------
    num_streams
        How many replay streams: E - 1 where E counts the reported stream too.
    seed
        Where the draws start; the same seed gives the same replay.

    Examples
    --------
    >>> positions = ReplayPositions(1, seed=0)
    >>> for turn in range(1, 8):
    ...     chunk = positions.chunk[0]
    ...     restarted = positions.advance(0, turn)
    ...     print(turn, chunk, restarted)
    1 1 True
    2 1 True
    3 1 True
    4 1 True
    5 1 False
    6 2 False
    7 3 False
    """

    def __init__(self, num_streams: int, *, seed: int) -> None:
        self.chunk = [1] * num_streams
        self._random = [np.random.PCG64([seed, stream]) for stream in range(num_streams)]

    def __len__(self) -> int:
        return len(self.chunk)

    def advance(self, stream: int, turn: int, next_turn: int | None = None) -> bool:
        """Moves a stream past the chunk it has just read; whether it went back to the start.

        `next_turn` is the number of the next turn where it is not turn + 1: a turn that was cut short repeats its
        number, and a stream that would then read the present goes back to the start.
        """
        next_turn = turn + 1 if next_turn is None else next_turn
        self.chunk[stream] += 1
        uniform = self._random[stream].random_raw() / 2**64
        restarts = uniform < 1 / turn or self.chunk[stream] >= max(next_turn, 2)
        if restarts:
            self.chunk[stream] = 1
        return restarts

    def state_dict(self) -> dict[str, Any]:
        # the generator's numbers have 128 bits, more than a JSON reader must keep: they go as text
        raw = [random.state for random in self._random]
        return {"chunk": list(self.chunk), "random": [{k: str(v) for k, v in s["state"].items()} for s in raw]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.chunk = [int(chunk) for chunk in state["chunk"]]
        for random, saved in zip(self._random, state["random"], strict=True):
            whole: dict[str, Any] = dict(random.state)
            whole["state"] = {name: int(text) for name, text in saved.items()}
            random.state = whole  # type: ignore[assignment]


class ReplayChunk(NamedTuple):
    """A chunk of the past, as it came."""

    stream: int  # which replay stream reads it, from 0
    restarts: bool  # whether the stream has gone back to the start, so that this is its first chunk
    x: np.ndarray  # (n, *shape); shorter than a chunk, or empty, where examples are damaged on disk
    class_ids: np.ndarray  # (n,)


class _Ahead(NamedTuple):
    """Examples that a stream reads next."""

    start: int  # the position of the first
    x: np.ndarray
    class_ids: np.ndarray


class Replay:
    """The replay streams of a learner: reads, for every turn, the chunk at which each of them stands.

    Parameters
    ----------
    num_streams
        How many replay streams: E - 1 where E counts the reported stream too.
    chunk_size
        Examples per chunk.
    memory
        What it reads from.
    labels
        What turns labels into class ids.
    seed
        Of the positions.
    """

    def __init__(self, num_streams: int, *, chunk_size: int, memory: Memory, labels: Labels, seed: int) -> None:
        self.positions = ReplayPositions(num_streams, seed=seed)
        self.chunk_size, self.memory, self.labels = chunk_size, memory, labels
        self._ahead: list[_Ahead | None] = [None] * num_streams  # what was read ahead for each stream
        self._small = False  # whether examples are so small that this pays

    def __len__(self) -> int:
        return len(self.positions)

    def read(self, end: int) -> list[ReplayChunk]:
        """The chunks of the next turn, before example `end`. Changes nothing, so that what fails here leaves no trace."""
        return list(self._read(end))

    def _read(self, end: int) -> Iterator[ReplayChunk]:
        for stream, number in enumerate(self.positions.chunk):
            start = (number - 1) * self.chunk_size
            x, class_ids = self._chunk(stream, start, min(start + self.chunk_size, end), end)
            yield ReplayChunk(stream, number == 1, x, class_ids)

    def _chunk(self, stream: int, start: int, stop: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The examples start..stop-1 and their class ids. Small ones are read some chunks ahead, which saves time."""
        ahead = self._ahead[stream]
        if ahead is None or not ahead.start <= start < stop <= ahead.start + len(ahead.class_ids):
            most = stop
            if self._small and self.memory.reads_fast:
                before = (end - 1) // self.chunk_size * self.chunk_size  # what is learned now may still be taken back
                most = max(stop, min(start + AHEAD * self.chunk_size, before))
            ahead = self._read_ahead(start, most)
            if most > stop and len(ahead.class_ids) < most - start:  # some are damaged, and those behind have moved up
                ahead = self._read_ahead(start, stop)
            self._ahead[stream] = ahead if self.memory.reads_fast else None
            self._small = ahead.x[:1].nbytes * AHEAD * self.chunk_size <= SMALL
        at = slice(start - ahead.start, stop - ahead.start)
        return ahead.x[at], ahead.class_ids[at]

    def _read_ahead(self, start: int, stop: int) -> _Ahead:
        chunk = self.memory.read(start, stop)
        return _Ahead(start, chunk.x, np.asarray(self.labels.assign(chunk.y), np.int64))

    def advance(self, start: int, stop: int) -> None:
        """Moves all streams on after the turn on examples start..stop-1."""
        turn, next_turn = start // self.chunk_size + 1, stop // self.chunk_size + 1
        for stream in range(len(self.positions)):
            self.positions.advance(stream, turn, next_turn)

    def state_dict(self) -> dict[str, Any]:
        return self.positions.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.positions.load_state_dict(state)
