"""The command `serve`. Heavy imports wait until it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from prequential.errors import BadSetting, MissingExtra

LIMITS = Group("Limits", sort_key=2)
TENANT_TOKEN = "PREQUENTIAL_TENANT_TOKEN"
NEEDED = ("fastapi", "fastapi_offline", "starlette", "uvicorn", "pydantic", "prometheus_client")  # what [serve] brings

serve_app = App(name="serve", help="Serve learners over HTTP: predict now, learn when the label comes.")


@serve_app.default
def serve(
    *,
    home: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    tenant: str | None = None,
    workers: int = 1,
    durability: Literal["sync", "interval"] = "sync",
    log: str | None = None,
    replicas: Literal[1, 3, 5] | None = None,
    log_format: Literal["text", "json"] = "text",
    memory: Annotated[str, Parameter(group=LIMITS)] = "2GB",
    max_lag: Annotated[int, Parameter(group=LIMITS)] = 10_000,
    max_body: Annotated[str, Parameter(group=LIMITS)] = "16MB",
    max_connections: Annotated[int, Parameter(group=LIMITS)] = 2048,
    trust: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Serve learners over HTTP: predict now, learn when the label comes; many tenants, nothing lost.

    The OpenAPI page is at /docs. On the first start the admin token is printed, once; with it tenants are made
    (PUT /v1/NAME). PREQUENTIAL_ADMIN_TOKEN sets it instead. Ctrl-C or SIGTERM finishes what is under way and saves.

    Parameters
    ----------
    home
        The directory of the service; made if it does not exist.
    host
        The address to listen on; by default only this machine can reach it.
    port
        The port.
    tenant
        A tenant that is made if it does not exist; its token is printed, or is that in PREQUENTIAL_TENANT_TOKEN.
    workers
        Processes that hold the learners; each uses one core, and one for gradient steps.
    durability
        sync: a write is acknowledged when it survives a power cut; interval: at once, with a sync every second. A killed
        process loses nothing either way.
    log
        Servers of NATS JetStream that keep the logs of the tenants, such as nats://host1:4222,host2:4222,host3:4222: any
        number of processes, each with a home of its own, then share the tenants.
    replicas
        How many of these servers keep a copy of each log; by default 3 where three are named, else 1.
    log_format
        Lines of text or of JSON, on stderr.
    memory
        What the workers may take together before tenants that are not in use are put to disk.
    max_lag
        Rows of a tenant that may wait to be learned; above that its writes are answered by 503.
    max_body
        The largest request.
    max_connections
        Above which further connections are answered by 503.
    trust
        Let settings of tenants name code of your own to import.
    """
    try:
        from prequential.serve.server import run_server
        from prequential.serve.service import Options, Service
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in NEEDED:
            raise MissingExtra("prequential serve", "serve") from None
        raise
    if workers < 1 or not 0 <= port < 65536:
        raise BadSetting(f"workers ({workers}) must be at least 1, and port ({port}) from 0 to 65535")
    options = Options(
        home=home, workers=workers, durability=durability, memory=read_bytes(memory, "memory"), max_lag=max_lag,
        max_body=read_bytes(max_body, "max-body"), trust=trust, log=log,
        replicas=replicas or (3 if log is not None and log.count(",") >= 2 else 1),
    )  # fmt: skip
    service = Service(options)
    if service.new_admin_token is not None:
        print(f"admin token: {service.new_admin_token}", file=sys.stderr, flush=True)
    if tenant is not None and service.tenants.get(tenant) is None:
        given = os.environ.get(TENANT_TOKEN)
        token = service.create_first(tenant, given)
        if given is None and token is not None:
            print(f"token of {tenant}: {token}", file=sys.stderr, flush=True)
    print(f"http://{host}:{port}/ (API: /docs)", file=sys.stderr, flush=True)
    run_server(service, host=host, port=port, log_format=log_format, concurrency=max_connections)


@serve_app.command
def token(tenant: str | None = None, /, *, home: Path, admin: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Give a tenant another token, or with --admin the service another admin token; the one before is void.

    A service that is running takes the token of a tenant within a second, and an admin token at its next start.

    Parameters
    ----------
    tenant
        Its name.
    home
        The directory of the service.
    admin
        Rotate the admin token instead.
    """
    from prequential.serve.admin import admin_hash
    from prequential.serve.tenants import Tenants

    if admin == (tenant is not None):
        raise BadSetting("expected a tenant, or --admin")
    if not (home / "tenants").is_dir():
        raise BadSetting(f"{home} is not the directory of a service")
    if (home / "shared.json").exists():
        raise BadSetting(f"the tokens of {home} are in NATS: POST /v1/NAME/token gives a tenant another one")
    if tenant is not None:
        print(Tenants(home).rotate(tenant))
    else:
        print(admin_hash(home, rotate=True)[1])


def read_bytes(text: str, name: str) -> int:
    """A number of bytes, with a unit or without.

    >>> read_bytes("2GB", "memory"), read_bytes("500", "memory")
    (2000000000, 500)
    """
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "": 1}
    digits = text.strip().upper().rstrip("KMGTB")
    unit = text.strip().upper()[len(digits) :]
    if not digits.strip().isdecimal() or unit not in units or not int(digits):
        raise BadSetting(f"{name} ({text[:40]!r}) must be a size such as 500MB or 2GB")
    return int(digits) * units[unit]
