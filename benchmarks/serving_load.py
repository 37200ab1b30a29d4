"""Predictions and labels as fast as they go, one row a request; and the learner alone, for comparison."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from serving_process import Connection, Served

from prequential import Learner

FEATURES = 16
WARM_UP = 300  # pairs


def rows(count: int, seed: int = 0) -> tuple[list[list[float]], list[str]]:
    """Vectors whose label a line tells, with noise."""
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(count, FEATURES))
    y = np.where(x[:, 0] + x[:, 1] + 0.3 * draws.normal(size=count) > 0, "up", "down")
    return x.round(4).tolist(), y.tolist()


class Pairs:
    """Connections that each ask for a row, give its label, and go on with the next."""

    def __init__(
        self, port: int, token: str, tenant: str, count: int, rate: float | None = None, name: str = ""
    ) -> None:
        self.port, self.token, self.tenant, self.name = port, token, tenant, name
        self.x, self.y = rows(count)
        self.rate = rate
        self.next = 0
        self.predict_seconds: list[float] = []
        self.label_seconds: list[float] = []
        self.correct = 0
        self.bad: list[Any] = []

    async def one(self) -> None:
        connection = Connection(self.port, self.token)
        while self.next < len(self.x):
            i, self.next = self.next, self.next + 1
            if self.rate is not None:  # the times at which requests are due do not depend on the replies
                await asyncio.sleep(max(0.0, self.begun + i / self.rate - time.perf_counter()))
            begun = time.perf_counter() if self.rate is None else self.begun + i / self.rate
            status, made = await connection.post(
                f"/v1/{self.tenant}/predict", {"id": f"{self.name}{i}", "x": self.x[i]}
            )
            middle = time.perf_counter()
            if status != 200:
                self.bad.append((status, made))
                continue
            self.correct += made["label"] == self.y[i]
            status, reply = await connection.post(
                f"/v1/{self.tenant}/labels", {"id": f"{self.name}{i}", "y": self.y[i]}
            )
            if status != 202:
                self.bad.append((status, reply))
            self.predict_seconds.append(middle - begun)
            self.label_seconds.append(time.perf_counter() - middle)
        connection.close()

    async def run(self, connections: int) -> float:
        self.begun = time.perf_counter()
        await asyncio.gather(*(self.one() for _ in range(connections)))
        return time.perf_counter() - self.begun


def sustained(
    pairs: int, *, connections: int = 4, rate: float | None = None, settings: dict[str, Any] | None = None,
    flags: tuple[str, ...] = (),
) -> dict[str, Any]:  # fmt: skip
    """One tenant with the default learner: pairs of a prediction and its label, and how long each takes."""
    settings = settings or {}
    folder = Path(tempfile.mkdtemp())
    (folder / "home").mkdir()
    served = Served(folder / "home", *flags)
    served.start()
    token = served.tenant("load", settings=settings)
    asyncio.run(Pairs(served.port, token, "load", WARM_UP, name="warm").run(4))
    load = Pairs(served.port, token, "load", pairs, rate)
    cpu, own = served.cpu_seconds(), time.process_time()
    seconds = asyncio.run(load.run(connections))
    cpu, own = served.cpu_seconds() - cpu, time.process_time() - own
    figures = served.get("/v1/load/metrics")[1]
    served.stop()
    served.close()
    return {
        "pairs": pairs,
        "pairs_per_second": round(pairs / seconds, 1),
        "predict_ms": _quantiles(load.predict_seconds),
        "label_ms": _quantiles(load.label_seconds),
        "accuracy": load.correct / pairs,
        "cpu_ms_per_pair": {"service": round(1e3 * cpu / pairs, 3), "client": round(1e3 * own / pairs, 3)},
        "position": figures["position"],
        "faults": [str(bad)[:200] for bad in load.bad[:5]],
    }


def bare(pairs: int, *, waiting: int = 0, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """The learner alone: the same pairs in one process, by id and in a home; so many rows wait for their labels.

    With n connections, up to n - 1 other rows wait when a label comes, and its row is then computed once more.
    """
    learner = Learner(home=tempfile.mkdtemp() + "/home", missing=True, durability="save", **(settings or {}))
    x, y = rows(pairs + WARM_UP)

    def run(start: int, stop: int) -> None:
        for i in range(start, stop + waiting):
            if i < stop:
                learner.predict_proba(x[i], id=i)
            if i - waiting >= start:
                learner.learn(id=i - waiting, y=y[i - waiting])

    run(0, WARM_UP)
    begun, cpu = time.perf_counter(), time.process_time()
    run(WARM_UP, pairs + WARM_UP)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return {"pairs_per_second": round(pairs / seconds, 1), "cpu_ms_per_pair": round(1e3 * cpu / pairs, 3)}


def compared(pairs: int, *, connections: int = 4, flags: tuple[str, ...] = ()) -> dict[str, Any]:
    """The service between two runs of the bare learner, with labels at once and with as many rows that wait."""
    kinds = {"at once": 0, "as late": connections - 1}
    before = {name: bare(pairs, waiting=waiting) for name, waiting in kinds.items()}
    found = sustained(pairs, connections=connections, flags=flags)
    after = {name: bare(pairs, waiting=waiting) for name, waiting in kinds.items()}
    ratios = {}
    for name in kinds:
        rate = (before[name]["pairs_per_second"] + after[name]["pairs_per_second"]) / 2
        ratios[name] = round(found["pairs_per_second"] / rate, 2)
    return {**found, "bare before": before, "bare after": after, "of the bare learner's rate": ratios}


def _quantiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{q}": round(1e3 * float(np.percentile(seconds, q)), 2) for q in (50, 90, 99)}
