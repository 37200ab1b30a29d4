"""kill -9 of a service under load: nothing acknowledged may be lost, nothing learned twice, nothing different."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from serving_process import SMALL, Connection, Served
from works import digest

from prequential import Journal, Learner, Settings


class Load:
    """Clients that ask, give labels late and send examples, each request until it is acknowledged."""

    def __init__(self, served: Served, token: str, seed: int) -> None:
        self.served, self.token, self.draws = served, token, random.Random(seed)
        self.labels: dict[str, str] = {}  # acknowledged, by id
        self.asked: set[str] = set()  # acknowledged
        self.rows: set[float] = set()  # acknowledged examples, by their first feature
        self.refused: list[str] = []  # replies that should not be
        self.retries = self.replies = 0
        self.going = True
        self.scored = self.unscored = 0  # labels, by the figures of the service
        self.unremembered: dict[str, list[float]] = {}  # predictions without a log: x goes with the label
        self.pause = 0.0  # between two batches of examples
        self._count = 0

    def connection(self) -> Connection:
        """One of a client."""
        return Connection(self.served.port, self.token)

    def look(self) -> None:
        """Asks for the figures of the service: they must not go back."""
        status, found = self.served.get("/v1/kills/metrics")
        if status != 200:
            return
        if found["scored"] < self.scored:
            self.refused.append(f"{self.scored} labels had scored, and then {found['scored']}")
        self.scored, self.unscored = found["scored"], found["unscored"]

    def x(self) -> list[float]:
        """An input that never comes again."""
        self._count += 1
        return [float(self._count), self.draws.random(), self.draws.random()]

    async def sure(self, connection: Connection, path: str, content: Any, key: str | None) -> Any:
        """Sends a request until it is acknowledged."""
        while True:
            status, reply = await connection.post(path, content, key)
            if status in (200, 202):
                self.replies += 1
                return reply
            if status not in (0, 409, 429, 503):
                self.refused.append(f"{path} {content}: {status} {reply}")
                return None
            self.retries += 1
            await asyncio.sleep(0.1)

    async def by_id(self, name: str) -> None:
        """Asks by id; labels come in another order, some twice, some before they are asked for."""
        connection, number = self.connection(), 0
        waiting: list[tuple[str, list[float]]] = []
        while self.going or waiting:
            if self.going:
                number += 1
                id, x = f"{name}-{number}", self.x()
                early = self.draws.random() < 0.1
                if early:
                    await self.label(connection, id)
                made = await self.sure(connection, "/v1/kills/predict", {"id": id, "x": x}, None)
                if made and made.get("remembered") is False:
                    self.unremembered[id] = x
                    if early:
                        await self.label(connection, id)
                elif made:
                    self.asked.add(id)
                if not early and self.draws.random() < 0.9:
                    waiting.append((id, x))
            if waiting and (len(waiting) > 10 or not self.going):
                id, _ = waiting.pop(self.draws.randrange(len(waiting)))
                await self.label(connection, id)
                if self.draws.random() < 0.1:
                    await self.label(connection, id)
        connection.close()

    async def label(self, connection: Connection, id: str) -> None:
        y = "ab"[sum(id.encode()) % 2]
        with_x = {"x": self.unremembered[id]} if id in self.unremembered else {}
        if await self.sure(connection, "/v1/kills/labels", {"id": id, "y": y, **with_x}, None):
            self.labels[id] = y

    async def examples(self, name: str) -> None:
        """Sends batches of examples, which have a key and no ids."""
        connection, number = self.connection(), 0
        while self.going:
            number += 1
            rows: list[dict[str, Any]] = [
                {"x": self.x(), "y": self.draws.choice("abc")} for _ in range(self.draws.choice((1, 3, 20)))
            ]
            if await self.sure(connection, "/v1/kills/observe", {"rows": rows}, f"{name}-{number}"):
                self.rows.update(row["x"][0] for row in rows)
            await asyncio.sleep(self.pause)
        connection.close()


async def _kill(served: Served, load: Load, kills: int, draws: random.Random) -> dict[str, int]:
    """Kills the service or a worker at random moments; how often each."""
    counts = {"service": 0, "worker": 0}
    while sum(counts.values()) < kills:
        await _until(load, load.replies + draws.randrange(40))
        await asyncio.to_thread(load.look)
        await asyncio.sleep(draws.uniform(0.0, 0.02))
        if draws.random() < 0.5:
            counts["service"] += 1
            served.kill()
            await asyncio.to_thread(served.start)
        else:
            counts["worker"] += 1
            for pid in served.workers():
                os.kill(pid, signal.SIGKILL)
    await _until(load, load.replies + 50)
    await asyncio.to_thread(load.look)
    load.going = False
    return counts


async def _until(load: Load, replies: int) -> None:
    """Waits until so many replies have come."""
    while load.replies < replies:
        await asyncio.sleep(0.005)


async def _run(served: Served, load: Load, kills: int, seed: int) -> dict[str, int]:
    clients = [*(load.by_id(name) for name in "pqtu"), load.examples("r"), load.examples("s")]
    killing = asyncio.create_task(_kill(served, load, kills, random.Random(seed)))
    await asyncio.gather(*clients)
    return await killing


def kill_service(kills: int, *, seed: int = 0, flags: tuple[str, ...] = ()) -> dict[str, Any]:
    """Kills a service so many times; the counts, and a sentence on each fault."""
    folder = Path(tempfile.mkdtemp())
    (folder / "home").mkdir()
    served = Served(folder / "home", *flags)
    served.start()
    load = Load(served, served.tenant("kills", settings=SMALL), seed)
    begun = time.monotonic()
    counts = asyncio.run(_run(served, load, kills, seed))
    faults = [f"refused: {sentence}" for sentence in load.refused]
    if load.unscored:
        faults.append(f"{load.unscored} labels were not scored")
    if not served.stop():
        faults.append("the service did not end as it should")
    served.close()
    faults += check(folder / "home" / "tenants" / "kills" / "learner", load)
    acknowledged = {"labels": len(load.labels), "asked": len(load.asked), "examples": len(load.rows)}
    return {
        "kills": counts,
        **acknowledged,
        "scored": load.scored,
        "unscored": load.unscored,
        "retries": load.retries,
        "seconds": round(time.monotonic() - begun),
        "faults": faults,
    }


def check(home: Path, load: Load) -> list[str]:
    """What is wrong with what the service has kept."""
    journal = Journal(home / "journal")
    count = len(journal)
    chunk, (asked_at, ids) = journal.read(0, count), journal.arrivals(0, count)
    faults = []
    by_id = [id for id in ids if id]
    faults += [f"{len(by_id) - len(set(by_id))} labels were learned twice"] if len(set(by_id)) < len(by_id) else []
    firsts = [float(x[0]) for x, id in zip(chunk.x, ids, strict=True) if not id]
    faults += (
        [f"{len(firsts) - len(set(firsts))} examples were learned twice"] if len(set(firsts)) < len(firsts) else []
    )
    learned = {id: y for id, y in zip(ids, chunk.y, strict=True) if id}
    lost = [id for id, y in load.labels.items() if learned.get(id) != y]
    faults += [f"labels were lost: {lost[:5]} of {len(lost)}"] if lost else []
    gone = load.rows - set(firsts)
    faults += [f"examples were lost: {len(gone)}"] if gone else []
    kept = Learner.open(home)
    waiting = load.asked - set(load.labels)
    missing = waiting - set(kept.asked.pending)
    faults += [f"predictions were lost: {len(missing)}"] if missing else []
    never = Learner(settings=Settings().changed(**SMALL, async_steps=True), missing=True)  # killed
    for i in range(count):
        never.learn_many(chunk.x[i : i + 1], chunk.y[i : i + 1], None if asked_at[i] == i else asked_at[i : i + 1])
    if (a := digest(kept.state_dict()["learner"])) != (b := digest(never.state_dict()["learner"])):
        faults.append(f"the learner is not the one that was never killed: {a[:12]} and {b[:12]}")
    if never.position != kept.position:
        faults.append(f"the learner has learned {kept.position} examples, expected {never.position}")
    kept.close()
    return faults
