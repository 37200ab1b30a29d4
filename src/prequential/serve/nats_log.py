"""The log of a tenant in NATS JetStream: one subject, one message for all events that wait, one message under way.

A message is stored only behind the last one that this process knows of (`Nats-Expected-Last-Subject-Sequence`): where
another process has written in between, it is refused (error 10071), and the log is *fenced* for this process. A message
that is sent again because no answer came has the same `Nats-Msg-Id` and is stored once: the server answers that it has
it, or refuses it because it is itself the last one, which its id tells.
"""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from prequential.serve.failures import Failure, busy
from prequential.serve.framing import Message
from prequential.serve.group_commit import GroupCommit
from prequential.serve.nats_client import API_SECONDS, STREAM, SUBJECT, NatsThread, last_sequence, read
from prequential.serve.tenant_log import Event
from prequential.streams.journal.asked_log import decode_event, encode_event

HEAD = struct.Struct("<4sd")  # PQe1, and when the tenant was made: messages of one deleted before are left out
LENGTH = struct.Struct("<I")
PATIENCE = 3.0  # seconds after which requests no longer wait for servers that do not answer
PAUSE = 0.1  # between two attempts
READ_SECONDS = 600.0  # that reading a long log may take
WRONG_SEQUENCE = (10071, 10164)
MOVED = 421  # the status of a request that another process must answer: it is sent there

Send = Callable[[list[Message]], None]


def encode_message(made: float, events: list[bytes]) -> bytes:
    """Events, each encoded, as one message."""
    return b"".join([HEAD.pack(b"PQe1", made), *(LENGTH.pack(len(event)) + event for event in events)])


def decode_message(data: bytes, made: float) -> list[Event]:
    """The events of a message; none where they are of another tenant of that name.

    >>> decode_message(encode_message(1.0, [encode_event({"event": "label", "id": "a"})]), 1.0)
    [{'event': 'label', 'id': 'a'}]
    >>> decode_message(encode_message(1.0, [encode_event({"event": "label", "id": "a"})]), 2.0)
    []
    """
    magic, stamp = HEAD.unpack_from(data)
    if magic != b"PQe1" or stamp != made:
        return []
    events, at = [], HEAD.size
    while at < len(data):
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size + length
        events.append(decode_event(data[at - length : at]))
    return events


class Acknowledgement:
    """Replies that are sent when everything before them is stored."""

    def __init__(self, replies: list[Message], send: Send) -> None:
        self._replies, self._send = replies, send

    def stored(self) -> None:
        self._send(self._replies)
        self._replies = []

    def failed(self, failure: Failure) -> None:
        """The requests are answered with a failure; what they wrote may still be stored."""
        self._send([[reply[0], failure.status, failure.to_json()] for reply in self._replies])
        self._replies = []


