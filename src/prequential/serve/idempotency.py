"""Requests that are sent again: `Idempotency-Key` (IETF draft-ietf-httpapi-idempotency-key-header).

What must never happen twice is kept with what it did: an example that was learned has the key, a checksum of the
request and its number in it in the same record of the journal (`origin`). A prediction without an id gets one that is
made from the key. The replies themselves are kept in memory for a while, to be given again word for word.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from typing import Any, NamedTuple

from prequential.serve.failures import Failure
from prequential.streams.journal.journal import Journal

LONGEST = 255  # characters of a key
REMEMBERED = 10_000  # of the latest examples, keys are known after a restart
MOST_REPLIES, MOST_SECONDS = 10_000, 24 * 3600.0  # replies that are kept, and for how long
ORIGIN = re.compile(r"key:([0-9a-f]{32}):([0-9a-f]{16}):(\d+)")


def key_hash(tenant: str, key: str) -> str:
    """What stands for a key in records and ids."""
    return hashlib.sha256(f"{tenant}\0{key}".encode()).hexdigest()[:32]


def fingerprint(route: str, body: bytes) -> str:
    """What stands for the content of a request."""
    return hashlib.sha256(route.encode() + b"\0" + body).hexdigest()[:16]


def origin(key: str, print: str, number: int) -> str:
    """Where an example came from, for its record in the journal.

    >>> origin("0" * 32, "1" * 16, 7)
    'key:00000000000000000000000000000000:1111111111111111:7'
    """
    return f"key:{key}:{print}:{number}"


def other_payload() -> Failure:
    return Failure(422, "this Idempotency-Key was used with another request before", "Idempotency-Key")


class Done(NamedTuple):
    """What a request with a key has done so far."""

    print: str
    rows: dict[int, int]  # the number of a row in the request, and the position at which it was learned


class DoneRequests:
    """Which rows of which requests were learned, read from the journal when it is first needed."""

    def __init__(self) -> None:
        self._done: OrderedDict[str, Done] = OrderedDict()
        self._rows = 0
        self._loaded = False

    def get(self, key: str, print: str, journal: Journal | None) -> dict[int, int]:
        """The rows of this request that were learned before; a request with other content is refused."""
        if not self._loaded:
            self._load(journal)
        done = self._done.get(key)
        if done is not None and done.print != print:
            raise other_payload()
        return {} if done is None else done.rows

    def add(self, key: str, print: str, number: int, position: int) -> None:
        """A row was learned."""
        done = self._done.setdefault(key, Done(print, {}))
        done.rows[number] = position
        self._done.move_to_end(key)
        self._rows += 1
        while self._rows > 2 * REMEMBERED and len(self._done) > 1:
            self._rows -= len(self._done.popitem(last=False)[1].rows)

    def _load(self, journal: Journal | None) -> None:
        self._loaded = True
        if journal is None or not len(journal):
            return
        start = max(0, len(journal) - REMEMBERED)
        for position, text in enumerate(journal.origins(start, len(journal)), start + 1):
            found = ORIGIN.fullmatch(text)
            if found:
                self.add(found[1], found[2], int(found[3]), position)


class Replies:
    """Replies by key, to be given again; and the keys of requests that are under way."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, str, int, Any]] = OrderedDict()
        self._under_way: dict[str, str] = {}

    def begin(self, key: str, print: str) -> tuple[int, Any] | None:
        """The reply that was given before, or None: then `end` or `give_up` must be called."""
        under_way = self._under_way.get(key)
        if under_way is not None:
            if under_way != print:
                raise other_payload()
            raise Failure(409, "the request with this Idempotency-Key is still under way", "Idempotency-Key", retry=1)
        kept = self._kept.get(key)
        if kept is not None and time.monotonic() - kept[0] < MOST_SECONDS:
            if kept[1] != print:
                raise other_payload()
            return kept[2], kept[3]
        self._under_way[key] = print
        return None

    def end(self, key: str, print: str, status: int, content: Any) -> None:
        """The request is done, and this is its reply."""
        self._under_way.pop(key, None)
        self._kept[key] = (time.monotonic(), print, status, content)
        self._kept.move_to_end(key)
        if len(self._kept) > MOST_REPLIES:
            self._kept.popitem(last=False)

    def give_up(self, key: str) -> None:
        """The request has failed: nothing is kept, and it may be sent again."""
        self._under_way.pop(key, None)
