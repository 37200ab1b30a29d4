"""Two service processes that share their tenants: requests reach the right one, and one takes over from the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from .conftest import Running
from .nats_servers import Servers, find_server

pytest.importorskip("nats", reason="nats-py is not installed")
if find_server() is None:
    pytest.skip("nats-server is not installed", allow_module_level=True)


class Two:
    """A server of NATS and two service processes."""

    def __init__(self, place) -> None:
        self.nats = Servers(place)
        with ThreadPoolExecutor(2) as pool:
            both = pool.map(lambda name: Running(place / name, "--log", self.nats.url), ["a", "b"])
        self.services = list(both)

    def stop(self) -> None:
        for service in self.services:
            if service.process.poll() is None:
                service.kill()
        self.nats.stop()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    found = Two(tmp_path_factory.mktemp("two"))
    yield found
    found.stop()


def known(service: Running, name: str, token: str) -> None:
    """Waits until a process knows of a tenant that another has made."""
    end = time.monotonic() + 10
    while service.call("GET", f"/v1/{name}", token=token).status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_one_takes_over_from_the_other_and_nothing_is_lost(two):
    a, b = two.services
    assert a.call("GET", "/health").json()["processes"] == 2
    tokens = {name: (a, b)[i % 2].tenant(name) for i, name in enumerate(["t0", "t1", "t2", "t3"])}
    for service in two.services:
        for name, token in tokens.items():
            known(service, name, token)
    for name, token in tokens.items():
        for i in range(6):  # asked at one, labeled at the other
            service, other = (a, b) if i % 2 else (b, a)
            asked = service.call("POST", f"/v1/{name}/predict", {"id": f"i{i}", "x": [i, 1.0]}, token)
            assert asked.status_code == 200, asked.text
            given = other.call("POST", f"/v1/{name}/labels", {"id": f"i{i}", "y": "ab"[i % 2]}, token)
            assert given.json()["status"] == "learned", given.text
    b.kill()
    begun = time.monotonic()
    for name, token in tokens.items():  # a request waits for the one that takes over
        reply = a.call("POST", f"/v1/{name}/labels", {"x": [0.0, 1.0], "y": "a"}, token)
        assert (reply.status_code, reply.json()["position"]) == (202, 7), reply.text
    assert time.monotonic() - begun < 15
    for name, token in tokens.items():
        again = a.call("POST", f"/v1/{name}/labels", {"id": "i5", "y": "b"}, token)
        assert (again.json()["status"], again.json()["position"]) == ("known", 7)
    for _ in range(3):  # what is told of one that is deleted must not remove the one that is made after it
        assert a.call("DELETE", "/v1/t0").status_code == 204
        fresh = a.tenant("t0")
        assert a.call("GET", "/v1/t0", token=fresh).json()["position"] == 0


def test_writes_wait_for_the_log_and_predictions_do_not(two):
    a, _ = two.services
    token = a.tenant("down")
    a.call("POST", "/v1/down/labels", {"x": [0.0, 1.0], "y": "a"}, token)
    two.nats.kill(0)
    refused = a.call("POST", "/v1/down/labels", {"x": [0.0, 1.0], "y": "a"}, token)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1"), refused.text
    predicted = a.call("POST", "/v1/down/predict", {"id": "i", "x": [0.0, 1.0]}, token).json()
    assert (predicted["label"], predicted["remembered"]) == ("a", False)
    end = time.monotonic() + 10
    while (health := a.call("GET", "/health")).status_code != 503:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert "log" in health.json()["status"]
    two.nats.start(0)
    end = time.monotonic() + 20
    while (
        taken := a.call("POST", "/v1/down/labels", {"id": "i2", "x": [0.0, 1.0], "y": "b"}, token)
    ).status_code != 202:
        assert time.monotonic() < end, taken.text
        time.sleep(0.1)
    while a.call("GET", "/health").status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.1)
