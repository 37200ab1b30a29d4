"""The HTTP interface: FastAPI routes, each a few lines around `Service`. The OpenAPI page is at /docs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from prequential import __version__
from prequential.serve.failures import Failure, explained
from prequential.serve.openapi import add_schemas, documented
from prequential.serve.page_routes import add_page
from prequential.serve.prometheus import exposition
from prequential.serve.request_body import as_json, learn_content, parse, predict_content, read_body
from prequential.serve.schemas import (
    Accepted,
    AcceptedRows,
    LabelsRequest,
    ObserveRequest,
    Prediction,
    Predictions,
    PredictRequest,
    TenantRequest,
)
from prequential.serve.service import Service, checked
from prequential.serve.tenants import Tenant

Handler = Callable[..., Awaitable[Response]]


class Shortcut:
    """Calls some routes directly: what FastAPI does around them takes longer than they do.

    Parameters
    ----------
    app
        The application, which answers everything else.
    routes
        Those of `POST /v1/{tenant}/{name}`, by name.
    """

    def __init__(self, app: ASGIApp, routes: dict[str, Handler]) -> None:
        self.app, self.routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            parts = scope["path"].split("/")
            route = self.routes.get(parts[3]) if len(parts) == 4 and parts[1] == "v1" and parts[2] else None
            if route is not None:
                reply = await route(parts[2], Request(scope, receive, send))
                await reply(scope, receive, send)
                return
        await self.app(scope, receive, send)


def make_app(service: Service) -> FastAPI:
    """The web application of a service."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = FastAPIOffline(  # /docs works without internet
        title="prequential",
        version=__version__,
        description="Predict now, learn when the label comes. Every tenant has a learner and a token of its own.",
        lifespan=life,
        redoc_url=None,
    )
    app.state.service = service
    _add_errors(app)
    _add_work(app, service)
    _add_figures(app, service)
    _add_tenants(app, service)
    _add_health(app, service)
    add_page(app, service)
    add_schemas(app)
    return app


# What every reply has in common.


def _reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(as_json(content), status, headers, "application/json")


def _failed(failure: Failure) -> Response:
    headers: dict[str, str] = {}
    if failure.retry is not None:
        headers["Retry-After"] = str(max(1, round(failure.retry)))
    if failure.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return _reply({"error": {"message": failure.message, "field": failure.field}}, failure.status, headers)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Failure)
    async def on_failure(_: Request, failure: Exception) -> Response:
        assert isinstance(failure, Failure)
        return _failed(failure)

    @app.exception_handler(HTTPException)
    async def on_http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        reply = _failed(Failure(error.status_code, str(error.detail)))
        reply.headers.update(error.headers or {})
        return reply

    @app.exception_handler(Exception)
    async def on_error(_: Request, error: Exception) -> Response:
        return _failed(explained(error))


# Predictions and labels.


def _add_work(app: FastAPI, service: Service) -> None:
    options = service.options

    async def begin(request: Request, name: str) -> tuple[Tenant, bytes, str | None]:
        tenant = service.authorize(name, request.headers.get("authorization"))
        service.limits.check(tenant.name, tenant.quotas)
        body = await read_body(request, largest=options.max_body, seconds=options.body_seconds)
        return tenant, body, request.headers.get("idempotency-key")

    async def timed(request: Request, route: str, name: str, status: int, act: Handler) -> Response:
        begun, code = time.monotonic(), 500
        try:
            tenant, body, key = await begin(request, name)
            content, again = await service.once(tenant, key, route, body, await act(tenant, body))  # type: ignore[arg-type]
            code = status
            return _reply(content, status, {"Idempotency-Replayed": "true"} if again else None)
        except Failure as failure:
            code = failure.status
            return _failed(failure)
        finally:
            service.count(route, name, code, time.monotonic() - begun)

    work: dict[str, Any] = {"tags": ["predictions and labels"]}

    @app.post("/v1/{tenant}/predict", **work, **documented(PredictRequest, 200, Prediction, Predictions))
    async def predict(tenant: str, request: Request) -> Response:
        """Predict one row or several; with its id, the label can come later."""

        async def prepare(owner: Tenant, body: bytes) -> Any:
            given = parse(PredictRequest, body)

            async def act(key: str | None, print: str) -> Any:
                made = await service.call(owner, "predict", predict_content(given, key))
                return made[0] if given.rows is None else {"predictions": made}

            return act

        return await timed(request, "predict", tenant, 200, prepare)

    def learning(kind: type[LabelsRequest] | type[ObserveRequest]) -> Handler:
        async def prepare(owner: Tenant, body: bytes) -> Any:
            given = parse(kind, body)

            async def act(key: str | None, print: str) -> Any:
                content = learn_content(given, key, print)
                made = await service.call(owner, "learn", content, rows=len(content["rows"]))
                return {"results": made, "position": made[-1]["position"]} if content["several"] else made[0]

            return act

        return prepare

    @app.post("/v1/{tenant}/labels", **work, **documented(LabelsRequest, 202, Accepted, AcceptedRows))
    async def labels(tenant: str, request: Request) -> Response:
        """Give the label of what was asked by an id, or an example with its label; one or several."""
        return await timed(request, "labels", tenant, 202, learning(LabelsRequest))

    @app.post("/v1/{tenant}/observe", **work, **documented(ObserveRequest, 202, AcceptedRows))
    async def observe(tenant: str, request: Request) -> Response:
        """Predict, score and learn examples in order: a table of the past, or labels that come at once."""
        return await timed(request, "observe", tenant, 202, learning(ObserveRequest))

    app.add_middleware(Shortcut, routes={"predict": predict, "labels": labels, "observe": observe})


