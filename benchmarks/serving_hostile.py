"""Hostile clients: slow, huge, deep, broken and forged requests. Nothing may change, leak, or end in an internal error."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from serving_process import ADMIN, SMALL, Served

CONNECTIONS = 8  # at once
SECRET = "a label that is only in the other tenant"
PATHS = (
    "/v1/../other", "/v1/%2e%2e/other", "/v1/..%2fother/metrics", "/v1/other%00", "/v1/OTHER", "/v1/other/../victim",
    "/v1//predict", "/v1/victim/predict/../../other", "/etc/passwd", "/v1/" + "a" * 5000, "/v1/ð/predict", "/%ff",
    "/v1/victim/metrics?token=x", "/v1/other/recent", "/v1/other/events", "/v1/other", "/metrics", "/v1",
)  # fmt: skip
TOKENS = ("", "x", "Bearer", "Bearer ", "Basic abc", "Bearer " + "a" * 10000, "Bearer \x00", "bearer pq_wrong")
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 1e308, -1e308, 10**400, "", "a", "a" * 100_000, "\u0000", "\ud7ff", [], {}, [[]], [[1, 2]],
    {"a": 1}, {"a": {"b": [1]}}, [None], ["x"], [1e400], [1] * 5000, {"x": "y" * 1000},
)  # fmt: skip


async def raw(port: int, data: bytes, seconds: float = 20.0) -> bytes:
    """What the service answers to some bytes."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        reply = await asyncio.wait_for(reader.read(1 << 20), seconds)
        writer.close()
        return reply
    except (OSError, TimeoutError):
        return b""


def request(path: str, body: bytes, token: str, method: str = "POST", more: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n{more}"
    return head.encode("utf-8", "replace") + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


class Hostile:
    """Sends what a hostile client would, and notes what is wrong with the replies."""

    def __init__(self, served: Served, token: str, seed: int) -> None:
        self.served, self.token, self.draws = served, token, random.Random(seed)
        self.statuses: dict[int, int] = {}
        self.faults: list[str] = []

    async def send(self, data: bytes, what: str) -> None:
        reply = await raw(self.served.port, data)
        status = int(reply[9:12]) if reply[9:12].isdigit() else 0
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status >= 500 and status not in (503, 507):
            self.faults.append(f"{what}: {status} {reply[-200:]!r}")
        if SECRET.encode() in reply:
            self.faults.append(f"{what}: the reply has something of the other tenant")

    async def run(self, count: int) -> None:
        for path in PATHS:
            for method in ("GET", "POST", "PUT", "DELETE"):
                await self.send(request(path, b"{}", self.token, method), f"{method} {path[:60]}")
        for token in TOKENS:
            await self.send(
                f"GET /v1/other HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: {token}\r\n\r\n".encode(),
                f"token {token[:20]!r}",
            )
        place = "/v1/victim/predict"
        deep = b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
        for body in (deep, b'{"x":[1,2]}' * 2, b"\xff\xfe", b"", b"null", b"[]", b'{"x":[1' + b"0" * 100_000 + b"]}"):
            await self.send(request(place, body, self.token), f"body {body[:20]!r}")
        await self.send(request(place, b"", self.token, more="Idempotency-Key: " + "k" * 5000 + "\r\n"), "a long key")
        await self.send(
            f"POST {place} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {self.token}\r\n"
            "Content-Length: 99999999999\r\n\r\n".encode(),
            "a huge length",
        )
        left = iter(range(count))

        async def one() -> None:
            for _ in left:
                await self.send(request(self._path(), self._body(), self.token, more=self._key()), "a random request")

        await asyncio.gather(*(one() for _ in range(CONNECTIONS)))

    def _path(self) -> str:
        return f"/v1/victim/{self.draws.choice(('predict', 'labels', 'observe'))}"

    def _key(self) -> str:
        return f"Idempotency-Key: {self.draws.randrange(5)}\r\n" if self.draws.random() < 0.1 else ""

    def _body(self) -> bytes:
        """A request that has something wrong in it."""
        pick = self.draws.choice
        row: dict[str, Any] = {name: pick(VALUES) for name in ("id", "x", "y") if self.draws.random() < 0.6}
        row["wrong"] = 1  # what could be right by chance is refused for this
        content: Any = pick((row, {"rows": [row, row]}, {"rows": row}, [row], {"rows": [row], "x": pick(VALUES)}))
        text = json.dumps(content)
        if self.draws.random() < 0.2:
            at = self.draws.randrange(len(text))
            text = text[:at] + pick(("", "{", "]", '"', "\\", "NaN", "1e999", "\x00")) + text[at + 1 :]
        return text.encode("utf-8", "surrogatepass")


async def slow_clients(served: Served, count: int) -> dict[str, float]:
    """Connections that send their requests byte by byte: others must be served, and the slow ones closed."""
    connections = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(count)]
    for _, writer in connections:
        writer.write(b"POST /v1/victim/predict HTTP/1.1\r\nHost: a\r\n")
    begun = time.monotonic()
    status = (await asyncio.to_thread(served.get, "/ready"))[0]
    answered = time.monotonic() - begun
    closed = 0
    for reader, writer in connections:
        try:
            await asyncio.wait_for(reader.read(), max(0.1, 40 - (time.monotonic() - begun)))
            closed += 1
        except (TimeoutError, OSError):
            pass
        writer.close()
    return {"connections": count, "ready": status, "ready_seconds": round(answered, 3), "closed": closed}


