"""The worker processes: started, supervised, started again; and which tenant is where."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
import zlib
from collections.abc import Callable
from typing import Any

from prequential.serve.failures import Failure, busy
from prequential.serve.framing import Message, frame, split
from prequential.serve.nursery import Nursery

LOG = logging.getLogger("prequential.serve")
PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two starts of a worker; of one that keeps dying
LIVED_SECONDS = 2.0  # after which a worker that has answered does not count as one that keeps dying
STOP_SECONDS = 60.0  # that a worker may take to save its tenants

Events = Callable[[str, list[dict[str, Any]]], None]


class WorkerProcess(asyncio.Protocol):
    """One worker: requests go out in frames, replies come back by number.

    Parameters
    ----------
    number
        Of the worker.
    nursery
        Where it comes from.
    events
        Called with what happens to tenants that somebody subscribed to.
    """

    def __init__(self, number: int, nursery: Nursery, events: Events) -> None:
        self.number, self.nursery, self.events = number, nursery, events
        self.ready = asyncio.Event()
        self.restarts = 0
        self.pid: int | None = None
        self._ended = asyncio.Event()
        self._answered = False  # since it was started
        self.subscribed: dict[str, int] = {}
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._out: list[Message] = []
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._stopping = False

    # Its life.

    def start(self) -> None:
        self._supervisor = asyncio.create_task(self._supervise())

    async def _supervise(self) -> None:
        pause = PAUSE
        while not self._stopping:
            begun, self._answered = time.monotonic(), False
            await self._run()
            if self._stopping:
                return
            self.restarts += 1
            lived = self._answered and time.monotonic() - begun > LIVED_SECONDS
            pause = PAUSE if lived else min(2 * pause, LONGEST_PAUSE)
            LOG.error("worker %d has ended and is started again", self.number)
            await asyncio.sleep(pause)

    async def _run(self) -> None:
        """Starts the process, and waits until it ends."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            self.pid = await self.nursery.new_worker(theirs)
        except OSError as error:
            LOG.error("worker %d cannot be started: %s", self.number, error)
            ours.close()
            return
        finally:
            theirs.close()
        self._buffer.clear()
        self._ended.clear()
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        self._transport = transport
        await self._ended.wait()
        self.pid = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The process has ended: all that it was asked fails, and may be asked again."""
        self.ready.clear()
        self._transport = None
        self._fail_all()
        self._ended.set()

    def _fail_all(self) -> None:
        replies, self._replies, self._out = self._replies, {}, []
        for reply in replies.values():
            if not reply.done():
                reply.set_exception(busy("the worker of this tenant has ended and is being started again"))

    async def stop(self) -> None:
        """Lets it finish what it has, save its tenants and end."""
        self._stopping = True
        if self._transport is not None:
            self._send([0, "stop", None, None])
            try:
                await asyncio.wait_for(self._ended.wait(), STOP_SECONDS)
            except TimeoutError:
                LOG.error("worker %d did not end within %g s", self.number, STOP_SECONDS)
                if self.pid is not None:
                    os.kill(self.pid, signal.SIGKILL)
        elif self._supervisor is not None:
            self._supervisor.cancel()
        if self._supervisor is not None:
            await asyncio.gather(self._supervisor, return_exceptions=True)

    # Messages.

    async def call(self, operation: str, tenant: str | None, content: Any = None) -> Any:
        """Sends a request and waits for its reply; where it failed, that is raised."""
        if self._transport is None or not self.ready.is_set():
            raise busy("the worker of this tenant is being started")
        self._count += 1
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies[self._count] = reply
        self._send([self._count, operation, tenant, content])
        return await reply

    def tell(self, operation: str, content: Any) -> None:
        """Sends something that needs no reply."""
        self._send([0, operation, None, content])

    @property
    def waiting(self) -> int:
        """How many requests wait for their replies."""
        return len(self._replies)

    def _send(self, message: Message) -> None:
        if not self._out:  # what comes in this turn of the loop goes in one frame
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(message)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and out:
            self._transport.write(frame(out))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        for message in split(self._buffer):
            number, status, content = message
            if number:
                self._answered = True
                reply = self._replies.pop(number, None)
                if reply is not None and not reply.done():
                    if status == 200:
                        reply.set_result(content)
                    else:
                        reply.set_exception(Failure.from_json(status, content))
            elif status == "ready":
                self.ready.set()
                for name in self.subscribed:
                    self._send([0, "subscribe", None, name])
            elif status == "events":
                self.events(*content)


class WorkerPool:
    """All workers of a service.

    Parameters
    ----------
    count
        How many there are.
    nursery
        Where they come from.
    events
        Called with what happens to tenants that somebody subscribed to.
    """

    def __init__(self, count: int, nursery: Nursery, events: Events) -> None:
        self.nursery = nursery
        self.workers = [WorkerProcess(number, nursery, events) for number in range(count)]

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    async def stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self.workers))
        self.nursery.close()

    def of(self, tenant: str) -> WorkerProcess:
        """The worker that has a tenant: always the same one."""
        return self.workers[zlib.crc32(tenant.encode()) % len(self.workers)]

    @property
    def ready(self) -> bool:
        return all(worker.ready.is_set() for worker in self.workers)

    async def figures(self) -> list[dict[str, Any]]:
        """What each worker that can be reached says of itself."""

        async def one(worker: WorkerProcess) -> dict[str, Any] | None:
            try:
                found: dict[str, Any] = await asyncio.wait_for(worker.call("figures", None), 5.0)
            except (Failure, TimeoutError):
                return None
            return {**found, "worker": worker.number, "restarts": worker.restarts}

        found = await asyncio.gather(*(one(worker) for worker in self.workers))
        return [figures for figures in found if figures is not None]
