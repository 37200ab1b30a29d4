"""Replay-streams: where in the past each replay stream reads next."""

from __future__ import annotations

from typing import Any

import numpy as np


class ReplayReaders:
    """The positions of the replay streams, counted in chunks from 1.

    At turn n every reader reads its chunk and moves on to the next one; then, each by its own draw, it goes back to
    chunk 1 with probability 1/n. That makes the chunk read at turn n >= 2 exactly uniform on 1..n-1: strictly past.
    (At turn 1 there is no past yet; the readers read chunk 1, which has just been scored.)

    Parameters
    ----------
    readers
        How many replay streams: E - 1 where E counts the reported stream too.
    seed
        Where the draws start; the same seed gives the same replay.

    Examples
    --------
    >>> readers = ReplayReaders(1, seed=0)
    >>> for turn in range(1, 8):
    ...     chunk = readers.chunk[0]
    ...     began_again = readers.advance(0, turn)
    ...     print(turn, chunk, began_again)
    1 1 True
    2 1 True
    3 1 True
    4 1 True
    5 1 False
    6 2 False
    7 3 False
    """

    def __init__(self, readers: int, *, seed: int) -> None:
        self.chunk = [1] * readers
        self._random = [np.random.PCG64([seed, reader]) for reader in range(readers)]

    def __len__(self) -> int:
        return len(self.chunk)

    def advance(self, reader: int, turn: int, following: int | None = None) -> bool:
        """Moves a reader past the chunk it has just read; whether it went back to the start.

        `following` is the number of the next turn where it is not turn + 1: a turn that was cut short repeats its
        number, and a reader that would then read the present goes back to the start.
        """
        following = turn + 1 if following is None else following
        self.chunk[reader] += 1
        uniform = self._random[reader].random_raw() / 2**64
        begin = uniform < 1 / turn or self.chunk[reader] >= max(following, 2)
        if begin:
            self.chunk[reader] = 1
        return begin

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
