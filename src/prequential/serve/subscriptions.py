"""Who wants to hear of what happens to a tenant (server-sent events)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from prequential.serve.failures import busy

MOST_SUBSCRIBERS = 16  # of one tenant
MOST_WAITING = 1000  # events of a subscriber that is slow; of more, the oldest are left out
HEARTBEAT_SECONDS = 15.0

Event = dict[str, Any]


class Subscriptions:
    """Hands the events of tenants to those who subscribed.

    Parameters
    ----------
    changed
        Called with a tenant and True when its first subscriber has come, and False when the last has gone.
    """

    def __init__(self, changed: Callable[[str, bool], None]) -> None:
        self._changed = changed
        self._queues: dict[str, list[asyncio.Queue[Event | None]]] = {}

    def publish(self, tenant: str, events: list[Event]) -> None:
        """Hands events to all who subscribed to a tenant."""
        for queue in self._queues.get(tenant, ()):
            for event in events:
                if queue.full():
                    queue.get_nowait()
                queue.put_nowait(event)

    def close(self) -> None:
        """Ends all subscriptions."""
        for queues in self._queues.values():
            for queue in queues:
                if queue.full():
                    queue.get_nowait()
                queue.put_nowait(None)

    def open(self, tenant: str) -> asyncio.Queue[Event | None]:
        queues = self._queues.setdefault(tenant, [])
        if len(queues) >= MOST_SUBSCRIBERS:
            raise busy(f"{MOST_SUBSCRIBERS} clients follow this tenant already")
        queue: asyncio.Queue[Event | None] = asyncio.Queue(MOST_WAITING)
        queues.append(queue)
        if len(queues) == 1:
            self._changed(tenant, True)
        return queue

    def end(self, tenant: str, queue: asyncio.Queue[Event | None]) -> None:
        queues = self._queues.get(tenant, [])
        if queue in queues:
            queues.remove(queue)
        if not queues and self._queues.pop(tenant, None) is not None:
            self._changed(tenant, False)

    async def stream(self, tenant: str, queue: asyncio.Queue[Event | None]) -> AsyncIterator[bytes]:
        """The events as text, with a comment now and then so that a connection that is gone is noticed."""
        try:
            yield b": connected\n\n"
            while True:
                try:
                    event = await asyncio.wait_for(queue.get(), HEARTBEAT_SECONDS)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if event is None:
                    return
                yield as_text(event)
        finally:
            self.end(tenant, queue)


def as_text(event: Event) -> bytes:
    """An event in the format of server-sent events.

    >>> as_text({"event": "label", "id": "a7"})
    b'event: label\\ndata: {"event": "label", "id": "a7"}\\n\\n'
    """
    return f"event: {event['event']}\ndata: {json.dumps(event)}\n\n".encode()
