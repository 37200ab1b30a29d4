"""Replay-streams read uniformly from the strict past."""

import json
from collections import Counter

import numpy as np
import pytest

from prequential.learners.replay import ReplayPositions

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
