"""Serves the report of runs on this machine while they are in progress."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prequential.errors import BadInput, BadSetting, PrequentialError
from prequential.reports.connections import BoundedHandler, BoundedServer
from prequential.reports.data import page_data
from prequential.reports.page import make_page, to_json
from prequential.reports.run_reader import RunReader, find_runs, is_index

HOST = "127.0.0.1"  # this machine only
DEFAULT_PORT = 8765


class Watch:
    """The newest data of some runs; they are read again only when something has changed.

    Parameters
    ----------
    paths
        Directories of runs and of comparisons, whose unfinished runs are taken too.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self._readers: dict[Path, RunReader] = {}
        self._lock = threading.Lock()
        self._data: dict[str, Any] = {}
        self._look_again()

    def data(self) -> dict[str, Any]:
        """What the page shows now; `version` changes with it, and `problem` says what could not be read."""
        with self._lock:
            self._look_again()
            return self._data

    def _look_again(self) -> None:
        problem, changed = "", not self._data
        try:
            found = find_runs(self.paths, unfinished=True)
        except PrequentialError as error:
            if not self._data:
                raise
            found, problem = [], str(error)  # it was there before: what was read of it stays
        for directory in found:
            try:
                if directory not in self._readers:
                    self._readers[directory] = RunReader(directory)
                    changed = True
                changed = self._readers[directory].refresh() or changed
            except PrequentialError as error:
                problem = str(error)
        if not changed and problem == self._data.get("problem"):
            return
        data: dict[str, Any] = {
            **page_data(list(self._readers.values()), index=is_index(self.paths)),
            "problem": problem,
        }
        self._data = {**data, "version": hashlib.sha256(to_json(data).encode()).hexdigest()[:16]}


class Server(BoundedServer):
    """Answers with the page and with newer data, and with nothing else.

    Parameters
    ----------
    watch
        Where the data come from.
    port
        The port to listen on; 0 takes a free one.
    """

    def __init__(self, watch: Watch, port: int) -> None:
        self.watch = watch
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BoundedHandler):
    server: Server
    server_version, sys_version = "prequential", ""

    def do_GET(self) -> None:  # noqa: N802
        url = urlsplit(self.path)
        # a page from elsewhere that calls itself by another name for this machine learns nothing
        if self.headers.get("Host", "") not in (
            f"{HOST}:{self.server.server_port}",
            f"localhost:{self.server.server_port}",
        ):
            self._answer(403, "text/plain", b"this page is for this machine only\n")
        elif url.path == "/":
            self._answer(200, "text/html", make_page(self.server.watch.data(), live=True).encode(errors="replace"))
        elif url.path == "/data.json":
            data = self.server.watch.data()
            if parse_qs(url.query).get("version") == [data["version"]]:
                self._answer(204, "application/json", b"")
            else:
                self._answer(200, "application/json", to_json(data).encode())
        else:
            self._answer(404, "text/plain", b"there is only / and /data.json\n")

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Connection", "close")
        if code != 204:
            self.send_header("Content-Length", str(len(body)))
        self.finish_answer(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the terminal is for the address."""


def make_server(paths: Sequence[Path], port: int | None = None) -> Server:
    """A server of the report of these runs, not yet serving.

    Parameters
    ----------
    paths
        Directories of runs and of comparisons.
    port
        The port to listen on; by default 8765, or a free one when that is taken.
    """
    if not paths:
        raise BadInput("there is nothing to report: got 0 runs, expected at least 1")
    if port is not None and not 0 <= port <= 65535:
        raise BadSetting(f"port ({port}) must be at least 0 and at most 65535")
    watch = Watch(paths)
    try:
        return Server(watch, DEFAULT_PORT if port is None else port)
    except OSError as error:
        if port is None:
            return Server(watch, 0)
        raise BadSetting(f"port {port} cannot be used: {error.strerror}; leave --port out to take a free one") from None


def serve_report(paths: Sequence[Path], port: int | None = None, say: Callable[[str], None] = print) -> None:
    """Serves the report of these runs until Ctrl-C.

    Parameters
    ----------
    paths
        Directories of runs and of comparisons.
    port
        The port to listen on; by default 8765, or a free one when that is taken.
    say
        Told the address.
    """
    with make_server(paths, port) as server:
        say(f"the report is at {server.address} and follows the run; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended")
