"""Many tenants, each with a few rows in turn: memory stays bounded, and none is starved."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from serving_process import SMALL, Connection, Served


def many_tenants(
    count: int, *, rounds: int = 3, memory: str = "1GB", settings: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Gives each of many tenants a prediction and its label, round after round; how long each waited."""
    folder = Path(tempfile.mkdtemp())
    (folder / "home").mkdir()
    served = Served(folder / "home", "--memory", memory)
    served.start()
    begun = time.monotonic()
    tokens = [served.tenant(f"t{i}", settings=SMALL if settings is None else settings) for i in range(count)]
    made = time.monotonic() - begun
    seconds: list[list[float]] = [[] for _ in range(count)]
    bad: list[Any] = []
    peak = asyncio.run(_rounds(served, tokens, rounds, seconds, bad))
    figures = served.get("/metrics")[1]
    opened = next(line for line in str(figures).splitlines() if line.startswith("prequential_worker_open{"))
    positions = {served.get(f"/v1/t{i}")[1]["position"] for i in range(0, count, max(1, count // 20))}
    served.stop()
    served.close()
    p99 = np.array([np.percentile(one, 99) for one in seconds if one])
    faults = [str(one)[:200] for one in bad[:5]]
    if positions != {rounds}:
        faults.append(f"tenants have learned {positions} rows, expected {rounds}")
    return {
        "tenants": count,
        "seconds_to_make": round(made, 1),
        "rows_per_second": round(count * rounds / sum(map(sum, seconds)) * CONNECTIONS, 1),
        "predict_p50_ms": round(1e3 * float(np.median(np.concatenate(seconds))), 1),
        "p99_of_tenants_ms": {
            "median": round(1e3 * float(np.median(p99)), 1),
            "largest": round(1e3 * float(p99.max()), 1),
        },
        "largest_over_median": round(float(p99.max() / np.median(p99)), 2),
        "open": int(float(opened.split()[-1])),
        "peak_memory_mb": round(peak / 1e6),
        "faults": faults,
    }


CONNECTIONS = 4


async def _rounds(served: Served, tokens: list[str], rounds: int, seconds: list[list[float]], bad: list[Any]) -> int:
    peak = served.memory()
    for number in range(rounds):
        waiting = iter(range(len(tokens)))

        async def work(waiting: Any = waiting, number: int = number) -> None:
            for i in waiting:
                connection = Connection(served.port, tokens[i])
                begun = time.perf_counter()
                status, reply = await connection.post(f"/v1/t{i}/predict", {"id": number, "x": [i, number, 1.0]})
                if status == 200:
                    status, reply = await connection.post(f"/v1/t{i}/labels", {"id": number, "y": "ab"[number % 2]})
                seconds[i].append(time.perf_counter() - begun)
                connection.close()
                if status != 202:
                    bad.append((i, status, reply))

        await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
        peak = max(peak, served.memory())
    return peak
