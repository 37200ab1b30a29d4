"""Several service processes that share their tenants: who is there, who has a tenant, and requests for it.

Every process says twice a second that it is there. A tenant belongs to one of those that were heard of lately, by a hash
of both names (rendezvous hashing): all that hear the same agree, only the tenants of a process that has gone or come
move, and nobody has to be asked. Where two disagree for a moment, both may try to write: the log takes the messages of
one of them (`NatsLog`), and the other applies what that one wrote before it goes on.

A process that comes first applies what the logs have of the tenants that it will get, and says so; until then they
stay where they are. A process that has gone is noticed by its silence, or at once where a request finds nobody.

A request that another process must answer is sent there over NATS, and again where that process goes away or says that
it does not have the tenant. Rows have ids or keys, so that nothing is learned twice by that.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from prequential.serve.failures import Failure, busy
from prequential.serve.nats_client import API_SECONDS, STREAM, connect, explained_nats, patiently, prepare
from prequential.serve.nats_log import MOVED, moved
from prequential.serve.shared_tenants import CHANGED, SharedTenants
from prequential.serve.tenants import Tenants

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

LOG = logging.getLogger("prequential.serve")
MEMBERS, CALLS = "prequential.members", "prequential.calls."  # subjects
BEAT_SECONDS = 0.5  # between two signs of life
LOST_SECONDS = 2.0  # after which a process that says nothing counts as gone
SILENT_SECONDS = 1.0  # after which it counts as gone where also nobody takes its requests
JOIN_SECONDS, MOST_JOINED = 60.0, 64  # how long a process that comes may take to catch up, and with how many tenants
ROUTE_SECONDS = 10.0  # that a request waits for a process that has the tenant
REPLY_SECONDS = 60.0  # that such a process may take
CHECK_SECONDS = 2.0  # between two looks at the tenants and at the stream

Made = TypeVar("Made")
Here = Callable[[str, str, Any, int], Awaitable[Any]]
Release = Callable[[str, bool], Awaitable[None]]
Own = Callable[[str, bool], Awaitable[bool]]
Follow = Callable[[list[str]], None]


class Cluster:
    """The processes that share a log.

    Parameters
    ----------
    url, replicas
        The servers of NATS, and how many of them keep a copy of each log.
    tenants
        Those of this process.
    here
        Answers a request (tenant, operation, content, rows) in this process.
    release
        Closes a tenant in this process; with True it is saved.
    own
        Lets a tenant in this process catch up with its log, with True also where it is not open; False: it cannot now.
    follow
        Lets this process keep up with the logs of some tenants that others have.
    """

    def __init__(
        self, url: str, replicas: int, tenants: Tenants, *, here: Here, release: Release, own: Own, follow: Follow
    ) -> None:
        self._own, self._follow = own, follow
        self.id = secrets.token_hex(8)
        self.problem: str | None = "not connected to the log yet"
        self._url, self._replicas, self._tenants, self._here, self._release = url, replicas, tenants, here, release
        self._members: dict[str, float] = {}  # when each was heard of
        self._serving: set[str] = set()  # those that have caught up
        self._reconnects: dict[str, int] = {}  # how often each has lost its connection, and what was on its way
        self._mine: set[str] = set()  # tenants that were used here
        self._leaving = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self.nc: Client
        self.shared: SharedTenants

    async def start(self) -> None:
        self.nc = await connect(self._url, f"prequential-{self.id}")
        await prepare(self.nc, self._replicas)
        self.shared = SharedTenants(self.nc, self._tenants, lambda name: self._release(name, False))
        await self.nc.subscribe(MEMBERS, cb=self._heard)
        await self.nc.subscribe(CHANGED, cb=self._tenants_changed)
        await self.nc.subscribe(CALLS + self.id, cb=self._called)
        await patiently(self.shared.refresh)
        self.problem = None
        self._members[self.id] = time.monotonic()
        await self._say(hello=True)
        await asyncio.sleep(BEAT_SECONDS)  # the others answer: a tenant is not taken from them by mistake
        for loop in (self._beat, self._look, self._join):
            self._spawn(loop())

    async def _join(self) -> None:
        """Catches up with the tenants that this process will get, and then takes them."""
        end = time.monotonic() + JOIN_SECONDS
        for _ in range(2):  # what comes during the first turn is little
            for name in self._would_own() if self._serving else []:
                while time.monotonic() < end and not await self._own(name, True):
                    await asyncio.sleep(0.1)
        self._serving.add(self.id)
        with suppress(Exception):  # it is said again soon
            await self._say()

    async def leave(self) -> None:
        """Lets the others have the tenants."""
        self._leaving = True
        with suppress(Exception):
            await self._say(leaving=True)
            await self.nc.flush(timeout=1)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        with suppress(Exception):
            await self.nc.close()

    def _spawn(self, act: Any) -> None:
        task = asyncio.get_running_loop().create_task(act)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def health(self) -> dict[str, Any]:
        """The log, and how many processes share it."""
        return {
            "log": self.problem or "ok",
            "process": self.id,
            "processes": len(self._members),
            "serving": len(self._serving),
            "caught_up": self.id in self._serving,
        }

    # Who is there.

    @property
    def members(self) -> list[str]:
        return sorted(self._members)

    def owner(self, tenant: str) -> str:
        """The process that has a tenant."""
        return max(self._serving or self._members, key=partial(_rank, tenant))

    def heirs(self) -> list[str]:
        """The tenants that this process would get if those who have them went away."""
        if self.id not in self._serving:
            return self._would_own()
        pairs = ((name, sorted(self._serving, key=partial(_rank, name))[-2:]) for name in self._tenants.names())
        return [name for name, ranked in pairs if len(ranked) == 2 and ranked[0] == self.id]

    def _would_own(self) -> list[str]:
        """Some of the tenants that this process gets when it has caught up."""
        among = self._serving | {self.id}
        names = (name for name in self._tenants.names() if max(among, key=partial(_rank, name)) == self.id)
        return list(islice(names, MOST_JOINED))

    async def _say(self, *, hello: bool = False, leaving: bool = False) -> None:
        content = {
            "id": self.id, "hello": hello, "leaving": leaving, "reconnects": self.nc.stats["reconnects"],
            "serving": self.id in self._serving,
        }  # fmt: skip
        await self.nc.publish(MEMBERS, json.dumps(content).encode())

    async def _heard(self, message: Msg) -> None:
        content = json.loads(message.data)
        id = str(content["id"])
        if content["leaving"]:
            if id != self.id or self._leaving:
                self._forget(id)
            return
        if id not in self._members:
            self._members[id] = time.monotonic()
            LOG.info("process %s has come: there are %d", id, len(self._members))
        if content.get("serving", True) and id not in self._serving:
            self._serving.add(id)
            LOG.info("process %s has caught up: %d share the tenants", id, len(self._serving))
            self._hand_over()
        self._members[id] = time.monotonic()
        self._reconnects[id] = content["reconnects"]
        if content["hello"] and id != self.id and not self._leaving:
            await self._say()

    def _forget(self, id: str) -> None:
        if len(self._members) > 1 and self._members.pop(id, None) is not None:
            self._serving.discard(id)
            LOG.info("process %s has gone: %d share the tenants", id, len(self._serving))
            self._hand_over()

    def _hand_over(self) -> None:
        """Closes tenants that others have now."""
        for name in [name for name in self._mine if self.owner(name) != self.id]:
            self._mine.discard(name)
            self._spawn(self._let_go(name))

    async def _let_go(self, name: str) -> None:
        with suppress(Failure):
            await self._release(name, True)

    async def _beat(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            now = time.monotonic()
            if not self.nc.is_connected or now - last > LOST_SECONDS:  # it is this process that heard nothing
                self._members = dict.fromkeys(self._members, now)
            last = now
            if self.nc.is_connected and not self._leaving:
                with suppress(Exception):
                    await self._say()
            for id in [id for id, heard in self._members.items() if now - heard > LOST_SECONDS and id != self.id]:
                self._forget(id)

    async def _look(self) -> None:
        """Finds out whether the log can be written, and which tenants have changed."""
        from nats.errors import Error

        js = self.nc.jetstream(timeout=API_SECONDS)
        while True:
            try:
                await js.stream_info(STREAM)
                await self.shared.refresh()
                self._follow(self.heirs())
                if self.problem is not None:
                    LOG.info("the log can be reached again")
                self.problem = None
            except (Error, TimeoutError, OSError, Failure) as error:
                if self.problem is None:
                    LOG.error("the log cannot be reached: %s", type(error).__name__)
                self.problem = "the log cannot be reached or has no quorum"
            await asyncio.sleep(CHECK_SECONDS)

    async def _tenants_changed(self, _: Msg) -> None:
        with suppress(Exception):  # it is looked at again soon
            await self.shared.refresh()

    # Requests.

    async def route(self, tenant: str, operation: str, content: Any, rows: int) -> Any:
        """Has a request answered by the process that has the tenant."""
        if operation == "learn" and not content["key"]:  # so that it can be sent again
            content = {**content, "key": secrets.token_hex(16), "print": "0" * 16}
        end = time.monotonic() + ROUTE_SECONDS
        while True:
            owner = self.owner(tenant)
            try:
                if owner == self.id:
                    await self._take(tenant)
                    return await self._here(tenant, operation, content, rows)
                return await self._ask(owner, tenant, operation, content, rows)
            except Failure as failure:
                if failure.status != MOVED:
                    raise
            if time.monotonic() > end:
                raise busy("the process that has this tenant cannot be reached")
            await asyncio.sleep(0.05)

    async def _take(self, tenant: str) -> None:
        """Before the first request for a tenant that another process had, what that one wrote is applied."""
        if tenant not in self._mine:
            await self._own(tenant, False)
            self._mine.add(tenant)

    async def _ask(self, owner: str, tenant: str, operation: str, content: Any, rows: int) -> Any:
        from nats.errors import Error, NoRespondersError

        data = json.dumps([tenant, operation, content, rows], separators=(",", ":")).encode()
        if len(data) > self.nc.max_payload:
            raise Failure(413, f"the request has {len(data):,} bytes, but NATS takes {self.nc.max_payload:,}")
        before = self.nc.stats["reconnects"], self._reconnects.get(owner)
        reply = asyncio.ensure_future(self.nc.request(CALLS + owner, data, timeout=REPLY_SECONDS))
        try:
            while not reply.done():
                await asyncio.wait({reply}, timeout=BEAT_SECONDS / 2)
                lost = owner not in self._members or before != (
                    self.nc.stats["reconnects"],
                    self._reconnects.get(owner),
                )
                if lost and not reply.done():  # it is sent again
                    raise moved()
            status, answer = json.loads(reply.result().data)
        except NoRespondersError:
            if time.monotonic() - self._members.get(owner, math.inf) > SILENT_SECONDS:
                self._forget(owner)
            raise moved() from None
        except (Error, TimeoutError, OSError):
            raise busy("the process that has this tenant cannot be reached") from None
        finally:
            reply.cancel()
        if status != 200:
            raise Failure.from_json(status, answer)
        return answer

    async def _called(self, message: Msg) -> None:
        self._spawn(self._answer(message))

    async def _answer(self, message: Msg) -> None:
        tenant, operation, content, rows = json.loads(message.data)
        try:
            if self._tenants.get(tenant) is None:
                await self.shared.refresh()
            if self.owner(tenant) != self.id or self._tenants.get(tenant) is None:
                raise moved()
            await self._take(tenant)
            reply = [200, await self._here(tenant, operation, content, rows)]
        except Failure as failure:
            reply = [failure.status, failure.to_json()]
        except Exception as error:  # of NATS: it is asked again
            LOG.error("a request of another process failed: %s", type(error).__name__)
            reply = [MOVED, moved().to_json()]
        data = json.dumps(reply, separators=(",", ":")).encode()
        if len(data) > self.nc.max_payload:
            text = f"the reply has {len(data):,} bytes, but NATS takes {self.nc.max_payload:,}; ask for less"
            data = json.dumps([413, Failure(413, text).to_json()]).encode()
        with suppress(Exception):
            await message.respond(data)


def _rank(tenant: str, id: str) -> bytes:
    return hashlib.blake2b(f"{id}/{tenant}".encode(), digest_size=8).digest()


async def shared(act: Awaitable[Made]) -> Made:
    """What a change that all processes see gives; where NATS does not answer, it is a failure."""
    try:
        return await act
    except Exception as error:
        found = explained_nats(error)
        raise found from None