def hostile(count: int, *, seed: int = 0, generated: int = 5) -> dict[str, Any]:
    """Attacks a service; how it answered, and what is wrong."""
    folder = Path(tempfile.mkdtemp())
    (folder / "home").mkdir()
    served = Served(folder / "home")
    served.start()
    token, other = served.tenant("victim", settings=SMALL), served.tenant("other", settings=SMALL)
    for name, one, label in (("victim", token, "a"), ("other", other, SECRET)):
        served.call("POST", f"/v1/{name}/observe", {"rows": [{"x": [i, 1.0], "y": label} for i in range(5)]}, one)
    before = [served.get(f"/v1/{name}")[1] for name in ("victim", "other")]
    attack = Hostile(served, token, seed)
    begun = time.monotonic()
    asyncio.run(attack.run(count))
    slow = asyncio.run(slow_clients(served, 50))
    faults = attack.faults
    after = [served.get(f"/v1/{name}")[1] for name in ("victim", "other")]
    names = ("position", "labels", "pending", "labels_waiting")
    if [[state[name] for name in names] for state in before] != [[state[name] for name in names] for state in after]:
        faults.append(f"something has changed: {before} {after}")
    if slow["ready"] != 200 or slow["closed"] < slow["connections"]:
        faults.append(f"slow clients: {slow}")
    found = _generated(served, generated) if generated else None
    if found is not None and found["server errors"]:
        faults.append(f"generated requests: {found}")
    seconds = round(time.monotonic() - begun, 1)
    served.stop()
    served.close()
    return {"statuses": attack.statuses, "slow": slow, "generated": found, "seconds": seconds, "faults": faults}


def _generated(served: Served, examples: int) -> dict[str, Any]:
    """Requests that schemathesis makes from the OpenAPI page, with the token of the admin."""
    before = _replies(served)
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{served.port}/openapi.json",
        "-H", f"Authorization: Bearer {ADMIN}", "--max-examples", str(examples), "--checks", "not_a_server_error",
        "--exclude-path-regex", "events$", "--phases", "examples,coverage,fuzzing",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:  # it leaves files where it is run
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600, cwd=folder)
    after = _replies(served)
    counts = {status: count - before.get(status, 0) for status, count in after.items()}
    errors = sum(count for status, count in counts.items() if status >= 500 and status not in (503, 507))
    return {"replies": counts, "server errors": errors, "said": done.stdout[-300:], "code": done.returncode}


def _replies(served: Served) -> dict[int, int]:
    """How often the service has answered with each status, by its own count."""
    text = str(served.get("/metrics")[1])
    lines = [line for line in text.splitlines() if line.startswith("prequential_replies_total{")]
    return {int(line.split('"')[1]): int(float(line.split()[-1])) for line in lines}
