"""Clients of the service: `prequential.Client`, and `prequential.AsyncClient` for asyncio.

A request that fails for the moment (no connection, 429, 503, 507) is sent again, with the same `Idempotency-Key`, so
that nothing is learned twice.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from prequential.errors import BadInput, MissingExtra, PrequentialError

try:
    import httpx
except ModuleNotFoundError:
    raise MissingExtra("the client of the service", "serve") from None

X = Sequence[float | None] | Mapping[str, Any]
Label = str | int | float | bool
AGAIN = (409, 429, 503, 507)  # statuses after which the same request may succeed


class ServiceError(PrequentialError):
    """The service refused a request.

    Attributes
    ----------
    status
        The status of HTTP.
    field
        The field that it is about.
    """

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.field = status, field


@dataclass(frozen=True)
class Prediction:
    """What the service predicted for a row."""

    id: str | None
    label: Label | None
    probabilities: dict[str, float]
    unseen: float
    position: int
    more: dict[str, Any] = field(default_factory=dict, repr=False)  # what a later version says besides

    @classmethod
    def of(cls, content: dict[str, Any]) -> Prediction:
        names = ("id", "label", "probabilities", "unseen", "position")
        more = {name: value for name, value in content.items() if name not in names}
        return cls(**{name: content[name] for name in names}, more=more)


@dataclass(frozen=True)
class Accepted:
    """A label that the service has taken."""

    id: str | None
    position: int
    status: str  # learned, waiting (for its prediction) or known (from before)

    @classmethod
    def of(cls, content: dict[str, Any]) -> Accepted:
        return cls(content["id"], content["position"], content["status"])


class _Requests:
    """What both clients have in common: requests as they are sent, and replies as they are read."""

    def __init__(self, url: str, tenant: str, token: str, *, timeout: float, patience: float) -> None:
        self.url, self.tenant, self.timeout, self.patience = url.rstrip("/"), tenant, timeout, patience
        self._headers = {"Authorization": f"Bearer {token}"}

    def _path(self, route: str) -> str:
        return f"{self.url}/v1/{self.tenant}{route}"

    def _prepared(self, content: Any) -> tuple[bytes, dict[str, str]]:
        key = uuid.uuid4().hex
        return json.dumps(content).encode(), {"Idempotency-Key": key, "Content-Type": "application/json"}

    def _read(self, reply: httpx.Response) -> Any:
        if reply.is_success:
            return reply.json() if reply.content else None
        try:
            error = reply.json()["error"]
            raise ServiceError(reply.status_code, str(error["message"]), error.get("field"))
        except (ValueError, KeyError, TypeError):
            raise ServiceError(reply.status_code, f"the service answered {reply.status_code}") from None

    def _pause(self, reply: httpx.Response | None, attempt: int, end: float) -> float | None:
        """How long to wait before the next attempt; None: there is none."""
        if reply is not None and reply.status_code not in AGAIN:
            return None
        pause = min(0.05 * 2**attempt, 2.0)
        after = "" if reply is None else reply.headers.get("Retry-After", "")
        if after.isdecimal() and attempt:
            pause = max(pause, min(float(after), 5.0))
        return pause if time.monotonic() + pause < end else None

    @staticmethod
    def _row(x: X, id: Any) -> dict[str, Any]:
        plain = dict(x) if isinstance(x, Mapping) else [None if v is None or v != v else v for v in x]
        return {"x": plain} if id is None else {"id": id, "x": plain}

    def _predict_many(self, xs: Sequence[X], ids: Sequence[Any] | None) -> dict[str, Any]:
        given = [None] * len(xs) if ids is None else list(ids)
        if len(given) != len(xs):
            raise BadInput(f"got {len(xs)} rows and {len(given)} ids")
        return {"rows": [self._row(x, id) for x, id in zip(xs, given, strict=True)]}

    def _observe(self, xs: Sequence[X], ys: Sequence[Label]) -> dict[str, Any]:
        if len(xs) != len(ys):
            raise BadInput(f"got {len(xs)} rows and {len(ys)} labels")
        return {"rows": [{**self._row(x, None), "y": y} for x, y in zip(xs, ys, strict=True)]}

    @staticmethod
    def _labels(ids: Sequence[Any], ys: Sequence[Label]) -> dict[str, Any]:
        if len(ids) != len(ys):
            raise BadInput(f"got {len(ids)} ids and {len(ys)} labels")
        return {"rows": [{"id": id, "y": y} for id, y in zip(ids, ys, strict=True)]}


class Client(_Requests):
    """A tenant of a service, for ordinary code.

    Parameters
    ----------
    url
        Of the service.
    tenant
        The name of the tenant.
    token
        Its token.
    timeout
        Seconds for one attempt.
    patience
        For how many seconds a request that cannot be answered at the moment is retried.

    Examples
    --------
    >>> client = Client("http://127.0.0.1:8000", "tickets", token="pq_...")
    >>> client.predict({"amount": 3.2}, id="a7")  # doctest: +SKIP
    >>> client.learn(id="a7", y="billing")  # doctest: +SKIP
    """

    def __init__(self, url: str, tenant: str, token: str, *, timeout: float = 30.0, patience: float = 60.0) -> None:
        super().__init__(url, tenant, token, timeout=timeout, patience=patience)
        self._http = httpx.Client(headers=self._headers, timeout=timeout)

    def predict(self, x: X, *, id: Any = None) -> Prediction:
        """Predicts a row; its label can come later by the id, which is made up where none is given."""
        return Prediction.of(self._post("/predict", self._row(x, id)))

    def predict_many(self, xs: Sequence[X], ids: Sequence[Any] | None = None) -> list[Prediction]:
        """Predicts several rows."""
        content = self._post("/predict", self._predict_many(xs, ids))
        return [Prediction.of(one) for one in content["predictions"]]

    def learn(self, x: X | None = None, y: Label | None = None, *, id: Any = None) -> Accepted:
        """Gives the label of what was predicted by an id, or an example with its label."""
        row = {} if x is None else self._row(x, None)
        return Accepted.of(self._post("/labels", {**row, **({} if id is None else {"id": id}), "y": y}))

    def learn_many(self, ids: Sequence[Any], ys: Sequence[Label]) -> list[Accepted]:
        """Gives several labels by their ids."""
        return [Accepted.of(one) for one in self._post("/labels", self._labels(ids, ys))["results"]]

    def observe(self, xs: Sequence[X], ys: Sequence[Label]) -> int:
        """Learns examples with their labels, oldest first; how many were learned in all."""
        return int(self._post("/observe", self._observe(xs, ys))["position"])

    def state(self) -> dict[str, Any]:
        """Settings of the tenant, and where its learner stands."""
        return dict(self._get(""))

    def metrics(self) -> dict[str, Any]:
        """Running figures."""
        return dict(self._get("/metrics"))

    def recent(self) -> list[dict[str, Any]]:
        """The latest predictions and what became of them."""
        return list(self._get("/recent")["predictions"])

    def series(self) -> dict[str, Any]:
        """Curves over the labels so far."""
        return dict(self._get("/series"))

    def events(self) -> Iterator[dict[str, Any]]:
        """What happens from now on: predictions, labels with the fate of their predictions, alarms."""
        with self._http.stream("GET", self._path("/events"), timeout=httpx.Timeout(self.timeout, read=60.0)) as reply:
            if not reply.is_success:
                reply.read()
                self._read(reply)
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

    def _get(self, route: str) -> Any:
        return self._send("GET", route, None, {})

    def _post(self, route: str, content: Any) -> Any:
        return self._send("POST", route, *self._prepared(content))

    def _send(self, method: str, route: str, body: bytes | None, headers: dict[str, str]) -> Any:
        end, attempt = time.monotonic() + self.patience, 0
        while True:
            reply: httpx.Response | None = None
            try:
                reply = self._http.request(method, self._path(route), content=body, headers=headers)
                pause = None if reply.is_success else self._pause(reply, attempt, end)
            except httpx.TransportError as error:
                pause = self._pause(None, attempt, end)
                if pause is None:
                    raise ServiceError(0, f"the service at {self.url} cannot be reached: {error}") from None
            if pause is None:
                assert reply is not None
                return self._read(reply)
            attempt += 1
            time.sleep(pause)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Requests):
    """The same as `Client`, with methods to be awaited."""

    def __init__(self, url: str, tenant: str, token: str, *, timeout: float = 30.0, patience: float = 60.0) -> None:
        super().__init__(url, tenant, token, timeout=timeout, patience=patience)
        self._http = httpx.AsyncClient(headers=self._headers, timeout=timeout)

    async def predict(self, x: X, *, id: Any = None) -> Prediction:
        """Predicts a row; its label can come later by the id, which is made up where none is given."""
        return Prediction.of(await self._post("/predict", self._row(x, id)))

    async def predict_many(self, xs: Sequence[X], ids: Sequence[Any] | None = None) -> list[Prediction]:
        """Predicts several rows."""
        content = await self._post("/predict", self._predict_many(xs, ids))
        return [Prediction.of(one) for one in content["predictions"]]

    async def learn(self, x: X | None = None, y: Label | None = None, *, id: Any = None) -> Accepted:
        """Gives the label of what was predicted by an id, or an example with its label."""
        row = {} if x is None else self._row(x, None)
        return Accepted.of(await self._post("/labels", {**row, **({} if id is None else {"id": id}), "y": y}))

    async def learn_many(self, ids: Sequence[Any], ys: Sequence[Label]) -> list[Accepted]:
        """Gives several labels by their ids."""
        return [Accepted.of(one) for one in (await self._post("/labels", self._labels(ids, ys)))["results"]]

    async def observe(self, xs: Sequence[X], ys: Sequence[Label]) -> int:
        """Learns examples with their labels, oldest first; how many were learned in all."""
        return int((await self._post("/observe", self._observe(xs, ys)))["position"])

    async def state(self) -> dict[str, Any]:
        """Settings of the tenant, and where its learner stands."""
        return dict(await self._get(""))

    async def metrics(self) -> dict[str, Any]:
        """Running figures."""
        return dict(await self._get("/metrics"))

    async def recent(self) -> list[dict[str, Any]]:
        """The latest predictions and what became of them."""
        return list((await self._get("/recent"))["predictions"])

    async def series(self) -> dict[str, Any]:
        """Curves over the labels so far."""
        return dict(await self._get("/series"))

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """What happens from now on: predictions, labels with the fate of their predictions, alarms."""
        limits = httpx.Timeout(self.timeout, read=60.0)
        async with self._http.stream("GET", self._path("/events"), timeout=limits) as reply:
            if not reply.is_success:
                await reply.aread()
                self._read(reply)
            async for line in reply.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

    async def _get(self, route: str) -> Any:
        return await self._send("GET", route, None, {})

    async def _post(self, route: str, content: Any) -> Any:
        return await self._send("POST", route, *self._prepared(content))

    async def _send(self, method: str, route: str, body: bytes | None, headers: dict[str, str]) -> Any:
        end, attempt = time.monotonic() + self.patience, 0
        while True:
            reply: httpx.Response | None = None
            try:
                reply = await self._http.request(method, self._path(route), content=body, headers=headers)
                pause = None if reply.is_success else self._pause(reply, attempt, end)
            except httpx.TransportError as error:
                pause = self._pause(None, attempt, end)
                if pause is None:
                    raise ServiceError(0, f"the service at {self.url} cannot be reached: {error}") from None
            if pause is None:
                assert reply is not None
                return self._read(reply)
            attempt += 1
            await asyncio.sleep(pause)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
