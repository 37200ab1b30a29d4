"""What requests do, through HTTP."""

from __future__ import annotations

import json
import re
import threading

import httpx
import pytest

from prequential import AsyncClient, Client
from prequential.serve.client import ServiceError

from .conftest import ADMIN, SMALL, Running


def ask(service: Running, token: str, tenant: str, content: object, route: str = "predict", **more):
    return service.call("POST", f"/v1/{tenant}/{route}", content, token, **more)


def error(reply: httpx.Response) -> dict:
    content = reply.json()
    assert set(content) == {"error"}
    assert set(content["error"]) == {"message", "field"}
    assert "\n" not in content["error"]["message"]
    return content["error"]


def test_a_label_comes_later_by_id(service):
    token = service.tenant("later")
    first = ask(service, token, "later", {"id": "a7", "x": [0.3, 1.2]})
    assert first.status_code == 200
    assert first.json() == {"id": "a7", "label": None, "probabilities": {}, "unseen": pytest.approx(1), "position": 0}
    given = ask(service, token, "later", {"id": "a7", "y": "spam"}, "labels")
    assert (given.status_code, given.json()) == (202, {"id": "a7", "position": 1, "status": "learned"})
    again = ask(service, token, "later", {"id": "a7", "y": "spam"}, "labels")
    assert (again.status_code, again.json()["status"]) == (202, "known")
    other = ask(service, token, "later", {"id": "a7", "y": "ham"}, "labels")
    assert other.status_code == 409
    assert error(other)["field"] == "y"
    early = ask(service, token, "later", {"id": "a8", "y": "ham"}, "labels")
    assert early.json() == {"id": "a8", "position": 1, "status": "waiting"}
    asked = ask(service, token, "later", {"id": "a8", "x": [0.1, 0.2]}).json()
    assert asked["label"] == "spam"
    assert sum(asked["probabilities"].values()) + asked["unseen"] == pytest.approx(1)
    state = service.call("GET", "/v1/later", token=token).json()
    assert (state["position"], state["pending"], state["labels"]) == (2, 0, 2)


def test_rows_with_named_fields_in_batches(service):
    token = service.tenant("named", columns={"amount": 3.5, "shop": "a", "note": None})
    rows = [{"x": {"amount": i, "shop": "ab"[i % 2]}, "y": i % 2} for i in range(40)]
    reply = ask(service, token, "named", {"rows": rows}, "observe")
    assert reply.status_code == 202, reply.text
    assert reply.json()["position"] == 40
    assert [one["position"] for one in reply.json()["results"]] == list(range(1, 41))
    asked = ask(service, token, "named", {"rows": [{"id": i, "x": {"shop": "a"}} for i in range(3)]}).json()
    assert [one["id"] for one in asked["predictions"]] == ["0", "1", "2"]
    assert set(asked["predictions"][0]["probabilities"]) == {"0", "1"}
    figures = service.call("GET", "/v1/named/metrics", token=token).json()
    assert (figures["scored"], figures["pending"]) == (40, 3)
    assert set(figures["recall"]) == {"0", "1"}


def test_bad_rows_are_named_and_change_nothing(service):
    token = service.tenant("bad", quotas={"rows": 100})
    ask(service, token, "bad", {"rows": [{"x": [0, 1], "y": "a"}, {"x": [1, 0], "y": "b"}]}, "observe")
    for route, content, status, field in [
        ("predict", {"x": [1, 2, 3]}, 422, "x"),
        ("predict", {"x": ["a", 2]}, 422, "x"),
        ("predict", {}, 422, None),
        ("predict", {"x": [0, 1], "id": "a" * 300}, 422, "id"),
        ("predict", {"rows": [{"x": [0, 1]}, {"x": [0, 1, 2]}]}, 422, "rows"),
        ("predict", {"x": [0, 1], "colour": 3}, 422, "colour"),
        ("labels", {"id": "1", "y": None}, 422, None),
        ("labels", {"id": "1", "y": [1]}, 422, "y"),
        ("labels", {"y": "a"}, 422, None),
        ("labels", {"rows": [{"id": "1", "y": "a"}, {"id": "1", "y": "b"}]}, 409, "rows.1.y"),
        ("observe", {"rows": [{"x": [0, 1], "y": "a"}, {"x": [0], "y": "a"}]}, 422, "rows"),
        ("observe", {"rows": [{"x": [0, 1], "y": "a"}] * 99}, 429, None),
        ("observe", {"rows": []}, 422, "rows"),
    ]:
        reply = ask(service, token, "bad", content, route)
        assert (reply.status_code, error(reply)["field"]) == (status, field), (content, reply.text)
    broken = httpx.post(
        f"{service.url}/v1/bad/predict", content=b'{"x": [1,', headers={"Authorization": f"Bearer {token}"}
    )
    assert broken.status_code == 400
    deep = b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    assert (
        httpx.post(
            f"{service.url}/v1/bad/predict", content=deep, headers={"Authorization": f"Bearer {token}"}
        ).status_code
        == 400
    )
    state = service.call("GET", "/v1/bad", token=token).json()
    assert (state["position"], state["pending"], state["labels_waiting"]) == (2, 0, 0)


