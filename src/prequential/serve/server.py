"""Runs the web process: uvicorn, with what protects it from slow clients, and logs as lines of text or JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from typing import Any

import uvicorn

from prequential.serve.routes import make_app
from prequential.serve.service import Service

HEADER_SECONDS = 10.0  # in which the head of a request must have come, and a connection that waits is closed
LARGEST_HEAD = 32 << 10


class JsonLines(logging.Formatter):
    """A log record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            content["error"] = self.formatException(record.exc_info)
        return json.dumps(content)


def run_server(service: Service, *, host: str, port: int, log_format: str = "text", concurrency: int = 2048) -> None:
    """Serves until SIGTERM or Ctrl-C; then finishes what is under way, saves and returns."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if log_format == "json" else text)
    for name in ("prequential.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    config = uvicorn.Config(
        make_app(service), host=host, port=port, log_config=None, access_log=False, server_header=False,
        limit_concurrency=concurrency, timeout_keep_alive=30, timeout_graceful_shutdown=30,
        h11_max_incomplete_event_size=LARGEST_HEAD,
    )  # fmt: skip
    config.load()
    config.http_protocol_class = _impatient(config.http_protocol_class)
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them once more when it is done
        signal.signal(number, lambda *_: None)
    Server(config, service).run()


class Server(uvicorn.Server):
    """uvicorn, which ends streams of events when it is told to stop: they would never end by themselves."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: Any = None) -> None:
        self._service.subscriptions.close()
        await super().shutdown(sockets)


def _impatient(kind: Any) -> Any:
    """A protocol of uvicorn that closes connections on which no request begins in time (slow-loris)."""

    class Impatient(kind):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._timer = asyncio.get_running_loop().call_later(HEADER_SECONDS, self._give_up)

        def _give_up(self) -> None:
            if self.cycle is None:  # no head of a request is there
                self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(exc)

    return Impatient