# Figures.


def _add_figures(app: FastAPI, service: Service) -> None:
    async def ask(request: Request, name: str, operation: str) -> Any:
        tenant = service.authorize(name, request.headers.get("authorization"))
        service.limits.check(tenant.name, tenant.quotas)
        return await service.call(tenant, operation)

    @app.get("/v1/{tenant}/metrics", tags=["figures"], **documented(None, 200))
    async def metrics(tenant: str, request: Request) -> Response:
        """Running accuracy, nats and recall, label delays, what waits, and latencies."""
        figures = await ask(request, tenant, "figures")
        own = service.tenant_latency.get(tenant)
        latency = None if own is None else {**own.to_dict(), "p50": own.quantile(0.5), "p99": own.quantile(0.99)}
        return _reply({**figures, **service.lag(tenant), "latency": latency})

    @app.get("/v1/{tenant}/recent", tags=["figures"], **documented(None, 200))
    async def recent(tenant: str, request: Request) -> Response:
        """The latest predictions and what became of them, newest first."""
        return _reply({"predictions": await ask(request, tenant, "recent")})

    @app.get("/v1/{tenant}/series", tags=["figures"], **documented(None, 200))
    async def series(tenant: str, request: Request) -> Response:
        """Curves over the labels so far: accuracy, nats, label delay, shares of the labels; and drift alarms."""
        return _reply(await ask(request, tenant, "series"))

    @app.get("/v1/{tenant}/events", tags=["figures"], **documented(None, 200, media="text/event-stream"))
    async def events(tenant: str, request: Request) -> Response:
        """Server-sent events: each prediction, each label with the fate of its prediction, and alarms."""
        owner = service.authorize(tenant, request.headers.get("authorization"))
        service.limits.check(owner.name, owner.quotas)
        queue = service.subscriptions.open(owner.name)
        stream = service.subscriptions.stream(owner.name, queue)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    @app.get("/metrics", tags=["figures"], **documented(None, 200, media="text/plain"))
    async def all_metrics(request: Request) -> Response:
        """All tenants for Prometheus; with the admin token."""
        service.require_admin(request.headers.get("authorization"))
        return Response(exposition(service, await service.pool.figures()), media_type="text/plain; version=0.0.4")


# Tenants.


def _add_tenants(app: FastAPI, service: Service) -> None:
    @app.get("/v1", tags=["tenants"], **documented(None, 200))
    async def tenants(request: Request) -> Response:
        """The names of all tenants; with the admin token."""
        service.require_admin(request.headers.get("authorization"))
        return _reply({"tenants": service.tenants.names(), "problems": service.tenants.problems})

    @app.put("/v1/{tenant}", tags=["tenants"], **documented(TenantRequest, 201, more=200))
    async def create(tenant: str, request: Request) -> Response:
        """Make a tenant; its token is in the reply, and only there. With the admin token."""
        service.require_admin(request.headers.get("authorization"))
        body = await read_body(request, largest=1 << 20, seconds=service.options.body_seconds)
        given = parse(TenantRequest, body or b"{}")
        content = given.model_dump(exclude={"columns", "kinds"})
        content["schema"] = checked(lambda: _schema_of(given))
        try:
            made, token = await service.create(tenant, content)
        except Failure:
            raise
        except Exception as error:
            raise explained(error) from None
        return _reply({**made.shown(), **({} if token is None else {"token": token})}, 200 if token is None else 201)

    @app.get("/v1/{tenant}", tags=["tenants"], **documented(None, 200))
    async def state(tenant: str, request: Request) -> Response:
        """Settings and quotas of a tenant, and where its learner stands."""
        owner = service.authorize(tenant, request.headers.get("authorization"))
        service.limits.check(owner.name, owner.quotas)
        return _reply({**owner.shown(), **await service.call(owner, "state")})

    @app.delete("/v1/{tenant}", tags=["tenants"], **documented(None, 204))
    async def delete(tenant: str, request: Request) -> Response:
        """Remove a tenant and everything of it. With the admin token."""
        service.require_admin(request.headers.get("authorization"))
        await service.delete(service.authorize(tenant, request.headers.get("authorization")))
        return Response(status_code=204)

    @app.post("/v1/{tenant}/token", tags=["tenants"], **documented(None, 200))
    async def rotate(tenant: str, request: Request) -> Response:
        """Another token for a tenant; the one before is worth nothing from now on. With the admin token."""
        service.require_admin(request.headers.get("authorization"))
        owner = service.authorize(tenant, request.headers.get("authorization"))
        token = checked(lambda: service.tenants.rotate(owner.name))
        await service.share(service.tenants.get(owner.name) or owner)
        return _reply({"name": owner.name, "token": token})


def _schema_of(given: TenantRequest) -> dict[str, Any] | None:
    """How rows are read, by the row that was given for it."""
    if given.columns is None:
        return None
    from prequential.streams.formats.schema import Schema

    return Schema.from_rows([given.columns], kinds=given.kinds, keep_ids=True).to_dict()


# Health.


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/health", tags=["health"], **documented(None, 200))
    async def health() -> Response:
        """Whether the service can work: workers and disk."""
        content = await service.health()
        return _reply(content, 200 if content["storage"] == "ok" == content.get("log", "ok") else 503)

    @app.get("/ready", tags=["health"], **documented(None, 200))
    async def ready() -> Response:
        """Whether requests are answered now."""
        good = service.pool.ready and not service.stopping
        return _reply({"ready": good}, 200 if good else 503)
