"""The battery for streams: what every stream must do, as checks that any stream can be put through.

    from prequential.testing import check_stream
    check_stream(MyStream("data"))

A check that fails raises AssertionError with a sentence. The docstring of a check is its specification.
"""

from __future__ import annotations

import gc
import itertools
import re
import tracemalloc
from collections.abc import Callable, Hashable, Iterable

import numpy as np

from prequential.errors import BadInput
from prequential.streams.stream import Chunk, Stream

FEWEST = 4  # examples that the checks need
MOST = 600  # examples that most checks read
MOST_PASSED = 20_000  # examples of a pass that measures memory
GROWTH = 500_000  # bytes by which memory may differ between two passes

Make = Callable[[], Stream]


def check_stream(
    stream: Stream | Make,
    changed: Stream | Make | None = None,
    bad: Stream | Make | None = None,
    match: str = "",
) -> None:
    """Puts a stream through every check.

    Parameters
    ----------
    stream
        The stream, or a function that opens it anew: then what is opened twice is compared too.
    changed
        A stream that differs in a single example, or a function that opens it: its fingerprint must differ.
    bad
        A stream with an example that cannot be used, or a function that opens it: reading it must raise BadInput.
    match
        A pattern of that error's sentence, which says where the example is (row or file), which field is wrong, what
        was found and what was expected.

    Examples
    --------
    >>> from prequential import ArrayStream
    >>> check_stream(ArrayStream([[0.0], [1.0], [2.0], [3.0]], ["a", "b", "a", "b"]))
    """
    make = _maker(stream)
    for check in CHECKS:
        check(make)
    if changed is not None:
        check_fingerprint_tells_apart(make, _maker(changed))
    if bad is not None:
        assert match, "say with match what the sentence about the bad example holds"
        check_bad_input(_maker(bad), match)


def check_examples(make: Make) -> None:
    """Examples are finite numbers of one shape and dtype, labels are hashable, and there are as many of both."""
    stream = make()
    n = len(stream)
    assert n >= FEWEST, f"the stream has {n} examples, and the battery needs at least {FEWEST}"
    first, last = stream.read(0, 1), stream.read(n - 1, n)
    for chunk, count in ((first, 1), (last, 1), (stream.read(0, min(n, 300)), min(n, 300))):
        assert len(chunk.x) == len(chunk.y) == count, f"got {len(chunk.x)} x and {len(chunk.y)} y, expected {count}"
        shape, expected = (chunk.x.shape[1:], chunk.x.dtype), (first.x.shape[1:], first.x.dtype)
        assert shape == expected, f"x has shape and dtype {shape}, but the first one has {expected}"
        assert chunk.x.dtype.kind in "fiub", f"x has dtype {chunk.x.dtype}, expected numbers"
        assert all(isinstance(label, Hashable) for label in chunk.y), "a label is not hashable"
        if chunk.x.dtype.kind == "f":
            assert not np.isinf(chunk.x).any(), "x holds an infinite number"
            assert stream.missing or not np.isnan(chunk.x).any(), "x holds NaN, but `missing` is False"
    assert len(stream.read(n - 1, n + 10)) == 1, "reading past the end must give what there is"


def check_labels(make: Make) -> None:
    """Where the stream says which labels there can be, or how many, there are no others."""
    stream = make()
    if stream.classes is None:
        return
    seen = set(stream.read(0, min(len(stream), MOST)).y)
    if isinstance(stream.classes, (int, np.integer)):
        assert len(seen) <= stream.classes, f"{len(seen)} labels were found, but classes is {stream.classes}"
    else:
        unknown = seen - set(stream.classes)
        assert not unknown, f"label {next(iter(unknown))!r} is not among classes"


def check_task_starts(make: Make) -> None:
    """If the stream has tasks, they begin at example 0 and at rising positions inside the stream."""
    stream = make()
    starts = stream.task_starts()
    if starts is not None:
        good = len(starts) > 0 and starts[0] == 0 and (np.diff(starts) > 0).all() and starts[-1] < len(stream)
        assert good, f"tasks begin at {starts[:5]} ..., expected 0 and rising numbers below {len(stream)}"


def check_read_twice(make: Make) -> None:
    """Reading the same range twice gives the same examples, also from a stream that was opened anew."""
    stream = make()
    n = min(len(stream), MOST)
    first = _copied(stream.read(0, n))
    _assert_same(stream.read(0, n), first, "read twice")
    _assert_same(make().read(0, n), first, "opened again")


