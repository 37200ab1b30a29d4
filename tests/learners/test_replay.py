"""Replay-streams read uniformly from the strict past."""

import json
from collections import Counter

import numpy as np
import pytest

from prequential.labels import Labels
from prequential.learners.memory import Memory
from prequential.learners.replay import Replay, ReplayPositions

READERS = 6000


def chunks_at(turn: int) -> list[int]:
    readers = ReplayPositions(READERS, seed=11)
    for now in range(1, turn):
        for reader in range(READERS):
            readers.advance(reader, now)
    return readers.chunk


@pytest.mark.parametrize("turn", [2, 3, 5, 12])
def test_the_chunk_read_is_uniform_on_the_past(turn):
    counts = Counter(chunks_at(turn))
    assert set(counts) == set(range(1, turn))
    expected = READERS / (turn - 1)
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    degrees = turn - 2
    # five standard deviations above the mean of a chi-square with so many degrees of freedom
    assert chi_square <= degrees + 5 * np.sqrt(2 * degrees)


def test_visits_follow_the_logarithm_of_the_age():
    """An example at relative position u is visited 1 + (E - 1) ln(1 / u) times in expectation."""
    turns, streams = 200, 400
    readers = ReplayPositions(streams - 1, seed=5)
    visits = np.ones(turns)  # by the reported stream
    for turn in range(1, turns + 1):
        for reader in range(streams - 1):
            if turn > 1:
                visits[readers.chunk[reader] - 1] += 1
            readers.advance(reader, turn)
    for u in (0.1, 0.25, 0.5, 0.9):
        around = visits[int(u * turns) - 5 : int(u * turns) + 5].mean()
        assert around == pytest.approx(1 + (streams - 1) * np.log(1 / u), rel=0.1)


def test_the_streams_draw_on_their_own():
    readers = ReplayPositions(50, seed=1)
    for turn in range(1, 30):
        for reader in range(50):
            readers.advance(reader, turn)
    assert len(set(readers.chunk)) > 10


def test_never_the_present_nor_later():
    readers = ReplayPositions(100, seed=2)
    for turn in range(1, 60):
        assert max(readers.chunk) <= max(1, turn - 1)
        for reader in range(100):
            readers.advance(reader, turn)


def test_state_goes_on_with_the_same_draws():
    first, second = ReplayPositions(9, seed=3), ReplayPositions(9, seed=99)
    for turn in range(1, 20):
        for reader in range(9):
            first.advance(reader, turn)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for turn in range(20, 40):
        for reader in range(9):
            assert first.advance(reader, turn) == second.advance(reader, turn)
    assert first.chunk == second.chunk


class Counted(Memory):
    """A memory that counts how often it is read."""

    reads = 0

    def read(self, start, stop):
        self.reads += 1
        return super().read(start, stop)


def test_small_examples_are_read_some_chunks_ahead():
    memory, labels = Counted(), Labels()
    replay = Replay(2, chunk_size=4, memory=memory, labels=labels, seed=3)
    for end in range(4, 200, 4):
        x = np.arange(end - 4, end, dtype=np.float64)[:, None]
        memory.write(x, [int(t) % 3 for t in x[:, 0]])
        memory.advance(4)
        assert labels.assign(int(t) % 3 for t in x[:, 0])
        if end > 4:
            for stream, restarts, read, class_ids in replay.read(end):
                start = (replay.positions.chunk[stream] - 1) * 4
                assert restarts == (start == 0)
                assert read[:, 0].tolist() == list(range(start, start + 4))
                assert class_ids.tolist() == [t % 3 for t in range(start, start + 4)]
            for ahead in replay._ahead:  # what is learned now may still be taken back
                assert ahead.start + len(ahead.class_ids) <= end - 4
            replay.advance(end - 4, end)
    assert memory.reads < 60  # of 98 chunks
    wide = Counted()
    wide.write(np.zeros((400, 600)), [0] * 400)
    wide.advance(400)
    replay = Replay(1, chunk_size=4, memory=wide, labels=labels, seed=3)
    for end in range(200, 400, 4):
        replay.read(end)
        replay.advance(end - 4, end)
    assert wide.reads == 50
