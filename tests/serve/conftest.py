"""A service that runs for the tests of a module."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")

ADMIN, TOKEN = "admin-token-of-the-tests", "tenant-token-of-the-tests"
SMALL = {"width": 16, "depth": 1, "window": 32, "chunk_size": 8, "num_streams": 2, "num_neighbors": 0}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Running:
    """`prequential serve` in a process group of its own."""

    def __init__(self, home: Path, *flags: str) -> None:
        self.home, self.flags, self.port = home, flags, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "PREQUENTIAL_ADMIN_TOKEN": ADMIN, "PREQUENTIAL_TENANT_TOKEN": TOKEN}
        command = [sys.executable, "-m", "prequential", "serve", "--home", str(self.home), "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, *self.flags], env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True
        )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                if httpx.get(f"{self.url}/ready", timeout=1).status_code == 200:
                    return
            except httpx.TransportError:
                if self.process.poll() is not None:
                    break
            time.sleep(0.1)
        raise AssertionError(f"the service did not start: {self.process.stderr.read() if self.process.stderr else ''}")

    def kill(self) -> None:
        """kill -9 of the service and its workers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(60)

    def call(self, method: str, path: str, content: Any = None, token: str | None = ADMIN, **more: Any) -> Any:
        headers = {**({} if token is None else {"Authorization": f"Bearer {token}"}), **more.pop("headers", {})}
        return httpx.request(method, self.url + path, json=content, headers=headers, timeout=30, **more)

    def tenant(self, name: str, **given: Any) -> str:
        """Makes a tenant with a small learner; its token."""
        given["settings"] = {**SMALL, **given.get("settings", {})}
        reply = self.call("PUT", f"/v1/{name}", given)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["token"])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("service") / "home")
    yield running
    if running.process.poll() is None:
        running.kill()
