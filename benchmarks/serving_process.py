"""A service to measure: `prequential serve` in a process group of its own, and a small HTTP client for asyncio."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ADMIN = "admin-token-of-the-benchmark"
SMALL = {"width": 16, "depth": 1, "window": 32, "chunk_size": 8, "num_streams": 2, "num_neighbors": 0}


class Served:
    """`prequential serve`, which can be killed and started again.

    Parameters
    ----------
    home
        The directory of the service.
    flags
        Of the command.
    variables
        Of its environment, beside those of this process.
    """

    def __init__(self, home: Path, *flags: str, variables: dict[str, str] | None = None) -> None:
        self.home, self.flags = home, flags
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = int(found.getsockname()[1])
        self.pid = 0
        environment = {**os.environ, "PREQUENTIAL_ADMIN_TOKEN": ADMIN, **(variables or {})}
        launcher = [sys.executable, str(Path(__file__).parent / "serving_launcher.py")]
        self._launcher = subprocess.Popen(
            launcher, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._said() == "ready"

    def _said(self) -> str:
        assert self._launcher.stdout is not None
        return self._launcher.stdout.readline().strip()

    def start(self, *, wait: bool = True) -> None:
        assert self._launcher.stdin is not None
        arguments = ["serve", "--home", str(self.home), "--port", str(self.port), *self.flags]
        self._launcher.stdin.write(json.dumps([arguments, str(self.home.parent / "service.log")]) + "\n")
        self._launcher.stdin.flush()
        self.pid = int(self._said())
        while wait and not self.ready():
            if not Path(f"/proc/{self.pid}").exists():
                raise RuntimeError(f"the service has ended: see {self.home.parent / 'service.log'}")
            time.sleep(0.01)

    def ready(self) -> bool:
        return self.get("/ready")[0] == 200

    def get(self, path: str) -> tuple[int, Any]:
        """The status and content of a reply; 0 where there is none."""
        return self.call("GET", path)

    def call(self, method: str, path: str, content: Any = None, token: str = ADMIN) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if content is None else json.dumps(content).encode(),
            {"Authorization": f"Bearer {token}"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                body = reply.read()
                return reply.status, json.loads(body) if body[:1] in (b"{", b"[") else body.decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, None

    def tenant(self, name: str, **given: Any) -> str:
        """Makes a tenant; its token."""
        status, content = self.call("PUT", f"/v1/{name}", given)
        assert status == 201, content
        return str(content["token"])

    def workers(self) -> list[int]:
        """The numbers of the worker processes."""
        return [pid for nursery in _children(self.pid) for pid in _children(nursery)]

    def cpu_seconds(self) -> float:
        """CPU time of the service and its workers so far."""
        total = 0
        for pid in (self.pid, *self.workers()):
            parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(parts[11]) + int(parts[12])
        return total / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Bytes of memory of the service and its workers."""
        page = os.sysconf("SC_PAGE_SIZE")
        pids = (self.pid, *self.workers())
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for pid in pids)

    def kill(self) -> None:
        """kill -9 of everything."""
        os.killpg(self.pid, signal.SIGKILL)
        self._wait()

    def stop(self) -> bool:
        """SIGTERM; whether everything was saved and it has ended."""
        os.kill(self.pid, signal.SIGTERM)
        self._wait()
        return "Application shutdown complete" in (self.home.parent / "service.log").read_text()[-2000:]

    def close(self) -> None:
        """Ends the launcher."""
        assert self._launcher.stdin is not None
        self._launcher.stdin.close()
        self._launcher.wait()

    def _wait(self) -> None:
        end = time.monotonic() + 120
        while Path(f"/proc/{self.pid}").exists() and time.monotonic() < end:
            time.sleep(0.005)


def _children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


class Connection:
    """One connection that is kept open; as little as a load generator needs."""

    def __init__(self, port: int, token: str) -> None:
        self.port, self.token = port, token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, content: Any, key: str | None = None) -> tuple[int, Any]:
        """The status and content of a reply; 0 where the connection broke."""
        body = json.dumps(content).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {self.token}\r\nContent-Length: {len(body)}\r\n"
        )
        if key is not None:
            head += f"Idempotency-Key: {key}\r\n"
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self.port)
            reader, writer = self._streams
            writer.write(head.encode() + b"\r\n" + body)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            length = next(int(line[15:]) for line in lines if line.lower().startswith("content-length:"))
            reply = await reader.readexactly(length)
            if any(line.lower() == "connection: close" for line in lines):
                self.close()
            return int(lines[0].split()[1]), json.loads(reply)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return 0, None

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
