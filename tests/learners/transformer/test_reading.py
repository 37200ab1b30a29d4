"""Replayed chunks read beside the steps or between them: the same reads, the same bits, and no thread left over."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from prequential.errors import BadInput
from prequential.learners.transformer import reading as module
from prequential.learners.transformer.learner import Learner
from prequential.learners.transformer.reading import Reader
from prequential.learners.transformer.trainer import Trainer
from prequential.storage.checkpoint import same_state
from prequential.streams.datasets.digits import digits
from prequential.streams.stream import Stream

SMALL = {"width": 16, "num_query_heads": 2, "depth": 1, "window": 20, "chunk_size": 16, "num_streams": 5}
BETWEEN, BESIDE = math.inf, 0.0  # from how many seconds on a read counts as slow


class Clock:
    """A clock that stands still but for what it is told took time: the machine may be busy with something else."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def take(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


class Slow(Stream):
    """A stream that notes who reads what, takes its time, fails when told to, and bears one reader at a time."""

    classes = 10

    def __init__(self, seconds: float = 0.0, take=time.sleep) -> None:
        self.stream = digits(tasks=1, task_length=160)
        self.seconds, self.take = seconds, take
        self.reads: list[tuple[int, str]] = []
        self.fails_at = -1  # the number of the read
        self._alone = threading.Lock()

    def __len__(self) -> int:
        return len(self.stream)

    def fingerprint(self) -> str:
        return self.stream.fingerprint()

    def _read(self, start, stop):
        assert self._alone.acquire(blocking=False), "two readers at a time"
        try:
            self.reads.append((start, threading.current_thread().name))
            self.take(self.seconds)
            if len(self.reads) - 1 == self.fails_at:
                raise BadInput(f"example {start} cannot be read")
            return self.stream.read(start, stop)
        finally:
            self._alone.release()

    @property
    def threads(self) -> set[str]:
        return {name.partition("_")[0] for _, name in self.reads}


def learner_on(stream, slow=None, **changes):
    learner = Learner(10, **{**SMALL, **changes})
    learner.replay_from(stream)
    if slow is not None:
        learner._prepare(stream.stream.read(0, 16).x)
        learner._trainer._reader = Reader(slow)
    return learner


def run(learner, stream, stop=160) -> np.ndarray:
    losses = []
    for start in range(learner.position, stop, 16):
        chunk = stream.stream.read(start, start + 16)
        losses.append(learner.observe(chunk.x, chunk.y).log_loss)
        assert not running()
    return np.concatenate(losses)


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


@pytest.mark.parametrize("changes", [{}, {"num_streams": 2}, {"model": "two-token"}, {"graphs": True}])
def test_the_same_is_read_in_the_same_order_and_learnt_to_the_bit(changes):
    streams = {slow: Slow() for slow in (BETWEEN, BESIDE)}
    learners = {slow: learner_on(stream, slow, **changes) for slow, stream in streams.items()}
    losses = [run(learner, streams[slow]) for slow, learner in learners.items()]
    assert np.array_equal(*losses)
    assert same_state(*(learner.state_dict() for learner in learners.values()))
    assert streams[BETWEEN].threads == {"MainThread"}
    assert "read-ahead" in streams[BESIDE].threads
    starts = [[start for start, _ in stream.reads] for stream in streams.values()]
    assert starts[0] == starts[1]
    assert len(starts[0]) == 9 * (learners[BESIDE].settings.num_streams - 1)


def test_slow_streams_get_a_thread_and_fast_ones_none(clock):
    slow, fast = Slow(0.0011, clock.take), Slow(0.0009, clock.take)
    run(learner_on(slow), slow, stop=64)
    run(learner_on(fast), fast)
    # there is nothing to replay in the first turn, and in the second it is measured
    assert [name.partition("_")[0] for _, name in slow.reads] == ["MainThread"] * 4 + ["read-ahead"] * 8
    assert fast.threads == {"MainThread"}


def test_it_is_measured_again_how_long_reads_take(monkeypatch, clock):
    monkeypatch.setattr(module, "AGAIN", 2)
    reader = Reader(0.001)
    seen = []

    def turn(seconds):
        def read(number):
            clock.take(seconds)
            return threading.current_thread().name.partition("_")[0]

        with reader.turn(read, 3) as read_ones:
            seen.append(set(read_ones))

    for seconds in (0.002, 0.002, 0, 0, 0):
        turn(seconds)
    assert seen == [{"MainThread"}, {"read-ahead"}, {"read-ahead"}, {"MainThread"}, {"MainThread"}]


@pytest.mark.parametrize("slow", [BETWEEN, BESIDE])
@pytest.mark.parametrize("failing", [0, 1, 3])
def test_what_a_read_raises_comes_up_as_it_is_when_its_turn_comes(slow, failing, monkeypatch):
    stream = Slow()
    learner = learner_on(stream, slow)
    run(learner, stream, stop=48)
    taken = learner._trainer.steps
    stream.fails_at = len(stream.reads) + failing
    chunk = stream.stream.read(48, 64)
    with pytest.raises(BadInput, match=r"^example [0-9]+ cannot be read$"):
        learner.observe(chunk.x, chunk.y)
    assert learner._trainer.steps == taken + 1 + failing  # the steps before it are taken, none after
    assert len(stream.reads) == stream.fails_at + 1  # nothing is read after it
    assert not running()


def test_a_step_that_fails_leaves_no_read_and_no_thread(monkeypatch):
    stream = Slow(seconds=0.002)
    learner = learner_on(stream, BESIDE)
    run(learner, stream, stop=48)
    before = len(stream.reads)
    step = Trainer._step

    def failing(self, chunks, position):
        if 1 in chunks:
            raise FloatingPointError("the step went wrong")
        return step(self, chunks, position)

    monkeypatch.setattr(Trainer, "_step", failing)
    chunk = stream.stream.read(48, 64)
    with pytest.raises(FloatingPointError, match="the step went wrong"):
        learner.observe(chunk.x, chunk.y)
    assert not running()
    read = len(stream.reads)
    assert read - before < 4  # what nobody waits for is not read
    time.sleep(0.01)
    assert len(stream.reads) == read


def test_few_chunks_wait_at_a_time():
    began: list[int] = []
    reader = Reader(BESIDE)
    with reader.turn(lambda number: number, 1) as read:
        assert list(read) == [0]  # from now on in a thread
    with reader.turn(began.append, 10) as read:
        assert isinstance(read, Iterator)
        for taken in range(1, 6):
            next(read)
            time.sleep(0.005)
            assert taken <= len(began) <= taken + module.AHEAD
    assert began == list(range(len(began)))


def test_steps_behind_read_up_front():
    stream, plain = Slow(seconds=0.002), Slow()
    late, ordinary = learner_on(stream, async_steps=True), learner_on(plain)
    for learner, its in ((late, stream), (ordinary, plain)):
        run(learner, its)
    late.state_dict()
    assert stream.threads == {"MainThread"}
    assert [start for start, _ in stream.reads] == [start for start, _ in plain.reads]
    back = late.state_dict()["learner"]["trainer"]["back"]
    assert back["steps"] == ordinary._trainer.steps
