"""What all processes know of the tenants: settings and hashes of tokens, in a key-value bucket of NATS.

The files of a process are a copy, which its workers read. A name that is taken is refused by the bucket, so that two
processes cannot make one tenant twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prequential.errors import BadCheckpoint, BadInput, BadSetting
from prequential.serve.nats_client import (
    API_SECONDS,
    BUCKET,
    STREAM,
    SUBJECT,
    check_installed,
    connect,
    prepare,
    read,
)
from prequential.serve.tenants import Tenant, Tenants
from prequential.storage.files import make_directory, storage
from prequential.storage.sealed import write_sealed

if TYPE_CHECKING:
    from nats.aio.client import Client

ADMIN = "_admin"  # the key of the hash of the admin token, which is no name of a tenant
FORMAT = "prequential-shared-1"
CHANGED = "prequential.tenants"  # the subject of notes that something has changed

Close = Callable[[str], Awaitable[None]]


class SharedTenants:
    """Keeps the tenants of this process like those of all.

    Parameters
    ----------
    nc
        The connection.
    tenants
        Those of this process.
    close
        Called with the name of a tenant before its files are removed.
    """

    def __init__(self, nc: Client, tenants: Tenants, close: Close | None = None) -> None:
        self.tenants = tenants
        self._nc, self._js, self._close = nc, nc.jetstream(timeout=API_SECONDS), close
        self._seen = -1  # the last change that was taken over
        self._lock = asyncio.Lock()  # one change or look at a time
        self._making: set[str] = set()  # tenants that were made here and are not in the bucket yet

    async def refresh(self) -> None:
        """Takes over what others have changed; the files of tenants that are no more are removed."""
        async with self._lock:
            last = (await self._js.stream_info(f"KV_{BUCKET}")).state.last_seq
            if last == self._seen:
                return
            # one that is made while the bucket is read is not in it yet, but not deleted either
            here = {name: self.tenants.get(name) for name in self.tenants.names() if name not in self._making}
            found = await self._read(last)
            for name, existing in here.items():
                made = found.get(name, {}).get("created")
                if existing is not None and self.tenants.get(name) == existing and made != existing.created:
                    await self._remove(name)
            for name, content in found.items():
                try:
                    self.tenants.adopt(content)
                except (BadCheckpoint, BadInput, BadSetting) as error:
                    self.tenants.problems[name] = str(error)
            self._seen = last

    async def _read(self, last: int) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        prefix = f"$KV.{BUCKET}."
        async for _, subject, headers, content in read(self._js, f"KV_{BUCKET}", f"{prefix}*", upto=last, newest=True):
            if not headers.get("KV-Operation") and not subject.endswith(ADMIN):
                found[subject.removeprefix(prefix)] = json.loads(content)
        return found

    async def create(self, tenant: Tenant) -> bool:
        """Tells all of a tenant that was made here; False where there is one of that name."""
        self._making.add(tenant.name)  # before anything is awaited
        try:
            made = await self._put_new(tenant)
        finally:
            self._making.discard(tenant.name)
        if made:
            await self._tell()
        else:
            self._seen = -1
            await self.refresh()
        return made

    async def _put_new(self, tenant: Tenant) -> bool:
        from nats.js.errors import KeyWrongLastSequenceError

        async with self._lock:
            bucket = await self._js.key_value(BUCKET)
            try:
                await bucket.create(tenant.name, _content(tenant))
            except KeyWrongLastSequenceError:
                await self._remove(tenant.name)
                return False
        return True

    async def change(self, tenant: Tenant) -> None:
        """Tells all of other quotas or another token."""
        await (await self._js.key_value(BUCKET)).put(tenant.name, _content(tenant))
        await self._tell()

    async def delete(self, name: str) -> None:
        """Removes a tenant everywhere, and its log."""
        async with self._lock:
            await (await self._js.key_value(BUCKET)).delete(name)
            await self._js.purge_stream(STREAM, subject=SUBJECT + name)
            await self._remove(name)
        await self._tell()

    async def admin_hash(self, mine: str) -> str:
        """The hash of the admin token: that of the first process."""
        from nats.js.errors import KeyWrongLastSequenceError

        bucket = await self._js.key_value(BUCKET)
        try:
            await bucket.create(ADMIN, mine.encode())
        except KeyWrongLastSequenceError:
            return ((await bucket.get(ADMIN)).value or b"").decode()
        return mine

    async def _remove(self, name: str) -> None:
        if self._close is not None:
            await self._close(name)
        if self.tenants.get(name) is not None:
            self.tenants.delete(name)

    async def _tell(self) -> None:
        await self._nc.publish(CHANGED)


@asynccontextmanager
async def brief(url: str, replicas: int, tenants: Tenants) -> AsyncIterator[SharedTenants]:
    """A short connection, for what happens before a service starts."""
    check_installed()
    from nats.errors import Error

    try:
        nc = await connect(url, "prequential-start", most=30)
    except (Error, OSError):
        raise BadSetting(f"no server of NATS answers at {url.rpartition('@')[2]}") from None
    try:
        await prepare(nc, replicas)
        yield SharedTenants(nc, tenants)
    finally:
        await nc.close()


def check_kind(home: Path, *, shared: bool) -> None:
    """Refuses a home of the other kind: in one the files are the truth, in the other they are a copy."""
    path = home / "shared.json"
    if shared and not path.exists():
        if (home / "tenants").exists():
            raise BadSetting(f"{home} was made without --log, and its tenants are in no log; give another home")
        with storage(path):
            make_directory(home)
            write_sealed(path, {"format": FORMAT})
    if not shared and path.exists():
        raise BadSetting(f"{home} is a copy of what is in NATS; it needs --log")


def _content(tenant: Tenant) -> bytes:
    return json.dumps(tenant.to_dict()).encode()
