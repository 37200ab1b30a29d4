"""A disk that is full, and one that refuses to write, until it does again.

A small file system in memory is filled, and a log is made immutable; both take root.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from serving_process import SMALL, Connection, Served

WIDE = [1.0] * 99
ROWS = 20  # of a request: more than fits into what the file system has given to a file already


def full_disk(megabytes: int = 48) -> dict[str, Any]:
    """Fills the disk of a service, makes its log immutable, and undoes both; what it answered, and what is wrong."""
    if os.geteuid():
        return {"faults": ["mounting a file system takes root"]}
    folder = Path(tempfile.mkdtemp())
    place = folder / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)], check=True)
    try:
        return _study(place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def _study(place: Path) -> dict[str, Any]:
    home = place / "home"
    home.mkdir()
    served = Served(home)
    served.start()
    token = served.tenant("disk", settings=SMALL)
    faults: list[str] = []
    seen: dict[str, Any] = {}
    count = 0

    def learn() -> tuple[int, Any]:
        nonlocal count
        status, reply = asyncio.run(
            _post(served, token, {"rows": [{"x": [count, *WIDE], "y": "ab"[count % 2]}] * ROWS}, f"key-{count}")
        )
        count += ROWS * (status == 202)
        return status, reply

    def expect(what: str, statuses: tuple[int, ...], health: int) -> None:
        time.sleep(2.5)  # what is found out about the disk is kept for two seconds
        status, reply = learn()
        found, content = served.get("/health")
        seen[what] = {"reply": status, "message": str(reply)[:150], "health": found, "says": str(content)[:80]}
        if status not in statuses or found != health:
            faults.append(f"{what}: answered {status} and health {found}, expected {statuses} and {health}")

    for _ in range(20):
        learn()
    expect("room", (202,), 200)
    filler = place / "filler"
    handle = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(handle, b"\0" * 4096)
    except OSError:
        os.close(handle)
    expect("full", (503, 507), 503)
    filler.unlink()
    expect("room again", (202,), 200)
    log = str(home / "tenants" / "disk" / "learner" / "journal" / "log.bin")
    if not subprocess.run(["chattr", "+i", log], check=False, capture_output=True).returncode:
        expect("immutable", (503, 507), 503)
        subprocess.run(["chattr", "-i", log], check=True)
        expect("writable again", (202,), 200)
    position = served.get("/v1/disk")[1]["position"]
    if position != count:
        faults.append(f"{count} rows were acknowledged and {position} learned")
    served.kill()
    served.start()
    after = served.get("/v1/disk")[1]["position"]
    if after != count:
        faults.append(f"{count} rows were acknowledged and {after} are there after kill -9")
    served.kill()
    served.close()
    return {"rows": count, **seen, "faults": faults}


async def _post(served: Served, token: str, content: Any, key: str) -> tuple[int, Any]:
    connection = Connection(served.port, token)
    try:
        return await connection.post("/v1/disk/observe", content, key)
    finally:
        connection.close()
