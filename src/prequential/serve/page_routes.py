"""The page for people at /, and the JSON that it asks for."""

from __future__ import annotations

import html
import re
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from prequential import __version__
from prequential.reports.page import asset, digest
from prequential.serve.failures import Failure
from prequential.serve.request_body import as_json
from prequential.serve.service import Service
from prequential.serve.tokens import bearer

# What a browser may do with the page: run this script and no other, and ask this service and nobody else.
POLICY = (
    "default-src 'none'; img-src data:; connect-src 'self'; style-src '{style}'; script-src '{script}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
OVERVIEW = ("position", "scored", "accuracy", "nats", "pending", "alarms", "learn_lag")  # of each tenant in the list


def make_page() -> tuple[bytes, dict[str, str]]:
    """The page and its headers; it holds no data and no token."""
    style = asset("page.css") + _own("page.css")
    script = "\n".join([asset("chart.js"), asset("common.js"), _own("figures.js"), _own("page.js")])
    parts = {"style": style, "script": script, "version": html.escape(__version__)}
    # all in one go: what was put in is never looked at again
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match.group(1)], _own("page.html"))
    headers = {
        "Content-Security-Policy": POLICY.format(style=digest(style), script=digest(script)),
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return text.encode(), headers


def add_page(app: FastAPI, service: Service) -> None:
    """Adds / and the two routes below /page, which show a tenant nothing of another."""
    page, headers = make_page()

    def reply(content: Any) -> Response:
        return Response(as_json(content), 200, {"Cache-Control": "no-store"}, "application/json")

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return Response(page, 200, headers, "text/html; charset=utf-8")

    @app.get("/page/tenants", include_in_schema=False)
    async def tenants(request: Request) -> Response:
        """The tenants that this token may see: all, with figures of those in memory, or its own."""
        authorization = request.headers.get("authorization")
        if service.is_admin(authorization):
            workers = await service.pool.figures()
            found = {name: figures for worker in workers for name, figures in worker["tenants"].items()}
            rows = [_overview(name, found.get(name)) for name in service.tenants.names()]
            return reply({"admin": True, "tenants": rows, "health": await service.health()})
        token = bearer(authorization)
        own = service.tenants.owner(token) if token else None
        if own is None:
            raise Failure(401, "the token is missing or wrong")
        return reply({"admin": False, "tenants": [_overview(own, None)], "health": None})

    @app.get("/page/tenants/{tenant}", include_in_schema=False)
    async def tenant(tenant: str, request: Request) -> Response:
        """Everything that the page shows of a tenant."""
        authorization = request.headers.get("authorization")
        owner = service.authorize(tenant, authorization)
        if not service.is_admin(authorization):
            service.limits.check(owner.name, owner.quotas)
        content = await service.call(owner, "page")
        own = service.tenant_latency.get(owner.name)
        latency = None if own is None else {"p50": own.quantile(0.5), "p99": own.quantile(0.99), **own.curve()}
        return reply({"tenant": owner.shown(), **content, **service.lag(owner.name), "latency": latency})


def _overview(name: str, figures: dict[str, Any] | None) -> dict[str, Any]:
    return {"name": name, "open": figures is not None, **{key: (figures or {}).get(key) for key in OVERVIEW}}


def _own(name: str) -> str:
    return files("prequential.serve").joinpath("page", name).read_text(encoding="utf-8")