def test_labels_that_look_alike_are_refused(service):
    token = service.tenant("alike")
    assert ask(service, token, "alike", {"x": [0.0], "y": 1}, "labels").status_code == 202
    assert "str" in error(ask(service, token, "alike", {"x": [0.0], "y": "1"}, "labels"))["message"]
    assert "as 1 before" in error(ask(service, token, "alike", {"x": [0.0], "y": True}, "labels"))["message"]


def test_a_key_makes_a_request_happen_once(service):
    token = service.tenant("keys")
    headers = {"Idempotency-Key": "batch-1"}
    rows = {"rows": [{"x": [i, 1.0], "y": "ab"[i % 2]} for i in range(20)]}
    first = ask(service, token, "keys", rows, "observe", headers=headers)
    again = ask(service, token, "keys", rows, "observe", headers=headers)
    assert first.json() == again.json()
    assert again.headers["Idempotency-Replayed"] == "true"
    other = ask(service, token, "keys", {"rows": rows["rows"][:3]}, "observe", headers=headers)
    assert (other.status_code, error(other)["field"]) == (422, "Idempotency-Key")
    made = [ask(service, token, "keys", {"x": [1, 1]}, headers={"Idempotency-Key": "p"}).json() for _ in range(2)]
    assert made[0] == made[1]
    state = service.call("GET", "/v1/keys", token=token).json()
    assert (state["position"], state["pending"]) == (20, 1)


def test_tokens_and_names(service):
    mine, other = service.tenant("mine"), service.tenant("other")
    replies = [
        service.call("GET", f"/v1/{name}", token=token)
        for name, token in [("mine", other), ("nobody", other), ("mine", None), ("mine", "x"), ("..%2fmine", other)]
    ]
    assert {(reply.status_code, reply.text) for reply in replies[:4]} == {(401, replies[0].text)}
    assert replies[4].status_code in (401, 404)
    assert service.call("PUT", "/v1/new", {}, token=mine).status_code == 401
    assert service.call("GET", "/v1", token=mine).status_code == 401
    assert service.call("GET", "/metrics", token=mine).status_code == 401
    assert {"mine", "other"} <= set(service.call("GET", "/v1").json()["tenants"])
    assert service.call("PUT", "/v1/Bad.Name", {}).status_code == 422
    assert service.call("PUT", "/v1/mine", {"settings": {"width": 24}}).status_code == 409
    for settings in ({"colour": 1}, {"width": -1}, {"extractor": "os:system"}):
        refused = service.call("PUT", "/v1/never", {"settings": settings})
        assert refused.status_code == 422, settings
    assert service.call("GET", "/v1/never").status_code == 404
    rotated = service.call("POST", "/v1/mine/token").json()["token"]
    assert service.call("GET", "/v1/mine", token=mine).status_code == 401
    assert service.call("GET", "/v1/mine", token=rotated).status_code == 200
    kept = (service.home / "tenants" / "mine" / "tenant.json").read_text()
    assert rotated not in kept
    assert ADMIN not in "".join(path.read_text() for path in service.home.glob("*.json"))
    assert service.call("DELETE", "/v1/mine", token=rotated).status_code == 401
    assert service.call("DELETE", "/v1/mine").status_code == 204
    assert service.call("GET", "/v1/mine", token=rotated).status_code == 401
    assert not (service.home / "tenants" / "mine").exists()


