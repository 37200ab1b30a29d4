"""Reading examples out of a log: many at once where all is well, one by one where something is damaged."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from prequential.streams.journal.log import Log
from prequential.streams.journal.log_records import (
    EXAMPLE,
    GAP,
    HEAD,
    Example,
    Window,
    positions_of,
    read_at,
    read_example,
    read_header,
    read_run,
)

LOST = "it was lost"


class Entry(NamedTuple):
    """What is found at one position."""

    position: int
    example: Example | None  # None: it cannot be read
    reason: str  # why not


def read_block(log: Log, start: int, stop: int, size: int) -> tuple[np.ndarray, list[bytes]] | None:
    """The bytes of x (n, size) and the texts of the labels, if every example is where and as it should be."""
    offsets = log.index.offsets(start, stop + 1)
    offsets = offsets[: stop - start] + ([log.end] if stop == log.length else offsets[stop - start :])
    if len(offsets) != stop - start + 1 or not 0 < offsets[-1] - offsets[0] <= log.end:
        return None
    with log.reading() as handle:
        data = read_at(handle, offsets[-1] - offsets[0], offsets[0])
    if len(data) != offsets[-1] - offsets[0]:
        return None
    places = np.asarray(offsets[:-1], np.int64) - offsets[0]
    return read_run(data, places, position=start, tag=log.tag, size=size)


def read_entries(log: Log, start: int, stop: int, size: int) -> list[Entry]:
    """What is found at each position, where x takes `size` bytes; an index that is wrong is rebuilt."""
    with log.reading() as handle:
        found, sure = _by_index(log, handle, start, stop, size)
        if not sure:
            log.rebuild_index(handle)
            found, _ = _by_index(log, handle, start, stop, size)
    return found


def _by_index(log: Log, handle: int, start: int, stop: int, size: int) -> tuple[list[Entry], bool]:
    """What is found where the index says, and whether what is not found there is damaged for sure.

    An offset can be wrong because the record is damaged or because the index is. It is the record if the index agrees
    with the end of the record before it.
    """
    first = max(0, start - 1)  # one more: the first one begins where it ends
    offsets = log.index.offsets(first, stop)
    expected = offsets[-1] - offsets[start - first] + 2 * (size + 4096) if offsets else 0
    window = Window(handle, log.end, min(max(expected, 1 << 12), 1 << 26))
    found: list[Entry] = []
    sure = len(offsets) == stop - first
    end = -1  # where the record before it ends
    if start > first and offsets:
        header = read_header(window.get(offsets[0], HEAD))
        end = offsets[0] + header.size if header is not None and header.tag == log.tag else -1
    for position, offset in zip(range(start, stop), offsets[start - first :], strict=False):
        header = read_header(window.get(offset, HEAD))
        if header is not None and header.tag == log.tag:
            payload = window.get(offset + HEAD, header.length)
            if len(payload) == header.length and zlib.crc32(payload) == header.crc:
                if header.kind == EXAMPLE and header.position == position:
                    example = read_example(payload)
                    good = example is not None and len(example.x) == size
                    found.append(Entry(position, example if good else None, "" if good else "its parts do not add up"))
                    end = offset + header.size
                    continue
                if header.kind == GAP and 0 <= position - header.position < positions_of(header, payload):
                    found.append(Entry(position, None, LOST))
                    end = offset + header.size
                    continue
        sure = sure and (offset == end or log.index.rebuilt)
        end = offset + header.size if header is not None and header.tag == log.tag else -1
        found.append(Entry(position, None, "its checksum is wrong"))
    return found, sure or log.index.rebuilt


def ranges(positions: Iterable[int]) -> str:
    """Positions as a person writes them.

    >>> ranges([3, 7, 8, 9])
    'examples 3, 7-9 are'
    """
    runs: list[list[int]] = []
    for position in positions:
        if runs and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:5]] + (["…"] if len(runs) > 5 else [])
    single = len(runs) == 1 and runs[0][0] == runs[0][1]
    return f"example {parts[0]} is" if single else f"examples {', '.join(parts)} are"
