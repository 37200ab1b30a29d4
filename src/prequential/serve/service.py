"""The service behind the routes: who may do what, which worker does it, and what is remembered of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from prequential.errors import BadInput, BadSetting, PrequentialError
from prequential.serve.admin import VARIABLE, admin_hash
from prequential.serve.clock import JumpWatch
from prequential.serve.cluster import Cluster, shared
from prequential.serve.failures import Failure, busy, explained
from prequential.serve.histogram import LATENCY, Histogram
from prequential.serve.idempotency import LONGEST as LONGEST_KEY
from prequential.serve.idempotency import Replies, fingerprint, key_hash
from prequential.serve.latency_curve import LatencyCurve
from prequential.serve.nats_client import patiently
from prequential.serve.nursery import Nursery
from prequential.serve.quotas import Quotas, RequestLimits
from prequential.serve.shared_tenants import brief, check_kind
from prequential.serve.subscriptions import Subscriptions
from prequential.serve.tenants import NAME, Tenant, Tenants, check_name
from prequential.serve.tokens import bearer, matches
from prequential.serve.worker_pool import WorkerPool
from prequential.storage.files import DirectoryLock, make_directory, storage, write_atomically

LOG = logging.getLogger("prequential.serve")
RELOAD_SECONDS = 1.0  # how often it is looked whether another process has changed a tenant
PROBE_SECONDS = 2.0  # how often the disk is tried for /health, at most
REFUSED_SECONDS = 30.0  # for how long a write that the disk refused counts, if none has succeeded since
LOCK_SECONDS = 10.0  # how long a service that is ending may take to let go of its home


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a service is started with."""

    home: Path
    """The directory of the service."""
    workers: int = 1
    """Worker processes, which hold the learners."""
    durability: str = "sync"
    """When a write is acknowledged: synced to disk (sync), or written, with a sync every second (interval)."""
    memory: int = 2 << 30
    """Bytes that the workers may take together before tenants that are not in use are closed."""
    max_lag: int = 10_000
    """Rows of one tenant that may wait to be learned; above that a request is answered by 503."""
    max_waiting: int = 2_000
    """Requests of one tenant that may wait."""
    max_body: int = 16 << 20
    """Bytes of a request."""
    body_seconds: float = 20.0
    """In which a request must have come."""
    trust: bool = False
    """Whether settings of tenants may name code to import."""
    log: str | None = None
    """The servers of NATS that have the logs of the tenants; None: they are in the home."""
    replicas: int = 1
    """How many of these servers keep a copy of each log; of those that exist already, it stays as it was."""

    def for_workers(self) -> dict[str, Any]:
        """What each worker is started with."""
        return {
            "home": str(self.home),
            "memory": self.memory // self.workers,
            "durability": self.durability,
            "trust": self.trust,
            "log": self.log,
        }


