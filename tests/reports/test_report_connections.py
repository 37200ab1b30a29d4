"""Clients of the live report that are slow, silent or ask for too much: they hold nobody up and are dropped."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest

from prequential.reports import connections
from prequential.reports.live import make_server
from reports.report_runs import make_run

CLIENTS = 200


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 1.0)
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 1.0)
    server = make_server([make_run(tmp_path / "run", 10)], port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def connect(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=5)


def ask(server, more: bytes = b"") -> bytes:
    """The whole answer to a request for the page."""
    with connect(server) as client:
        client.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n".encode() + more + b"\r\n")
        answer = b""
        while piece := client.recv(2**16):
            answer += piece
    return answer


def threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def is_dropped(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        while client.recv(2**16):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_slow_clients_are_dropped_and_keep_nobody_out(server):
    start = time.monotonic()
    clients, most = [], 0
    for i in range(CLIENTS):
        client = connect(server)
        client.sendall((b"", b"GE", b"GET / HTTP/1.1\r\nHos", b"GET / HTTP/1.1\r\nA: b\r\n")[i % 4])
        clients.append(client)
        most = max(most, threads())
    asked = time.monotonic()
    answer = ask(server)
    assert time.monotonic() - asked < 3  # at once, also where other tests take the processor
    assert answer.startswith(b"HTTP/1.0 200 ")
    assert b"Connection: close" in answer
    assert most <= connections.MAX_CONNECTIONS + 1
    while threads() and time.monotonic() - start < 10:
        for client in clients[::7]:  # those that send a byte now and then are dropped as well
            with suppress(OSError):
                client.send(b"x")
        time.sleep(0.05)
    assert not threads()
    assert all(is_dropped(client) for client in clients)
    for client in clients:
        client.close()


def test_clients_that_do_not_take_the_answer_are_dropped(server, monkeypatch):
    monkeypatch.setattr("prequential.reports.live.make_page", lambda *_, **__: "x" * 50_000_000)
    with connect(server) as client:
        client.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        client.recv(100)
        assert threads() == 1
        end = time.monotonic() + 8
        while threads() and time.monotonic() < end:
            time.sleep(0.05)
        assert not threads()


def test_requests_that_are_too_long(server, capsys):
    assert ask(server, b"A: b\r\n" * 50).startswith(b"HTTP/1.0 200 ")
    for more in (b"A: " + b"b" * 30_000 + b"\r\n", b"A: b\r\n" * 5_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket.socket, "sendall", _send_what_is_taken)
            with suppress(ConnectionError):  # it may hang up while we are still writing
                assert b" 200 " not in ask(server, more)[:20]
    with connect(server) as client:
        _send_what_is_taken(client, b"G" * 30_000)
        assert is_answered_with_nothing(client)
    assert ask(server).startswith(b"HTTP/1.0 200 ")
    assert capsys.readouterr().err == ""


def _send_what_is_taken(client: socket.socket, data: bytes) -> None:
    with suppress(ConnectionError):
        client.send(data)


def is_answered_with_nothing(client: socket.socket) -> bool:
    try:
        return b"200" not in client.recv(1000)
    except ConnectionError:
        return True


def test_one_request_for_each_connection(server):
    request = (
        f"GET /data.json HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\nConnection: keep-alive\r\n\r\n".encode()
    )
    with connect(server) as client:
        client.sendall(request + request)
        answer = b""
        while piece := client.recv(2**16):
            answer += piece
    assert answer.count(b"HTTP/1.0 200") == 1


def test_where_all_wait_for_their_answer_a_new_one_is_refused(server, monkeypatch):
    """Those whose answers are being made are not dropped for others."""
    monkeypatch.setattr(connections, "MAKE_ROOM_SECONDS", 0.05)
    go = threading.Event()
    monkeypatch.setattr("prequential.reports.live.make_page", lambda *_, **__: go.wait(10) and "page")
    waiting = []
    for _ in range(connections.MAX_CONNECTIONS):
        client = connect(server)
        client.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        waiting.append(client)
    end = time.monotonic() + 5
    while list(server._open.values()).count(None) < len(waiting):
        assert time.monotonic() < end
        time.sleep(0.01)
    with connect(server) as client:
        assert client.recv(100).startswith(b"HTTP/1.0 503 ")
    go.set()
    for client in waiting:
        assert client.recv(2**16).startswith(b"HTTP/1.0 200 ")
        client.close()


def test_it_stops_with_clients_that_are_still_there(tmp_path):
    server = make_server([make_run(tmp_path / "run", 10)], port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    clients = [connect(server) for _ in range(5)]
    end = time.monotonic() + 5
    while threads() < 5 and time.monotonic() < end:
        time.sleep(0.01)
    start = time.monotonic()
    server.shutdown()
    thread.join()
    server.server_close()
    while threads() and time.monotonic() - start < 3:
        time.sleep(0.01)
    assert not threads()
    assert time.monotonic() - start < 3
    for client in clients:
        client.close()
