"""The log of a tenant in NATS: stored once, in order, by one writer; and a learner that is made from it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prequential.errors import BadSetting
from prequential.serve.failures import Failure
from prequential.serve.framing import Message
from prequential.serve.shared_tenants import check_kind
from prequential.serve.tenant_learner import TenantLearner
from prequential.serve.tenants import Tenants
from prequential.serve.work import Work
from prequential.storage.checkpoint import same_state

from .nats_servers import Servers, find_server

pytest.importorskip("nats", reason="nats-py is not installed")
if find_server() is None:
    pytest.skip("nats-server is not installed", allow_module_level=True)

from prequential.serve.nats_client import STREAM, NatsThread, prepare
from prequential.serve.nats_log import MOVED, NatsLog

SMALL = {"width": 16, "depth": 1, "window": 32, "chunk_size": 8, "num_streams": 2, "num_neighbors": 0}


class Collected:
    """Stands in for `GroupCommit`: keeps the replies."""

    def __init__(self) -> None:
        self.replies: list[Message] = []

    def send(self, replies: list[Message]) -> None:
        self.replies += replies

    def wait(self, count: int) -> list[Message]:
        wait_for(lambda: len(self.replies) >= count)
        return self.replies


def wait_for(condition: Callable[[], Any], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    found = Servers(tmp_path_factory.mktemp("nats"))
    yield found
    found.stop()


@pytest.fixture(scope="module")
def nats(servers: Servers) -> Iterator[NatsThread]:
    thread = NatsThread(servers.url)
    thread.connect()
    thread.run(prepare(thread.nc, 1), 20)
    yield thread
    thread.close()


def made(home: Path, name: str) -> dict[str, Any]:
    tenants = Tenants(home)
    if tenants.get(name) is None:
        tenants.create(name, settings=SMALL)
    return {**tenants.get(name).to_dict(), "created": 1.5}


def opened(home: Path, name: str, nats: NatsThread) -> TenantLearner:
    return TenantLearner(name, home / "tenants" / name, made(home, name), nats=nats)


def learn(tenant: TenantLearner, rows: list[dict[str, Any]], key: str | None = None) -> list[dict[str, Any]]:
    work = Work(1, {"rows": rows, "several": True, "key": key, "print": "1" * 16})
    end = time.monotonic() + 30
    while (results := tenant.learn(work)) is None:
        assert time.monotonic() < end
        time.sleep(0.001)
    return results


def commit(tenant: TenantLearner) -> list[Message]:
    commits = Collected()
    tenant.log.commit([[7, 200, "done"]], commits)
    return commits.wait(1)


def some_work(tenant: TenantLearner, start: int, count: int = 25) -> None:
    """Asks, late and early labels, examples one by one and a whole chunk at once."""
    rng = np.random.default_rng(start)
    for i in range(start, start + count):
        x = rng.normal(size=3).tolist()
        if i % 5 == 3:
            learn(tenant, [{"id": f"i{i}", "y": "b"}])  # before it is asked
        tenant.predict({"rows": [{"id": f"i{i}", "x": x}], "remember": True})
        if i % 5 < 2:
            learn(tenant, [{"id": f"i{i}", "y": "ab"[i % 2]}])
        if i % 5 == 4:
            learn(tenant, [{"id": f"e{i}", "x": x, "y": "c"}])
    learn(tenant, [{"x": rng.normal(size=3).tolist(), "y": "abc"[i % 3]} for i in range(12)], key=f"{start:032x}")


def state(tenant: TenantLearner) -> dict[str, Any]:
    return tenant.learner.state_dict()


def test_a_standby_that_replays_the_log_is_the_same_to_the_bit(nats, tmp_path):
    first = opened(tmp_path / "a", "same", nats)
    some_work(first, 0)
    assert commit(first) == [[7, 200, "done"]]
    first.save()
    some_work(first, 100)
    commit(first)
    standby = opened(tmp_path / "b", "same", nats)  # everything from the log
    assert standby.learner.position == first.learner.position > 50
    assert same_state(state(standby), state(first))
    assert standby.scores.figures() == first.scores.figures()
    copy = tmp_path / "c"
    shutil.copytree(tmp_path / "a", copy)  # as kill -9 would leave it: a save, and more behind it
    again = opened(copy, "same", nats)
    assert same_state(state(again), state(first))
    results = learn(again, [{"x": [0.0, 0.0, 0.0], "y": "a"}] * 12, key=f"{100:032x}")
    assert {result["status"] for result in results} == {"known"}  # an attempt again, at another process
    for tenant in (first, standby, again):
        tenant.learner.close()


def test_a_log_has_one_writer(nats, tmp_path):
    first = opened(tmp_path / "a", "fence", nats)
    some_work(first, 0)
    commit(first)
    second = opened(tmp_path / "b", "fence", nats)
    learn(second, [{"id": "late", "y": "a"}])
    assert commit(second)[0][1] == 200
    learn(first, [{"id": "lost", "y": "a"}])  # applied, but not stored
    assert commit(first)[0][1] == MOVED
    assert first.log.fenced
    with pytest.raises(Failure, match="another process"):
        learn(first, [{"id": "more", "y": "a"}])
    assert first.log.flush() is None
    first.learner.close()
    again = opened(tmp_path / "a", "fence", nats)  # what was not stored is gone
    assert set(again.learner.asked.labels) == {"late"}
    assert same_state(state(again), state(second))
    again.learner.close()
    second.learner.close()


def test_a_message_that_is_sent_again_is_stored_once(nats):
    log = NatsLog(nats, "again", 1.0, 0)
    real, calls = nats.nc.request, []

    async def lose_the_reply(subject: str, *args: Any, **more: Any) -> Any:
        reply = await real(subject, *args, **more)
        calls.append(subject)
        if len(calls) == 1:  # it was stored, but nobody knows
            raise TimeoutError
        return reply

    nats.nc.request = lose_the_reply
    try:
        log.append({"event": "label", "id": "a", "y": 1, "time": 0.0})
        commits = Collected()
        log.commit([[1, 200, None]], commits)
        assert commits.wait(1) == [[1, 200, None]]
    finally:
        nats.nc.request = real
    assert calls[:2] == ["prequential.log.again"] * 2
    assert [event["id"] for event in NatsLog(nats, "again", 1.0, 0).read()] == ["a"]
    assert list(NatsLog(nats, "again", 2.0, 0).read()) == []  # of a tenant that was deleted, and made again


def test_events_of_many_requests_go_in_few_messages_in_order(nats):
    log, commits = NatsLog(nats, "many", 1.0, 0), Collected()
    for i in range(500):
        log.append({"event": "label", "id": str(i), "y": np.zeros(1000) if i % 100 == 0 else 1, "time": 0.0})
        log.commit([[i, 200, None]], commits)
    assert [reply[0] for reply in commits.wait(500)] == list(range(500))
    assert [event["id"] for event in NatsLog(nats, "many", 1.0, 0).read()] == [str(i) for i in range(500)]
    info = nats.run(nats.js.stream_info(STREAM, subjects_filter="prequential.log.many"), 5)
    assert info.state.subjects["prequential.log.many"] < 400


def test_servers_that_are_down_and_come_back(tmp_path):
    servers = Servers(tmp_path)
    thread = NatsThread(servers.url)
    try:
        thread.connect()
        thread.run(prepare(thread.nc, 1), 20)
        tenant = opened(tmp_path / "a", "down", thread)
        learn(tenant, [{"id": "a", "y": "spam"}, {"x": [1.0, 2.0], "y": "spam"}])
        assert commit(tenant)[0][1] == 200
        servers.kill(0)
        wait_for(lambda: not thread.connected)
        with pytest.raises(Failure, match="cannot be reached") as refused:
            learn(tenant, [{"id": "b", "y": "spam"}])
        assert (refused.value.status, refused.value.retry) == (503, 1)
        predicted = tenant.predict({"rows": [{"id": "c", "x": [1.0, 2.0]}], "remember": True})[0]
        assert (predicted["remembered"], predicted["label"]) == (False, "spam")
        servers.start(0)
        wait_for(lambda: thread.connected)
        learn(tenant, [{"id": "b", "y": "spam"}])
        assert commit(tenant)[0][1] == 200
        assert set(tenant.learner.asked.labels) == {"a", "b"}
        tenant.learner.close()
    finally:
        thread.close()
        servers.stop()


def test_a_home_is_of_one_kind(tmp_path):
    check_kind(tmp_path / "a", shared=True)
    check_kind(tmp_path / "a", shared=True)
    with pytest.raises(BadSetting, match="needs --log"):
        check_kind(tmp_path / "a", shared=False)
    Tenants(tmp_path / "b")
    check_kind(tmp_path / "b", shared=False)
    with pytest.raises(BadSetting, match="made without --log"):
        check_kind(tmp_path / "b", shared=True)
