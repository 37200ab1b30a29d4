"""NATS JetStream: the connection, the stream of all logs, and reading from a stream."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from prequential.errors import BadSetting, MissingExtra
from prequential.serve.failures import Failure, busy

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

STREAM = "prequential"  # the logs of all tenants
BUCKET = "prequential-tenants"  # their settings, and the hashes of their tokens
SUBJECT = "prequential.log."  # followed by the name of a tenant
API_SECONDS = 2.0  # after which a server that does not answer counts as down
FEW = 32  # messages that are read one by one
START_SECONDS = 30.0  # that the servers may take when a process starts

Made = TypeVar("Made")


def servers_of(url: str) -> list[str]:
    """The addresses of servers.

    >>> servers_of("nats://a:4222,b:4222")
    ['nats://a:4222', 'nats://b:4222']
    """
    scheme, found, rest = url.partition("://")
    if not found or scheme not in ("nats", "tls"):
        raise BadSetting(
            f"log ({url[:80]!r}) must be the addresses of NATS servers, such as nats://host1:4222,host2:4222"
        )
    hosts = [host.strip().removeprefix(f"{scheme}://") for host in rest.split(",")]
    if not all(hosts):
        raise BadSetting(f"log ({url[:80]!r}) has an empty address")
    return [f"{scheme}://{host}" for host in hosts]


def check_installed() -> None:
    """Refuses where the client of NATS is not installed."""
    try:
        import nats  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra("--log nats://...", "nats") from None


async def connect(url: str, name: str, *, most: int = -1) -> Client:
    """A connection that comes back by itself, to any of the servers; `most` attempts, -1: any number."""
    import nats

    async def quiet(_: Exception) -> None:  # what fails is noticed by who asked for it
        pass

    return await nats.connect(
        servers_of(url), name=name, allow_reconnect=True, max_reconnect_attempts=most, reconnect_time_wait=0.2,
        connect_timeout=2, ping_interval=2, max_outstanding_pings=2, error_cb=quiet,
    )  # fmt: skip


async def prepare(nc: Client, replicas: int) -> None:
    """Makes the stream and the bucket where they do not exist; waits for servers that are still starting."""
    from nats.js import api

    js = nc.jetstream(timeout=API_SECONDS)

    async def make() -> None:
        if not await _exists(js, STREAM):
            await js.add_stream(
                api.StreamConfig(
                    name=STREAM, subjects=[f"{SUBJECT}*"], storage=api.StorageType.FILE, num_replicas=replicas,
                    duplicate_window=120, discard=api.DiscardPolicy.NEW,
                )
            )  # fmt: skip
        if not await _exists(js, f"KV_{BUCKET}"):
            await js.create_key_value(api.KeyValueConfig(bucket=BUCKET, history=1, replicas=replicas))

    await patiently(make)


async def patiently(act: Callable[[], Awaitable[Made]]) -> Made:
    """What a call that can be made again gives; while servers elect a leader, they do not answer."""
    from nats.errors import Error

    end = asyncio.get_running_loop().time() + START_SECONDS
    while True:
        try:
            return await act()
        except (Error, TimeoutError, OSError) as error:
            if asyncio.get_running_loop().time() > end:
                raise BadSetting(f"the log in NATS cannot be used: {error or type(error).__name__}") from None
        await asyncio.sleep(0.2)


async def _exists(js: JetStreamContext, stream: str) -> bool:
    from nats.js.errors import NotFoundError

    try:
        await js.stream_info(stream)
    except NotFoundError:
        return False
    return True


async def last_sequence(js: JetStreamContext, stream: str, subject: str) -> int:
    """The sequence of the last message of a subject, as the leader of the stream knows it; 0: there is none."""
    from nats.js.errors import NotFoundError

    try:
        return int((await js.get_last_msg(stream, subject)).seq or 0)
    except NotFoundError:
        return 0


async def read(
    js: JetStreamContext, stream: str, subject: str, *, after: int = 0, upto: int, newest: bool = False
) -> AsyncIterator[tuple[int, str, dict[str, str], bytes]]:
    """Messages of a subject: sequence, subject, headers, content. With `newest`, of each subject only the last one."""
    from nats.js import api

    if upto <= after:
        return
    if not newest:  # a few that are new need no consumer, which takes servers that agree on it
        for _ in range(FEW):
            found = await js.get_msg(stream, after + 1, subject, next=True)
            after = int(found.seq or 0)
            yield after, found.subject or subject, found.headers or {}, found.data or b""
            if after >= upto:
                return
    start: dict[str, Any] = {"deliver_policy": api.DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": after + 1}
    if newest:
        start = {"deliver_policy": api.DeliverPolicy.LAST_PER_SUBJECT}
    config = api.ConsumerConfig(
        ack_policy=api.AckPolicy.NONE, inactive_threshold=60, mem_storage=True, num_replicas=1, **start
    )
    consumer = await js.pull_subscribe(subject, stream=stream, config=config)
    try:
        while True:
            for message in await consumer.fetch(256, timeout=API_SECONDS):
                sequence = message.metadata.sequence.stream
                yield sequence, message.subject, message.headers or {}, message.data
                if sequence >= upto:
                    return
    finally:
        await consumer.unsubscribe()


class NatsThread:
    """A connection in a thread of its own, for processes that do not run an event loop.

    Parameters
    ----------
    url
        The servers.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.loop = asyncio.new_event_loop()
        self.nc: Client | None = None
        self._thread = threading.Thread(target=self.loop.run_forever, name="nats", daemon=True)
        self._thread.start()

    @property
    def js(self) -> JetStreamContext:
        if self.nc is None:
            raise _unreachable()
        return self.nc.jetstream(timeout=API_SECONDS)

    @property
    def connected(self) -> bool:
        return self.nc is not None and self.nc.is_connected

    def connect(self) -> None:
        """Connects, where it never did; a connection that was lost comes back by itself."""
        from nats.errors import Error

        if self.nc is None:
            try:
                self.nc = self.run(connect(self.url, "prequential-worker"), 5.0)
            except (Error, OSError, TimeoutError):
                raise _unreachable() from None
        if not self.nc.is_connected:
            raise _unreachable()

    def run(self, act: Coroutine[Any, Any, Made], seconds: float) -> Made:
        """What a coroutine gives, run in the thread."""
        future = asyncio.run_coroutine_threadsafe(act, self.loop)
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise TimeoutError(f"NATS did not answer within {seconds:g} s") from None

    def close(self) -> None:
        if self.nc is not None:
            self.run(self.nc.close(), 5.0)
        self.loop.call_soon_threadsafe(self.loop.stop)


def explained_nats(error: BaseException) -> BaseException:
    """What a request fails with where the servers do not answer; any other error as it is."""
    from nats.errors import Error

    return _unreachable() if isinstance(error, (Error, TimeoutError)) else error


def _unreachable() -> Failure:
    return busy("the log cannot be reached")