def test_quotas(service):
    token = service.tenant("few", quotas={"pending": 2})
    for i in range(2):
        assert ask(service, token, "few", {"id": i, "x": [1.0]}).status_code == 200
    full = ask(service, token, "few", {"id": 3, "x": [1.0]})
    assert (full.status_code, int(full.headers["Retry-After"]) >= 1) == (429, True)
    assert ask(service, token, "few", {"id": 0, "x": [1.0]}).status_code == 200  # it waits already
    assert service.call("PUT", "/v1/few", {"settings": SMALL, "quotas": {"pending": 3}}).status_code == 200
    assert ask(service, token, "few", {"id": 3, "x": [1.0]}).status_code == 200
    assert service.call("PUT", "/v1/few", {"settings": {}}).status_code == 409
    token = service.tenant("slow", quotas={"requests_per_second": 0.001})
    codes = [ask(service, token, "slow", {"x": [1.0]}).status_code for _ in range(2)]
    assert codes == [200, 429]


def test_events_and_recent_tell_the_fate(service):
    token = service.tenant("fate")
    client = Client(service.url, "fate", token)
    heard: list[dict] = []
    begun = threading.Event()

    def listen() -> None:
        for event in client.events():
            heard.append(event)
            begun.set()
            if event["event"] == "label":
                return

    thread = threading.Thread(target=listen)
    thread.start()
    for i in range(50):  # until the subscription is there
        client.predict([0.5], id=f"first-{i}")
        if begun.wait(0.1):
            break
    client.learn(id="first-0", y="yes")
    thread.join(20)
    assert heard[-1]["event"] == "label"
    assert (heard[-1]["id"], heard[-1]["fate"]) == ("first-0", "wrong")
    recent = client.recent()
    assert recent[-1]["fate"] == "wrong"
    assert client.series()["accuracy"] == [0.0]


async def _with_async_client(service: Running, token: str) -> list[str]:
    async with AsyncClient(service.url, "clients", token) as client:
        made = await client.predict_many([[0.1], [0.9]])
        taken = await client.learn_many([one.id for one in made], ["low", "high"])
        return [one.status for one in taken]


def test_clients(service):
    import asyncio

    token = service.tenant("clients")
    with Client(service.url, "clients", token) as client:
        assert client.observe([[0.1], [0.9]] * 10, ["low", "high"] * 10) == 20
        prediction = client.predict([0.9])
        assert prediction.position == 20
        assert client.learn(id=prediction.id, y="high").status == "learned"
        assert client.learn([0.2], "low").position == 22
        with pytest.raises(ServiceError, match="shape") as raised:
            client.predict([1, 2, 3])
        assert (raised.value.status, raised.value.field) == (422, "x")
        assert client.state()["position"] == 22
        assert client.metrics()["scored"] == 22
    assert asyncio.run(_with_async_client(service, token)) == ["learned", "learned"]


def test_prometheus_health_and_openapi(service):
    text = service.call("GET", "/metrics").text
    assert 'prequential_accuracy{tenant="clients"}' in text or "prequential_tenants" in text
    assert service.call("GET", "/health", token=None).json()["status"] == "ok"
    assert service.call("GET", "/ready", token=None).json() == {"ready": True}
    page = service.call("GET", "/openapi.json", token=None).json()
    assert "/v1/{tenant}/predict" in page["paths"]
    names = set(page["components"]["schemas"])
    used = {part.split('"')[0] for part in json.dumps(page).split("#/components/schemas/")[1:]}
    assert used <= names
    shown = service.call("GET", "/docs", token=None).text  # works without internet
    sources = re.findall(r'(?:src|href)="([^"]+)"', shown)
    assert sources
    for source in sources:
        assert source.startswith("/")
        assert service.call("GET", source, token=None).status_code == 200


def test_it_ends_with_everything_saved(service):
    assert service.stop() == 0
    assert list((service.home / "tenants" / "named" / "learner" / "saves").glob("*.safetensors"))
    service.start()
    assert service.call("GET", "/v1/named").json()["position"] == 40
    figures = service.call("GET", "/v1/named/metrics").json()
    assert figures["scored"] == 40
