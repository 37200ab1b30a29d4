"""Learning from rows that come from a file or a pipe, in a home that can be gone on with after any interruption."""

from __future__ import annotations

import json
import re
import signal
import time
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from prequential.errors import BadInput, short
from prequential.evaluation.scores import Scores
from prequential.learners.charges import Charges
from prequential.learners.transformer.learner import Learner
from prequential.live.row_encoding import inputs_of
from prequential.live.row_input import Row
from prequential.streams.formats.csv_rows import EXACT, FLAG, WHOLE
from prequential.streams.journal.journal import Journal

SAVE_SECONDS = 20.0
BLOCK = 1024  # examples looked at at once
PATTERNS: dict[Callable[[str], Hashable], tuple[str, str]] = {
    int: (WHOLE, "a whole number"),
    float: (EXACT, "a number"),
    bool: (FLAG, "true or false"),
}
ORIGIN = re.compile(r"(\d+):([0-9a-f]{8}):(.*)", re.DOTALL)


class Taken(NamedTuple):
    """The last row of a source that was learned."""

    number: int
    checksum: str


def rows_taken(journal: Journal | None, source: str) -> Taken:
    """How far a source was learned: its last row among the examples of a journal, read from the newest on."""
    stop = 0 if journal is None else len(journal)
    while journal is not None and stop:
        start = max(0, stop - BLOCK)
        for origin in reversed(journal.origins(start, stop)):
            found = ORIGIN.fullmatch(origin)
            if found and found[3] == source:
                return Taken(int(found[1]), found[2])
        stop = start
    return Taken(0, "")


def origin_of(row: Row, source: str) -> str:
    """Where a row came from, as the journal keeps it: its number, a checksum of its fields, and the source.

    >>> origin_of(Row(3, {"price": "1.5"}), "prices.csv")
    '3:78581230:prices.csv'
    """
    return f"{row.number}:{checksum(row)}:{source}"


def checksum(row: Row) -> str:
    """The CRC-32 of the fields of a row."""
    return f"{zlib.crc32(json.dumps(row.fields).encode()):08x}"


def new_rows(batches: Iterable[list[Row]], name: str, taken: Taken) -> Iterator[list[Row]]:
    """The rows behind those that were learned; the last of these must be the one it was."""
    number = 0
    for batch in batches:
        number = batch[-1].number
        if batch[0].number <= taken.number:
            last = next((row for row in batch if row.number == taken.number), None)
            if last is not None and checksum(last) != taken.checksum:
                raise _other_rows(name, f"row {taken.number} is another one")
            batch = [row for row in batch if row.number > taken.number]
        if batch:
            yield batch
    if number < taken.number:
        raise _other_rows(name, f"it has {number} rows")


def _other_rows(name: str, why: str) -> BadInput:
    return BadInput(
        f"{name} is not what was learned from it before: {why}; --source NAME gives other rows a name of their own"
    )


class LabelReader:
    """Turns the texts of a label column into labels: whole numbers, numbers or true/false if all so far are, else text.

    Parameters
    ----------
    column
        The name of the column.
    known
        Labels that were learned before; they decide.

    Examples
    --------
    >>> LabelReader("up", []).read([Row(1, {"up": "1"}), Row(2, {"up": "0"})])
    [1, 0]
    >>> LabelReader("up", ["a"]).read([Row(1, {"up": "1"})])
    ['1']
    """

    def __init__(self, column: str, known: Sequence[Hashable]) -> None:
        self.column = column
        self._kind: Callable[[str], Hashable] | None = None
        kinds = {type(label) for label in known}
        if kinds:
            kind = kinds.pop() if len(kinds) == 1 else str
            self._kind = kind if kind in PATTERNS else str

    def read(self, rows: Sequence[Row], name: str = "the input") -> list[Hashable]:
        """The labels of some rows; one that is missing or does not fit is refused. JSON values stay as they are."""
        values = [row.fields.get(self.column) for row in rows]
        for row, value in zip(rows, values, strict=True):
            if value is None:
                raise BadInput(f"{name}, row {row.number}: column {short(self.column)} is empty, expected a label")
        texts = [value.strip() for value in values if isinstance(value, str)]
        if self._kind is None and texts:
            kinds = PATTERNS.items()
            fits = (kind for kind, (pattern, _) in kinds if all(re.match(pattern, text) for text in texts))
            self._kind = next(fits, str)
        return [self._label(row, value, name) for row, value in zip(rows, values, strict=True)]

    def _label(self, row: Row, value: Any, name: str) -> Hashable:
        if not isinstance(value, str):
            label: Hashable = value
            return label
        text, kind = value.strip(), self._kind
        if kind is None or kind not in PATTERNS:
            return text
        pattern, expected = PATTERNS[kind]
        if not re.match(pattern, text):
            raise BadInput(
                f"{name}, row {row.number}: column {short(self.column)} is {short(value)}, expected {expected} like the "
                "labels before"
            )
        return text.lower() == "true" if kind is bool else kind(text)


class Stop:
    """Ctrl-C and requests to end: at once while it waits for rows, else when the rows at hand are learned."""

    def __init__(self) -> None:
        self.requested = False
        self._waiting = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._handle)
            except ValueError:  # not in the main thread: signals are somebody else's
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again, self.requested = self.requested, True
        if self._waiting or (again and number == signal.SIGINT):
            raise KeyboardInterrupt

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self._waiting = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False


def learn_rows(
    learner: Learner,
    batches: Iterator[list[Row]],
    *,
    labels: LabelReader,
    scores: Scores,
    stop: Stop,
    name: str = "the input",
    source: str | None = None,
    id: str | None = None,
    save_seconds: float = SAVE_SECONDS,
    after: Callable[[Scores], None] | None = None,
) -> None:
    """Predicts, scores and learns rows until they end or somebody asks to stop; the home is saved now and then.

    Parameters
    ----------
    learner
        One with a home.
    batches
        The rows.
    labels
        Reads their labels.
    scores
        Takes the charges.
    stop
        Says when to end.
    name
        What the rows are called in messages.
    source
        The name under which the journal keeps where each example came from; None: it does not.
    id
        The column of ids, where rows are labels of what was asked by them.
    save_seconds
        How often the home is saved.
    after
        Called after each batch.
    """
    saved = time.monotonic()
    try:
        while True:
            try:
                with stop.waiting():
                    batch = next(batches, None)
            except KeyboardInterrupt:
                return
            if batch is None:
                return
            ys = labels.read(batch, name)
            charges: Charges | None
            if id is None:
                origins = None if source is None else [origin_of(row, source) for row in batch]
                charges = learner.observe(inputs_of(learner, batch, [labels.column]), ys, origins=origins)
            else:
                charges = learner.learn_many(ids=[row.fields.get(id) for row in batch], ys=ys)
            if charges is not None:
                scores.update(scores.count, charges)
            if after is not None:
                after(scores)
            if time.monotonic() - saved >= save_seconds:
                learner.save()
                saved = time.monotonic()
    finally:
        learner.save()
