"""A disk that is full, and one that refuses to write, until it does again; and a clock that is set while it runs.

A small file system in memory is filled, and a log is made immutable; both take root. The clock is that of libfaketime
(the Debian package of this name), for the service alone.
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


def clock_jumps() -> dict[str, Any]:
    """Sets the clock of a service forward and back by a day; what it says, and what is wrong."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        return {"faults": ["there is no libfaketime"]}
    folder = Path(tempfile.mkdtemp())
    (folder / "home").mkdir()
    stamp = folder / "clock"
    stamp.write_text("+0s\n")
    variables = {
        "LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(stamp), "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    served = Served(folder / "home", variables=variables)
    served.start()
    token = served.tenant("clock", settings=SMALL, quotas={"requests_per_second": 1000})
    faults: list[str] = []
    seen: dict[str, Any] = {}

    def call(route: str, content: Any) -> None:
        status, reply = served.call("POST", f"/v1/clock/{route}", content, token)
        if status not in (200, 202):
            faults.append(f"{route}: answered {status} {reply}")

    for number, (what, shift) in enumerate((("forward", "+86400s"), ("back", "-86400s"), ("right again", "+0s"))):
        call("predict", {"id": number, "x": [number, 1.0]})
        stamp.write_text(f"{shift}\n")
        time.sleep(2.5)
        call("labels", {"id": number, "y": "ab"[number % 2]})
        status, health = served.get("/health")
        seen[what] = {"health": status, "clock": health["clock"]}
        if status != 200 or "s ago" not in health["clock"]:
            faults.append(f"{what}: health {status}, clock {health['clock']}")
    figures = served.get("/v1/clock/metrics")[1]
    delays = dict(zip([*figures["label_delay"]["bounds"], None], figures["label_delay"]["counts"], strict=True))
    if sum(delays.values()) != 3 or delays[10.0] != 3:  # each came after about three seconds
        faults.append(f"label delays: {delays}")
    if not served.stop():
        faults.append("the service did not end as it should")
    served.close()
    return {**seen, "delay_seconds": figures["label_delay"]["sum"] / 3, "faults": faults}