class NatsLog:
    """The subject of a tenant, for the one process that writes to it.

    What is appended goes out in messages, one after the other: each holds all that has come while the one before was
    under way. While the servers do not answer, the message is sent again and again; requests are refused.

    Parameters
    ----------
    nats
        The connection.
    tenant
        Its name.
    made
        When the tenant was made.
    sequence
        Of the last message that was applied.
    """

    def __init__(self, nats: NatsThread, tenant: str, made: float, sequence: int) -> None:
        self.sequence = sequence
        self.fenced = False
        self._nats, self._subject, self._made = nats, SUBJECT + tenant, made
        self._events: list[bytes] = []  # applied, but not committed yet
        self._waiting: deque[bytes | Acknowledgement] = deque()
        self._task: asyncio.Task[None] | None = None
        self._down = False

    @property
    def largest(self) -> int:
        """Bytes that an event may have."""
        nc = self._nats.nc
        return (1 << 20 if nc is None else nc.max_payload) - 4096

    @property
    def writing(self) -> bool:
        """Whether something that was applied is not stored yet."""
        return bool(self._events or self._waiting or self._task is not None)

    def check(self) -> None:
        if self.fenced:
            raise moved()
        if self._down or not self._nats.connected:
            raise unavailable()

    # Reading.

    def read(self) -> Iterator[Event]:
        """The events that were not applied so far, up to the end of the log."""
        end = self._nats.run(last_sequence(self._nats.js, STREAM, self._subject), 2 * API_SECONDS)
        if end < self.sequence:
            raise Behind(f"the log ends at {end}, but {self.sequence} was applied")
        messages = read(self._nats.js, STREAM, self._subject, after=self.sequence, upto=end)
        while True:
            part = self._nats.run(_some(messages), READ_SECONDS)
            for sequence, content in part:
                yield from decode_message(content, self._made)
                self.sequence = sequence
            if not part:
                return

    # Writing.

    def append(self, event: Event) -> None:
        self._events.append(encode_event(event))

    def commit(self, replies: list[Message], commits: GroupCommit) -> None:
        """Hands what was appended to the thread; replies that come without an event wait for those before them."""
        items: list[bytes | Acknowledgement] = [*self._events, Acknowledgement(replies, commits.send)]
        self._events = []
        self._nats.loop.call_soon_threadsafe(self._add, items)

    def flush(self) -> int | None:
        if self._down or self.fenced:
            return None
        end = time.monotonic() + PATIENCE
        stored: list[bool] = []

        def note(replies: list[Message]) -> None:
            stored.append(all(reply[1] == 200 for reply in replies))

        items: list[bytes | Acknowledgement] = [*self._events, Acknowledgement([[0, 200, None]], note)]
        self._nats.loop.call_soon_threadsafe(self._add, items)
        self._events = []
        while not stored and time.monotonic() < end:
            time.sleep(0.001)
        return self.sequence if stored == [True] and not self.fenced else None

    def _add(self, items: list[bytes | Acknowledgement]) -> None:
        if self.fenced:
            _fail(items, moved())
            return
        self._waiting += items
        if self._task is None:
            self._task = self._nats.loop.create_task(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                events: list[bytes] = []
                taken: list[bytes | Acknowledgement] = []
                size, largest = 0, self.largest
                while self._waiting:
                    item = self._waiting[0]
                    if isinstance(item, bytes):
                        size += len(item) + LENGTH.size
                        if events and size > largest:
                            break
                        events.append(item)
                    taken.append(self._waiting.popleft())
                if events:
                    await self._store(encode_message(self._made, events), taken)
                for item in taken:
                    if isinstance(item, Acknowledgement):
                        item.stored()
        except Fenced:
            self.fenced = True
            _fail([*taken, *self._waiting], moved())
            self._waiting.clear()
        finally:
            self._task = None

    async def _store(self, content: bytes, taken: list[bytes | Acknowledgement]) -> None:
        """Sends a message until it is stored."""
        from nats.errors import Error
        from nats.js import api
        from nats.js.errors import APIError, NotFoundError

        id = uuid.uuid4().hex
        headers = {
            api.Header.MSG_ID.value: id,
            api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(self.sequence),
        }
        begun = time.monotonic()
        while True:
            try:
                try:
                    stored = await self._nats.js.publish(self._subject, content, API_SECONDS, STREAM, dict(headers))
                    sequence = stored.seq
                except APIError as error:
                    if error.err_code not in WRONG_SEQUENCE:
                        raise
                    # of an earlier attempt the answer may be lost: then this message is the last one there
                    last = await self._nats.js.get_last_msg(STREAM, self._subject)
                    if (last.headers or {}).get(api.Header.MSG_ID.value) != id:
                        raise Fenced from None
                    sequence = int(last.seq or 0)
                self.sequence, self._down = sequence, False
                return
            except NotFoundError:  # the log was emptied: the tenant is deleted
                raise Fenced from None
            except (Error, TimeoutError, OSError):
                pass
            if time.monotonic() - begun > PATIENCE:
                self._down = True
                _fail([*taken, *self._waiting], unavailable())
            await asyncio.sleep(PAUSE)


class Fenced(Exception):
    """Another process has written to the log."""


class Behind(Exception):
    """The log holds less than was applied: it is another one."""


def moved() -> Failure:
    return Failure(MOVED, "another process has this tenant", retry=1)


def unavailable() -> Failure:
    return busy("the log cannot be reached or has no quorum; what was sent counts if it is there when it is back")


def _fail(items: list[bytes | Acknowledgement], failure: Failure) -> None:
    for item in items:
        if isinstance(item, Acknowledgement):
            item.failed(failure)


async def _some(messages: Any, most: int = 256) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    async for sequence, _, _, content in messages:
        found.append((sequence, content))
        if len(found) >= most:
            break
    return found