def check_read_by_position(make: Make) -> None:
    """A range does not depend on what was read before it, nor on the size of the pieces, nor on their order."""
    n = len(make())
    span = min(n, MOST)
    for start in sorted({0, (n - span) // 2, n - span}):
        whole = _copied(make().read(start, start + span))
        bounds = [(a, min(a + 7, start + span)) for a in range(start, start + span, 7)]
        stream = make()
        _assert_same(_joined(stream.read(*bound) for bound in bounds), whole, "read in pieces of 7")
        stream = make()
        backwards = [_copied(stream.read(*bound)) for bound in reversed(bounds)]
        _assert_same(_joined(reversed(backwards)), whole, "read in pieces, the last one first")
        _assert_same(
            make().read(start + span // 2, start + span), _part(whole, span // 2, span), "read from the middle"
        )


def check_readers_are_independent(make: Make) -> None:
    """Two readers at different positions, taking turns, get what each would get alone."""
    stream = make()
    half = len(stream) // 2
    turns = min(half // 2, 40)
    first, second = [], []
    for i in range(turns):
        first.append(_copied(stream.read(2 * i, 2 * i + 2)))
        second.append(_copied(stream.read(half + i, half + i + 1)))
    _assert_same(_joined(first), make().read(0, 2 * turns), "read in turns")
    _assert_same(_joined(second), make().read(half, half + turns), "read in turns")


def check_chunks_belong_to_the_caller(make: Make) -> None:
    """Writing into what was read does not change the stream."""
    stream = make()
    chunk = stream.read(0, 3)
    before = _copied(chunk)
    if chunk.x.flags.writeable:
        chunk.x[...] = ~chunk.x if chunk.x.dtype.kind == "b" else chunk.x + 1
    if isinstance(chunk.y, list):
        chunk.y.clear()
    _assert_same(stream.read(0, 3), before, "after writing into an earlier chunk")


def check_iteration(make: Make) -> None:
    """Iterating gives (x, y) one by one, as `read` has them, from the start each time."""
    stream = make()
    n = min(len(stream), MOST)
    whole = _copied(stream.read(0, n))
    for time in ("iterated", "iterated again"):
        pairs = list(itertools.islice(stream, n))
        assert len(pairs) == n, f"{time}, it gave {len(pairs)} examples, expected {n}"
        _assert_same(Chunk(np.stack([x for x, _ in pairs]), [y for _, y in pairs]), whole, time)
    if len(stream) <= MOST:
        count = sum(1 for _ in itertools.islice(stream, len(stream) + 1))
        assert count == len(stream), "iterating does not end with the stream"


def check_out_of_range(make: Make) -> None:
    """Asking for what is not there raises BadInput with one sentence that has the numbers."""
    stream = make()
    n = len(stream)
    for start, stop in ((n, n + 1), (-1, 2), (2, 2), (3, 1)):
        pattern = rf"cannot read examples {start} to .* of a stream of {n} examples"
        sentence = _refusal(lambda a=start, b=stop: stream.read(a, b))  # type: ignore[misc]
        assert sentence is not None, f"reading {start} to {stop} of {n} examples raised no BadInput"
        assert re.search(pattern, sentence), f"reading {start} to {stop}: the sentence is {sentence!r}"


def check_memory(make: Make) -> None:
    """A second pass over the stream leaves no more in memory than the first."""
    stream = make()

    def one_pass() -> int:
        for start in range(0, min(len(stream), MOST_PASSED), 64):
            stream.read(start, start + 64)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        one_pass()
        before = one_pass()
        grown = one_pass() - before
    finally:
        tracemalloc.stop()
    assert grown < GROWTH, f"a pass over the stream left {grown:,} bytes in memory"


def check_fingerprint(make: Make) -> None:
    """The fingerprint is a short text, the same however often it is asked for and whatever was read before."""
    stream = make()
    before = stream.fingerprint()
    assert isinstance(before, str), f"the fingerprint is a {type(before).__name__}, expected a text"
    assert 8 <= len(before) <= 200, f"the fingerprint has {len(before)} characters, expected 8 to 200"
    stream.read(0, 2)
    assert stream.fingerprint() == before, "the fingerprint changed when the stream was read"
    assert make().fingerprint() == before, "the fingerprint changed when the stream was opened again"


def check_fingerprint_tells_apart(make: Make, changed: Make) -> None:
    """A stream that differs in one example has another fingerprint."""
    assert make().fingerprint() != changed().fingerprint(), "a changed example does not change the fingerprint"


def check_bad_input(make: Make, match: str) -> None:
    """An example that cannot be used gives one sentence, the same in whatever pieces the stream is read."""

    def read_all(size: int) -> None:
        stream = make()
        for start in range(0, len(stream), size):
            stream.read(start, start + size)

    sentences = {_refusal(lambda size=size: read_all(size)) for size in (7, 500, 500)}  # type: ignore[misc]
    assert len(sentences) == 1, f"the sentence depends on how the stream is read: {sentences}"
    sentence = sentences.pop()
    assert sentence is not None, "an example that cannot be used raised no BadInput"
    assert re.search(match, sentence), f"the sentence is {sentence!r}, expected {match!r} in it"
    assert "\n" not in sentence, "the sentence has more than one line"


CHECKS: tuple[Callable[[Make], None], ...] = (
    check_examples,
    check_labels,
    check_task_starts,
    check_read_twice,
    check_read_by_position,
    check_readers_are_independent,
    check_chunks_belong_to_the_caller,
    check_iteration,
    check_out_of_range,
    check_memory,
    check_fingerprint,
)


def _maker(stream: Stream | Make) -> Make:
    return (lambda: stream) if isinstance(stream, Stream) else stream


def _refusal(act: Callable[[], object]) -> str | None:
    """The sentence of the BadInput that something raises; None if it raises none."""
    try:
        act()
    except BadInput as error:
        return str(error)
    return None


def _joined(chunks: Iterable[Chunk]) -> Chunk:
    chunks = list(chunks)
    return Chunk(np.concatenate([chunk.x for chunk in chunks]), [label for chunk in chunks for label in chunk.y])


def _copied(chunk: Chunk) -> Chunk:
    return _joined([chunk])


def _part(chunk: Chunk, start: int, stop: int) -> Chunk:
    return Chunk(chunk.x[start:stop], list(chunk.y)[start:stop])


def _assert_same(found: Chunk, expected: Chunk, how: str) -> None:
    assert len(found) == len(expected), f"{how}, {len(found)} examples came, expected {len(expected)}"
    assert found.x.dtype == expected.x.dtype, f"{how}, x has dtype {found.x.dtype}, expected {expected.x.dtype}"
    same_x = np.array_equal(found.x, expected.x, equal_nan=found.x.dtype.kind == "f")
    assert same_x, f"{how}, x is not the same"
    assert list(found.y) == list(expected.y), f"{how}, the labels are not the same"
    kinds = [[type(label) for label in chunk.y] for chunk in (found, expected)]
    assert kinds[0] == kinds[1], f"{how}, the labels are of other types"
