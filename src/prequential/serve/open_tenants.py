"""The tenants that a worker has open: opened when they are needed, closed when memory is short."""

from __future__ import annotations

import ctypes
import gc
import mmap
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prequential.errors import BadInput, PrequentialError
from prequential.serve.failures import Failure
from prequential.serve.nats_client import NatsThread
from prequential.serve.tenant_learner import TenantLearner
from prequential.serve.tenants import check_name
from prequential.storage.files import LockHeld, refuse_links
from prequential.storage.sealed import read_sealed

SAVE_ROWS, SAVE_SECONDS = 8192, 60.0  # what is learned again at most after a crash
SAVE_ROWS_SHARED = 512  # where another process may have to take over
LOCK_SECONDS = 5.0  # how long another process may take to let go of a tenant
LEAST_MEMORY = 64 << 20  # bytes for tenants, beyond what the process takes without any
PAGE = mmap.PAGESIZE


class OpenTenants:
    """Learners by the names of their tenants, the least recently used first.

    Parameters
    ----------
    home
        The directory of the service.
    memory
        Bytes that this process may take before tenants are closed; the one that is in use stays.
    trust
        Whether settings may name code to import.
    nats
        Where the logs are; None: in the homes of the learners.
    """

    def __init__(self, home: Path, *, memory: int, trust: bool = False, nats: NatsThread | None = None) -> None:
        self.home, self.trust, self.nats = home, trust, nats
        self.memory = max(memory, self.memory_used() + LEAST_MEMORY)
        self.opened = self.closed = 0
        self._open: OrderedDict[str, TenantLearner] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def items(self) -> Iterable[tuple[str, TenantLearner]]:
        return list(self._open.items())

    def get(self, name: str) -> TenantLearner:
        """The tenant, opened if it is not."""
        tenant = self._open.get(name)
        if tenant is not None and tenant.log.fenced:  # what it has applied is not in the log
            self.close(name, save=False)
            tenant = None
        if tenant is None:
            self._make_room()
            tenant = self._open[name] = self._opened(name)
            self.opened += 1
        self._open.move_to_end(name)
        tenant.used = time.monotonic()
        return tenant

    def _opened(self, name: str) -> TenantLearner:
        place = self.home / "tenants" / check_name(name)
        refuse_links(self.home, place)
        if not (place / "tenant.json").exists():
            raise Failure(404, f"there is no tenant {name}")
        made = read_sealed(place / "tenant.json")
        end = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                return TenantLearner(name, place, made, trust=self.trust, nats=self.nats)
            except LockHeld:  # of a process that is ending
                if time.monotonic() > end:
                    raise Failure(503, "another process has this tenant", retry=1) from None
            time.sleep(0.05)

    def follow(self, name: str, *, open: bool = True) -> None:
        """Applies what another process has written to the log of a tenant; with `open`, also where it is not open."""
        tenant = self._open.get(name)
        try:
            if tenant is not None:
                tenant.follow()
            elif open and self.memory_used() < self.memory:
                self.get(name)
        except Exception:  # it is opened anew when it is needed
            self.close(name, save=False)

    def _make_room(self) -> None:
        """Closes tenants until there is memory for another one."""
        trimmed = False
        while self._open and self.memory_used() > self.memory:
            self.close(next(iter(self._open)))
            if not trimmed or not len(self._open) % 16:
                trimmed = True
                gc.collect()
                _trim()

    def memory_used(self) -> int:
        """Bytes of memory that this process takes."""
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * PAGE

    def tidy(self) -> None:
        """Saves what has changed for a while."""
        now = time.monotonic()
        for tenant in list(self._open.values()):
            rows = tenant.learner.position - tenant.saved_at
            most = SAVE_ROWS if self.nats is None else SAVE_ROWS_SHARED
            if tenant.changed and (rows >= most or now - tenant.saved > SAVE_SECONDS):
                with suppress(PrequentialError):  # the disk: it is tried again
                    tenant.save()
                tenant.saved = now
                return  # one at a time: predictions of others wait for it

    def close(self, name: str, *, save: bool = True) -> None:
        """Closes a tenant; without a save, where it is to be deleted."""
        tenant = self._open.pop(name, None)
        if tenant is not None:
            self.closed += 1
            if save:
                tenant.close()
            else:
                tenant.learner.close()

    def close_all(self) -> None:
        for name in list(self._open):
            with suppress(PrequentialError, BadInput):
                self.close(name)


def _trim() -> None:
    """Gives memory that is not in use back to the system, where the C library can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