class Service:
    """Tenants, workers and everything in between; `start` and `stop` belong to the life of the web process.

    It must be made before the process has threads, as it forks.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        nursery = Nursery(options.for_workers())  # first: nothing that is open here shall be open there
        home = options.home
        with storage(home):
            make_directory(home)
            check_kind(home, shared=options.log is not None)
            self._lock = DirectoryLock(home)
            self._lock.wait(LOCK_SECONDS)
        self.tenants = Tenants(home, trust=options.trust)
        self._admin_hash, self.new_admin_token = admin_hash(home)
        self.cluster: Cluster | None = None
        if options.log is not None:
            self.cluster = Cluster(
                options.log,
                options.replicas,
                self.tenants,
                here=self._call_here,
                release=self._release,
                own=self._own,
                follow=self._follow,
            )
            self._join()
        self.subscriptions = Subscriptions(self._subscribe)
        self.pool = WorkerPool(options.workers, nursery, self.subscriptions.publish)
        self.replies = Replies()
        self.limits = RequestLimits()
        self.latency: dict[str, Histogram] = {name: Histogram(LATENCY) for name in ("predict", "labels", "observe")}
        self.tenant_latency: dict[str, LatencyCurve] = {}
        self.statuses: dict[int, int] = {}  # replies by status
        self.begun = time.monotonic()
        self.clock = JumpWatch()
        self.stopping = False
        self._rows: dict[str, int] = {}  # rows of each tenant that wait to be learned
        self._waiting: dict[str, int] = {}  # requests of each tenant that wait
        self._refused: dict[str, tuple[float, str]] = {}  # tenants whose last write the disk refused: when, and why
        self._reloader: asyncio.Task[None] | None = None
        self._probe: tuple[float, str | None] = (-PROBE_SECONDS, None)

    async def start(self) -> None:
        self.pool.start()
        if self.cluster is not None:
            await self.cluster.start()
        self._reloader = asyncio.create_task(self._reload())

    async def stop(self) -> None:
        """Finishes what is under way, saves all tenants and lets go of the home."""
        self.stopping = True
        if self._reloader is not None:
            self._reloader.cancel()
        self.subscriptions.close()
        if self.cluster is not None:
            await self.cluster.leave()
        await self.pool.stop()
        if self.cluster is not None:
            await self.cluster.stop()
        self._lock.free()

    async def _reload(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            jump = self.clock.look()
            if jump is not None:
                LOG.warning(
                    "the clock of the system was set %s by %.0f s", "forward" if jump > 0 else "back", abs(jump)
                )
            with contextlib.suppress(OSError):
                self.tenants.reload()

    # Several processes.

    def _join(self) -> None:
        """Takes over the tenants and the admin token that all processes share, before anything is started."""
        assert self.options.log is not None

        async def join() -> None:
            async with brief(self.options.log or "", self.options.replicas, self.tenants) as found:
                await patiently(found.refresh)
                kept = await patiently(partial(found.admin_hash, self._admin_hash))
                if VARIABLE not in os.environ:
                    if kept != self._admin_hash:
                        self.new_admin_token = None  # another process has shown it
                    self._admin_hash = kept

        asyncio.run(join())

    def create_first(self, name: str, token: str | None) -> str | None:
        """Makes a tenant before the service starts; its token, or None where there is one of that name."""
        if self.tenants.get(name) is not None:
            return None
        tenant, made = self.tenants.create(name, token=token)

        async def tell() -> bool:
            async with brief(self.options.log or "", self.options.replicas, self.tenants) as found:
                return await found.create(tenant)

        return made if self.cluster is None or asyncio.run(tell()) else None

    async def _release(self, name: str, save: bool) -> None:
        """Closes a tenant that another process has, or that is deleted."""
        with contextlib.suppress(Failure):  # of a worker that does not run, and so has nothing open
            await self.pool.of(name).call("release", None, [name, save])

    async def _own(self, name: str, open: bool) -> bool:
        """Lets a tenant catch up with its log before the first request; False: the worker does not run."""
        try:
            await self.pool.of(name).call("own", None, [name, open])
        except Failure:
            return False
        return True

    def _follow(self, names: list[str]) -> None:
        """Lets each worker follow those of the tenants that it would have."""
        for worker in self.pool.workers:
            if worker.ready.is_set():
                worker.tell("follow", [name for name in names if self.pool.of(name) is worker])

    # Who may do what.

    def is_admin(self, authorization: str | None) -> bool:
        return matches(bearer(authorization), self._admin_hash)

    def require_admin(self, authorization: str | None) -> None:
        if not self.is_admin(authorization):
            raise _unauthorized()

    def authorize(self, name: str, authorization: str | None) -> Tenant:
        """The tenant, if the token is its own or that of the admin.

        The reply to another token does not depend on whether there is such a tenant.
        """
        token = bearer(authorization)
        if token and self.tenants.owner(token) == name:
            tenant = self.tenants.get(name)
            assert tenant is not None
            return tenant
        self.require_admin(authorization)
        tenant = self.tenants.get(name) if NAME.fullmatch(name) else None
        if tenant is None:
            raise Failure(404, f"there is no tenant {name[:63]}")
        return tenant

    # What is asked of workers.

    async def call(self, tenant: Tenant, operation: str, content: Any = None, *, rows: int = 0) -> Any:
        """Sends a request to the worker of a tenant, or to the process that has it."""
        if self.stopping:
            raise busy("the service is stopping")
        if self.cluster is not None:
            return await self.cluster.route(tenant.name, operation, content, rows)
        return await self._call_here(tenant.name, operation, content, rows)

    async def _call_here(self, name: str, operation: str, content: Any, rows: int) -> Any:
        """Sends a request to the worker of a tenant, unless too much waits there already."""
        options = self.options
        waiting, behind = self._waiting.get(name, 0), self._rows.get(name, 0)
        if waiting >= options.max_waiting:
            raise busy(f"{waiting} requests of this tenant wait already")
        if rows and behind and behind + rows > options.max_lag:
            raise busy(f"learning is {behind:,} rows behind; at most {options.max_lag:,} may wait")
        self._waiting[name], self._rows[name] = waiting + 1, behind + rows
        try:
            made = await self.pool.of(name).call(operation, name, content)
            if rows:
                self._refused.pop(name, None)
            return made
        except Failure as failure:
            if failure.message.startswith("the disk"):
                self._refused[name] = (time.monotonic(), failure.message.partition(";")[0])
            raise
        finally:
            _count_down(self._waiting, name, 1)
            _count_down(self._rows, name, rows)

    def lag(self, name: str) -> dict[str, int]:
        """How much of a tenant waits: requests, and rows to learn."""
        return {"log_lag": self._rows.get(name, 0), "requests_waiting": self._waiting.get(name, 0)}

    async def once(
        self, tenant: Tenant, key: str | None, route: str, body: bytes, act: Callable[[str | None, str], Any]
    ) -> tuple[Any, bool]:
        """What `act` gives, or has given to a request with the same key before; and whether that was so.

        `act` gets what stands for the key and for the content of the request.
        """
        if key is None:
            return await act(None, ""), False
        if not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
            raise Failure(400, f"Idempotency-Key must have 1 to {LONGEST_KEY} printable characters", "Idempotency-Key")
        hashed, print = key_hash(tenant.name, key), fingerprint(route, body)
        before = self.replies.begin(hashed, print)
        if before is not None:
            return before[1], True
        try:
            content = await act(hashed, print)
        except BaseException:
            self.replies.give_up(hashed)
            raise
        self.replies.end(hashed, print, 200, content)
        return content, False

    def count(self, route: str, tenant: str, status: int, seconds: float) -> None:
        """Takes a reply into the figures."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        histogram = self.latency.get(route)
        if histogram is not None and status < 400:
            histogram.add(seconds)
            if route == "predict":
                own = self.tenant_latency.get(tenant)
                if own is None:
                    own = self.tenant_latency[tenant] = LatencyCurve()
                own.add(seconds)

    def _subscribe(self, name: str, on: bool) -> None:
        worker = self.pool.of(name)
        if on:
            worker.subscribed[name] = 1
        else:
            worker.subscribed.pop(name, None)
        if worker.ready.is_set():
            worker.tell("subscribe" if on else "unsubscribe", name)

    # Tenants.

    async def create(self, name: str, given: dict[str, Any]) -> tuple[Tenant, str | None]:
        """A tenant, made where there is none; its token where it was made just now."""
        check_name(name)
        quotas = Quotas.from_dict(given["quotas"])
        existing = self.tenants.get(name)
        if existing is not None:
            wanted = Tenant(
                name,
                "",
                {"async_steps": True, **given["settings"]},
                given["classes"],
                given["schema"],
                given["missing"],
            )
            if not existing.made_like(wanted):
                raise Failure(409, f"tenant {name} exists with other settings; delete it first")
            if quotas == existing.quotas:
                return existing, None
            changed = self.tenants.change(existing, quotas=quotas)
            await self.share(changed)
            await self.call(changed, "quotas", quotas.to_dict())
            return changed, None
        tenant, token = self.tenants.create(
            name, settings=given["settings"], classes=given["classes"], schema=given["schema"],
            missing=given["missing"], quotas=quotas,
        )  # fmt: skip
        if self.cluster is not None and not await shared(self.cluster.shared.create(tenant)):
            raise Failure(409, f"tenant {name} was made by another process just now")
        try:
            await self.call(tenant, "state")
        except Failure as failure:
            if failure.status < 500:  # these settings make no learner
                await self.delete(tenant)
                raise
        return tenant, token

    async def share(self, tenant: Tenant) -> None:
        """Tells other processes of other quotas or another token."""
        if self.cluster is not None:
            await shared(self.cluster.shared.change(tenant))

    async def delete(self, tenant: Tenant) -> None:
        """Removes a tenant and everything of it."""
        if self.cluster is not None:
            await shared(self.cluster.shared.delete(tenant.name))
        else:
            await self.pool.of(tenant.name).call("close", tenant.name, False)
            await asyncio.to_thread(self.tenants.delete, tenant.name)
        self.limits.forget(tenant.name)
        self.tenant_latency.pop(tenant.name, None)

    # Health.

    async def health(self) -> dict[str, Any]:
        """Whether it can work; `status` is ok or says what is wrong."""
        problem = await self._try_disk()
        workers = [worker.ready.is_set() for worker in self.pool.workers]
        status = "ok"
        if problem is not None:
            status = problem
        elif self.stopping:
            status = "stopping"
        elif self.cluster is not None and self.cluster.problem is not None:
            status = self.cluster.problem
        elif not all(workers):
            status = f"{workers.count(False)} of {len(workers)} workers are being started"
        return {
            "status": status,
            "storage": problem or "ok",
            "clock": self.clock.problem or "ok",
            "workers": {"ready": workers.count(True), "count": len(workers)},
            "uptime": round(time.monotonic() - self.begun, 1),
            **({} if self.cluster is None else self.cluster.health()),
        }

    async def _try_disk(self) -> str | None:
        """What is wrong with the disk, by a small write that is synced; tried again after a while."""
        refused = [why for when, why in self._refused.values() if time.monotonic() - when < REFUSED_SECONDS]
        if refused:
            return refused[-1]
        when, problem = self._probe
        if time.monotonic() - when >= PROBE_SECONDS:
            self._probe = (time.monotonic(), problem)  # others that ask meanwhile get what was found before
            problem = await asyncio.to_thread(self._write_something)
            self._probe = (time.monotonic(), problem)
        return problem

    def _write_something(self) -> str | None:
        home = self.options.home
        try:
            write_atomically(home / "probe", os.urandom(4096))
            if shutil.disk_usage(home).free < 16 << 20:
                return "the disk is nearly full"
        except OSError as error:
            return explained(error).message.partition(";")[0]
        return None


def checked(act: Callable[[], Any]) -> Any:
    """What a call gives; its errors become failures."""
    try:
        return act()
    except (BadInput, BadSetting) as error:
        raise Failure(422, error) from None
    except PrequentialError as error:
        raise explained(error) from None


def new_id() -> str:
    """An id for a prediction that was asked without one."""
    return secrets.token_hex(12)


def _unauthorized() -> Failure:
    return Failure(401, "the token is missing or wrong")


def _count_down(counts: dict[str, int], name: str, by: int) -> None:
    left = counts.get(name, 0) - by
    if left > 0:
        counts[name] = left
    else:
        counts.pop(name, None)
