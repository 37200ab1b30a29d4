"""The checks every stream passes. Adding a stream: write the class, then call `check_stream` in its test."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from prequential.errors import BadInput
from prequential.streams.stream import Chunk, Stream


def check_stream(
    make: Callable[[], Stream],
    changed: Callable[[], Stream],
    bad: Callable[[], Stream] | None = None,
    match: str | None = None,
) -> None:
    """Everything a stream promises.

    `make` opens the stream anew each time; `changed` opens one that differs in a single example; `bad` opens one with
    an example that cannot be used, and `match` is a pattern of the sentence that says so: where it is (row or file),
    which field, what was found and what was expected.
    """
    check_shapes(make())
    check_read_twice(make())
    check_read_from_the_middle(make)
    check_readers_are_independent(make)
    check_chunks_belong_to_the_caller(make())
    check_out_of_range(make())
    check_memory(make())
    check_fingerprint(make, changed)
    if bad is not None:
        assert match, "say with match what the sentence about the bad example holds"
        check_bad_input(bad, match)


def check_shapes(stream: Stream) -> None:
    """Examples are finite numbers of one shape, labels are hashable, and there are as many of both."""
    n = len(stream)
    assert n >= 4, "the battery needs at least 4 examples"
    first, last = stream.read(0, 1), stream.read(n - 1, n)
    whole = stream.read(0, min(n, 300))
    for chunk in (first, last, whole):
        assert len(chunk.x) == len(chunk.y) == len(chunk)
        assert chunk.x.shape[1:] == first.x.shape[1:]
        assert chunk.x.dtype == first.x.dtype
        assert chunk.x.dtype.kind in "fiub"
        assert {hash(label) for label in chunk.y}
        if chunk.x.dtype.kind == "f":
            assert not np.isinf(chunk.x).any()
            assert stream.missing or not np.isnan(chunk.x).any()
    assert len(stream.read(n - 1, n + 10)) == 1, "reading past the end gives what there is"


def check_read_twice(stream: Stream) -> None:
    """Reading the same range twice gives the same examples."""
    n = min(len(stream), 500)
    assert same(stream.read(0, n), stream.read(0, n))


def check_read_from_the_middle(make: Callable[[], Stream]) -> None:
    """A range does not depend on what was read before it, nor on the size of the pieces."""
    n = len(make())
    span = min(n, 600)
    for start in {0, (n - span) // 2, n - span}:
        whole = make().read(start, start + span)
        pieces, stream = [], make()
        for a in range(start, start + span, 7):
            pieces.append(stream.read(a, min(a + 7, start + span)))
        assert same(whole, join(pieces))
        middle = start + span // 2
        assert same(make().read(middle, start + span), cut(whole, span // 2, span))


def check_readers_are_independent(make: Callable[[], Stream]) -> None:
    """Two readers at different positions, taking turns, get what each would get alone."""
    stream = make()
    n = len(stream)
    half = n // 2
    turns = min(half // 2, 40)
    a, b = [], []
    for i in range(turns):
        a.append(stream.read(2 * i, 2 * i + 2))
        b.append(stream.read(half + i, half + i + 1))
    assert same(join(a), make().read(0, 2 * turns))
    assert same(join(b), make().read(half, half + turns))


def check_chunks_belong_to_the_caller(stream: Stream) -> None:
    """Writing into a chunk does not change the stream."""
    chunk = stream.read(0, 3)
    before = join([chunk])
    if chunk.x.flags.writeable:
        chunk.x[...] = 0
        assert same(before, stream.read(0, 3))
    if isinstance(chunk.y, list):
        chunk.y.clear()
        assert same(before, stream.read(0, 3))


def check_out_of_range(stream: Stream) -> None:
    """Asking for what is not there gives one sentence with the numbers."""
    n = len(stream)
    for start, stop in ((n, n + 1), (-1, 2), (2, 2), (3, 1)):
        with pytest.raises(BadInput, match=rf"cannot read examples {start} to .* of a stream of {n} examples"):
            stream.read(start, stop)


def check_bad_input(make: Callable[[], Stream], match: str) -> None:
    """An example that cannot be used gives one sentence, the same however often and in whatever pieces it is reached."""

    def whole(size: int) -> None:
        stream = make()
        for start in range(0, len(stream), size):
            stream.read(start, start + size)

    sentences = set()
    for size in (7, 500, 500):
        with pytest.raises(BadInput, match=match) as error:
            whole(size)
        sentences.add(str(error.value))
    assert len(sentences) == 1
    assert "\n" not in sentences.pop()


def check_memory(stream: Stream) -> None:
    """A second pass over the stream leaves no more in memory than the first."""

    def one_pass() -> int:
        for start in range(0, min(len(stream), 20_000), 64):
            stream.read(start, start + 64)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        one_pass()
        assert one_pass() - one_pass() > -500_000
    finally:
        tracemalloc.stop()


def check_fingerprint(make: Callable[[], Stream], changed: Callable[[], Stream]) -> None:
    """The fingerprint is short, does not depend on what was read, and changes with the data."""
    stream = make()
    before = stream.fingerprint()
    assert 8 <= len(before) <= 200
    stream.read(0, 2)
    assert stream.fingerprint() == before
    assert make().fingerprint() == before
    assert changed().fingerprint() != before


def fingerprints_elsewhere(*expressions: str) -> list[str]:
    """The fingerprints of streams, given as Python expressions, as a new process computes them."""
    code = "from prequential.streams.open import open_stream\n" + "\n".join(
        f"print(({expression}).fingerprint())" for expression in expressions
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def join(chunks: list[Chunk]) -> Chunk:
    return Chunk(np.concatenate([chunk.x for chunk in chunks]), [label for chunk in chunks for label in chunk.y])


def cut(chunk: Chunk, start: int, stop: int) -> Chunk:
    return Chunk(chunk.x[start:stop], list(chunk.y)[start:stop])


def same(a: Chunk, b: Chunk) -> bool:
    return (
        a.x.dtype == b.x.dtype
        and np.array_equal(a.x, b.x, equal_nan=a.x.dtype.kind == "f")
        and list(a.y) == list(b.y)
        and [type(label) for label in a.y] == [type(label) for label in b.y]
    )
