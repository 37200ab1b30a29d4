"""How much a tenant may ask for."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields
from typing import Any

from prequential.errors import BadSetting, short
from prequential.serve.failures import Failure, over_quota


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """Limits of one tenant; None: no limit."""

    requests_per_second: float | None = None
    """Requests, on average over a second."""
    pending: int = 100_000
    """Predictions that wait for their labels."""
    rows: int | None = None
    """Examples that are learned."""
    bytes: int | None = None
    """On disk."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name != "pending":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**53:
                raise BadSetting(f"quotas.{field.name} ({short(value)}) must be a number above 0")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Quotas:
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names:
                raise BadSetting(f"quotas.{name} is not known, expected some of {', '.join(names)}")
        return cls(**given)


class Bucket:
    """Counts requests against a rate: as many at once as come in a second, by a clock that never jumps.

    >>> bucket = Bucket(2)
    >>> [bucket.take(1, now=0.0), bucket.take(1, now=0.0), bucket.take(1, now=0.0)]
    [0.0, 0.0, 0.5]
    """

    def __init__(self, rate: float) -> None:
        self.rate, self._most = rate, max(rate, 1.0)
        self._level, self._time = self._most, -1.0

    def take(self, count: float, now: float | None = None) -> float:
        """Takes so many; 0, or how many seconds are missing until there are."""
        now = time.monotonic() if now is None else now
        if self._time >= 0:
            self._level = min(self._most, self._level + (now - self._time) * self.rate)
        self._time = now
        if self._level >= count:
            self._level -= count
            return 0.0
        return (count - self._level) / self.rate


class RequestLimits:
    """The buckets of all tenants that have a rate; bounded, as names come from the tenants that exist."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}

    def check(self, tenant: str, quotas: Quotas) -> None:
        """Counts a request, or refuses it."""
        rate = quotas.requests_per_second
        if rate is None:
            return
        bucket = self._buckets.get(tenant)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[tenant] = Bucket(rate)
        if seconds := bucket.take(1):
            raise over_quota(f"more than {rate:g} requests a second", seconds)

    def forget(self, tenant: str) -> None:
        self._buckets.pop(tenant, None)


def check_amounts(quotas: Quotas, *, rows: int, position: int, asks: int, pending: int, size: int) -> Failure | None:
    """Why so many more rows or predictions are too many, if they are."""
    if quotas.rows is not None and rows and position + rows > quotas.rows:
        return over_quota(f"{position:,} rows are learned and {rows:,} more come, but the quota is {quotas.rows:,}", 60)
    if asks and pending + asks > quotas.pending:
        return over_quota(
            f"{pending:,} predictions wait for labels and {asks:,} more come, but the quota is {quotas.pending:,}", 60
        )
    if quotas.bytes is not None and size > quotas.bytes:
        return over_quota(f"{size:,} bytes are on disk, but the quota is {quotas.bytes:,}", 60)
    return None
