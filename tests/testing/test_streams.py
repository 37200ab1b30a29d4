"""The battery for streams itself: each check finds at least one broken stream."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from prequential.errors import BadInput
from prequential.streams.stream import Chunk, Stream
from prequential.testing import streams as battery
from prequential.testing.streams import CHECKS, check_stream

N = 200


class Good(Stream):
    """A stream as it should be."""

    classes = 3

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        rng = np.random.default_rng(seed)
        self.x, self.y = rng.normal(size=(N, 2)), rng.integers(0, 3, N).tolist()

    def __len__(self) -> int:
        return N

    def _read(self, start: int, stop: int) -> Chunk:
        return Chunk(self.x[start:stop].copy(), self.y[start:stop])

    def fingerprint(self) -> str:
        return f"good stream {self.seed}"

    def task_starts(self):
        return np.array([0, 100])


class Short(Good):
    def _read(self, start, stop):
        chunk = super()._read(start, stop)
        return Chunk(chunk.x, chunk.y[:-1])


class Infinite(Good):
    def _read(self, start, stop):
        chunk = super()._read(start, stop)
        chunk.x[-1] = np.inf
        return chunk


class UnsaidMissing(Good):
    def _read(self, start, stop):
        chunk = super()._read(start, stop)
        chunk.x[0] = np.nan
        return chunk


class TwoShapes(Good):
    def _read(self, start, stop):
        chunk = super()._read(start, stop)
        return Chunk(chunk.x[:, :1], chunk.y) if stop == N else chunk


class Lists(Good):
    def _read(self, start, stop):
        chunk = super()._read(start, stop)
        return Chunk(chunk.x, [[label] for label in chunk.y])


class MoreLabels(Good):
    classes = 2


class OtherLabels(Good):
    classes = (0, 1, 7)


class LateTasks(Good):
    def task_starts(self):
        return np.array([10, 100])


class TasksBeyond(Good):
    def task_starts(self):
        return np.array([0, N + 1])


class Drawn(Good):
    """Draws noise each time it is read."""

    def _read(self, start, stop):
        chunk = super()._read(start, stop)
        return Chunk(chunk.x + np.random.default_rng().normal(size=chunk.x.shape), chunk.y)


class OtherTypes(Good):
    """The second time labels are booleans, which are equal to numbers."""

    def __init__(self):
        super().__init__()
        self.times = itertools.count()

    def _read(self, start, stop):
        chunk = super()._read(start, stop)
        labels = [bool(label) if label < 2 else label for label in chunk.y]
        return Chunk(chunk.x, labels if next(self.times) else chunk.y)


class ByCall(Good):
    """Noise that depends on the first position of the piece: the same each time, but not for each example."""

    def _read(self, start, stop):
        chunk = super()._read(start, stop)
        return Chunk(chunk.x + np.random.default_rng(start).normal(size=chunk.x.shape), chunk.y)


class Cursor(Good):
    """Goes on where it was left, unless it is asked to begin again."""

    def __init__(self):
        super().__init__()
        self.at = 0

    def _read(self, start, stop):
        self.at = start if start == 0 or start == self.at else min(self.at, N - (stop - start))
        chunk = super()._read(self.at, self.at + stop - start)
        self.at += stop - start
        return chunk


class Views(Good):
    def _read(self, start, stop):
        return Chunk(self.x[start:stop], self.y[start:stop])


class OwnList(Good):
    """Gives the same list of labels twice."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def _read(self, start, stop):
        return Chunk(self.x[start:stop].copy(), self.kept.setdefault((start, stop), self.y[start:stop]))


class Once(Good):
    """Can be iterated over once."""

    def __init__(self):
        super().__init__()
        self.examples = super().__iter__()

    def __iter__(self):
        return self.examples


class Endless(Good):
    def __iter__(self):
        return itertools.cycle(super().__iter__())


class Lenient(Good):
    def read(self, start, stop):
        stop = max(start + 1, min(stop, N))
        return self._read(max(0, min(start, N - 1)), stop)


class Terse(Good):
    def read(self, start, stop):
        if not 0 <= start < min(stop, N):
            raise BadInput("no")
        return super().read(start, stop)


class Keeper(Good):
    """Keeps everything that was read."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def _read(self, start, stop):
        self.kept.append(np.zeros(100_000))
        return super()._read(start, stop)


class Counting(Good):
    """A fingerprint of what was read."""

    reads = 0

    def _read(self, start, stop):
        self.reads += 1
        return super()._read(start, stop)

    def fingerprint(self):
        return f"after {self.reads} reads"


class Anew(Good):
    """A fingerprint of the object and not of the examples."""

    numbers = itertools.count()

    def __init__(self):
        super().__init__()
        self.number = next(self.numbers)

    def fingerprint(self):
        return f"stream number {self.number}"


class Wordless(Good):
    def fingerprint(self):
        return "x"


MUTANTS = {
    "check_examples": [Short, Infinite, UnsaidMissing, TwoShapes, Lists],
    "check_labels": [MoreLabels, OtherLabels],
    "check_task_starts": [LateTasks, TasksBeyond],
    "check_read_twice": [Drawn, OtherTypes],
    "check_read_by_position": [ByCall],
    "check_readers_are_independent": [Cursor],
    "check_chunks_belong_to_the_caller": [Views, OwnList],
    "check_iteration": [Once, Endless],
    "check_out_of_range": [Lenient, Terse],
    "check_memory": [Keeper],
    "check_fingerprint": [Counting, Anew, Wordless],
}


def test_a_good_stream_passes():
    check_stream(Good, lambda: Good(1))
    check_stream(Good())


def test_every_check_has_a_mutant():
    assert list(MUTANTS) == [check.__name__ for check in CHECKS]


@pytest.mark.parametrize(("name", "mutant"), [(name, kind) for name, kinds in MUTANTS.items() for kind in kinds])
def test_broken_streams_are_found(name, mutant):
    with pytest.raises(AssertionError) as error:
        getattr(battery, name)(mutant)
    assert str(error.value)


@pytest.mark.parametrize("mutant", sorted({kind for kinds in MUTANTS.values() for kind in kinds}, key=str))
def test_the_whole_battery_finds_them_too(mutant):
    with pytest.raises(AssertionError):
        check_stream(mutant)


def test_a_fingerprint_that_does_not_tell_apart_is_found():
    class Other(Good):
        def fingerprint(self):
            return "always the same"

    with pytest.raises(AssertionError, match="does not change the fingerprint"):
        check_stream(Other(), Other(1))


class Refusing(Good):
    def _read(self, start, stop):
        if start <= 70 < stop:
            raise BadInput(self.sentence(start))
        return super()._read(start, stop)

    def sentence(self, start):
        return "row 71, column 'a' is 'x', expected a number"


class Wandering(Refusing):
    """Names the first row of the piece."""

    def sentence(self, start):
        return f"row {start + 1}, column 'a' is 'x', expected a number"


class Chatty(Refusing):
    def sentence(self, start):
        return "somewhere something is wrong"


def test_bad_examples():
    check_stream(Good, bad=Refusing, match="row 71, column 'a' is 'x', expected a number")
    for broken, sentence in ((Wandering, "depends on how"), (Chatty, "expected 'row 71"), (Good, "raised no BadInput")):
        with pytest.raises(AssertionError, match=sentence):
            check_stream(Good, bad=broken, match="row 71")
    with pytest.raises(AssertionError, match="say with match"):
        check_stream(Good, bad=Refusing)


def test_too_few_examples_are_said():
    class Few(Good):
        def __len__(self):
            return 3

    with pytest.raises(AssertionError, match="needs at least 4"):
        check_stream(Few)
