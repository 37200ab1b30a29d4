"""A server whose clients cannot hold it up: few connections at once, each for a short time and a small request."""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_CONNECTIONS = 32  # at once; a thread each
REQUEST_SECONDS = 5.0  # in which a request must be there
ANSWER_SECONDS = 30.0  # in which an answer must be taken
REQUEST_BYTES = 16 * 2**10  # of a request, its headers included
MAKE_ROOM_SECONDS = 0.2  # to wait for the thread of a client that was dropped
BUSY = b"HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class BoundedServer(ThreadingHTTPServer):
    """Drops clients that are slow to ask or to take the answer, and the slowest of them where there are too many.

    Clients that wait for their answer are never dropped. A new client takes the place of the one that has been slow for
    longest, so that any number of slow ones does not keep others out.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BoundedHandler]) -> None:
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float | None] = {}  # until when a client has time; None: it waits for us
        super().__init__(address, handler)

    def allow(self, connection: socket.socket, seconds: float | None) -> None:
        """Gives a client so many seconds from now on, or any time."""
        with self._lock:
            if connection in self._open:
                self._open[connection] = None if seconds is None else time.monotonic() + seconds

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._drop_slowest()
            if not self._free.acquire(timeout=MAKE_ROOM_SECONDS):
                self._refuse(request)
                return
        with self._lock:
            self._open[request] = time.monotonic() + REQUEST_SECONDS
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def service_actions(self) -> None:
        """Called twice a second: drops those whose time is over."""
        now = time.monotonic()
        with self._lock:
            late = [connection for connection, until in self._open.items() if until is not None and until < now]
        for connection in late:
            _shut(connection)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            left = list(self._open)
        for connection in left:
            _shut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing about clients that disconnected or sent too much; the terminal is for the address."""
        if not isinstance(sys.exception(), OSError | ValueError | http.client.HTTPException):
            super().handle_error(request, client_address)

    def _drop_slowest(self) -> None:
        with self._lock:
            slow = [(until, connection) for connection, until in self._open.items() if until is not None]
            slowest = min(slow, key=lambda entry: entry[0])[1] if slow else None
            if slowest is not None:
                self._open[slowest] = None  # the next client takes the place of another
        if slowest is not None:
            _shut(slowest)

    def _refuse(self, request: socket.socket) -> None:
        request.setblocking(False)
        with contextlib.suppress(OSError):
            request.send(BUSY)
        self.shutdown_request(request)

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            known = self._open.pop(request, self) is not self
        if known:
            self._free.release()


class BoundedHandler(BaseHTTPRequestHandler):
    """One small request a connection, and one answer."""

    server: BoundedServer
    timeout = ANSWER_SECONDS  # of a single read or write

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Bounded(self.rfile)

    def parse_request(self) -> bool:
        good = super().parse_request()
        self.close_connection = True
        self.server.allow(self.connection, None if good else REQUEST_SECONDS)
        return good

    def finish_answer(self, body: bytes) -> None:
        """Ends the headers and sends the body, for which the client has some time."""
        self.server.allow(self.connection, ANSWER_SECONDS)
        self.end_headers()
        self.wfile.write(body)


class _Bounded:
    """The lines of a request, up to so many bytes in all."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file, self._left = file, REQUEST_BYTES

    def readline(self, size: int = -1) -> bytes:
        line = self._file.readline(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("request")
        return line

    def close(self) -> None:
        self._file.close()


def _shut(connection: socket.socket) -> None:
    """Ends a connection; whoever reads from it or writes to it is woken."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
