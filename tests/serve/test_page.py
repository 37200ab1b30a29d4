"""The page of the service: what it is made of, to whom it shows data, and how it looks in a real browser."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from prequential import Client
from serve.conftest import ADMIN
from shared.browser import DRAWN, chromium

FIGURES = ("f-accuracy", "f-nats", "f-delay", "f-latency", "f-balance")
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"


def shown(service, path: str, token: str | None = ADMIN):
    return service.call("GET", f"/page/tenants{path}", token=token)


def test_the_page_needs_nothing_from_elsewhere_and_holds_no_secret(service):
    reply = service.call("GET", "/", token=None)
    assert reply.status_code == 200
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = reply.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert policy.count("sha256-") == 2
    assert {"form-action 'none'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(policy.split("; "))
    assert not re.findall(r"""(?:src|href)=["'](?:https?:)?//|@import|url\(""", reply.text)
    assert "{{" not in reply.text
    assert ADMIN not in reply.text
    assert "innerHTML" not in reply.text  # texts are made by `make`, never as HTML


def test_a_token_shows_its_tenants_only(service):
    one, two = service.tenant("one"), service.tenant("two")
    assert service.call("POST", "/v1/one/labels", {"x": [1.0], "y": "secret-of-one"}, token=one).status_code == 202
    everything = shown(service, "").json()
    assert everything["admin"] is True
    assert {"one", "two"} <= {tenant["name"] for tenant in everything["tenants"]}
    assert next(tenant for tenant in everything["tenants"] if tenant["name"] == "one")["position"] == 1
    own = shown(service, "", two)
    assert [tenant["name"] for tenant in own.json()["tenants"]] == ["two"]
    assert "one" not in own.text
    refused = [shown(service, path, token) for path, token in [("/one", two), ("/nobody", two), ("", None), ("", "x")]]
    assert {(reply.status_code, reply.text) for reply in refused} == {(401, refused[0].text)}
    assert "secret-of-one" in shown(service, "/one", one).text
    assert "secret-of-one" in shown(service, "/one").text
    assert "token" not in shown(service, "/one", one).text


def test_what_became_of_predictions(service):
    token = service.tenant("fates", settings={})
    for i in range(4):
        service.call("POST", "/v1/fates/predict", {"id": f"p{i}", "x": [float(i)]}, token=token)
    service.call("POST", "/v1/fates/labels", {"id": "p0", "y": 7}, token=token)
    service.call("POST", "/v1/fates/predict", {"id": "p4", "x": [0.0]}, token=token)
    service.call("POST", "/v1/fates/labels", {"id": "p4", "y": 7}, token=token)
    content = shown(service, "/fates", token).json()
    assert [(entry["id"], entry["fate"]) for entry in content["recent"]] == [
        ("p4", "right"), ("p3", "waiting"), ("p2", "waiting"), ("p1", "waiting"), ("p0", "wrong"),
    ]  # fmt: skip
    assert (
        content["recent"][0]["label"] == content["recent"][0]["predicted"] == "7"
    )  # a text: JavaScript rounds integers
    assert content["classes"] == [{"label": "7", "count": 2, "recall": 0.5}]
    assert content["figures"]["pending"] == 3
    assert content["latency"]["count"] == [5]
    assert 0 < content["latency"]["mean"][0] <= content["latency"]["slowest"][0]
    assert service.call("GET", "/v1/fates/recent", token=token).json()["predictions"][0]["label"] == 7


def test_static_files_are_in_the_package():
    folder = files("prequential.serve").joinpath("page")
    assert {"page.html", "page.css", "page.js", "figures.js"} <= {entry.name for entry in folder.iterdir()}


# In a browser; skipped where Playwright or Chromium is not installed.


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def tickets(service) -> Client:
    """A tenant with 60 labels, one of them hostile, and two predictions that wait."""
    client = Client(service.url, "tickets", service.tenant("tickets"))
    names = ["billing", "returns", HOSTILE]
    ids = [f"t{i}" if i else HOSTILE for i in range(62)]
    client.predict_many([[float(i % 3), 1.0] for i in range(62)], ids)
    client.learn_many(ids[:60], [names[i % 3] for i in range(60)])
    return client


@pytest.fixture
def look(browser, service):
    """Opens the page and signs in; whatever its script complains of fails the test."""
    contexts, complaints = [], []

    def see(token, tenant="", *, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.goto(f"{service.url}/#{tenant}")
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        page.wait_for_selector("#live:not([hidden]), #message:not([hidden])")
        return page

    yield see
    for context in contexts:
        context.close()
    assert [text for text in complaints if "Failed to load resource" not in text] == []  # of that the page itself tells


def token_of(client: Client) -> str:
    return client._headers["Authorization"].removeprefix("Bearer ")


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")])
def test_readable_at_every_width_and_in_both_colors(look, tickets, width, scheme):
    page = look(ADMIN, "tickets", width=width, scheme=scheme)
    page.wait_for_selector("#tenant:not([hidden])")
    assert page.evaluate("document.documentElement.scrollWidth") == width  # nothing to scroll sideways
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in paper[4:-1].split(",")) < 200) == (scheme == "dark")
    for figure in FIGURES:
        colors, share = page.evaluate(DRAWN, figure)
        assert colors > 20, figure
        assert share > 0.005, figure
    assert page.evaluate(
        "[...document.querySelectorAll('h1, h2, p, .tile, figure, td')].every(n => n.getBoundingClientRect().right <= innerWidth + 1)"
    )


def test_hostile_texts_are_texts(look, tickets):
    page = look(token_of(tickets))
    page.wait_for_selector("#tenant:not([hidden])")
    assert page.inner_text("h1") == "tickets"  # a tenant's token leads to that tenant
    assert page.is_hidden("#back")
    assert HOSTILE[:39] in page.inner_text("#t-classes")
    page.get_by_role("button", name="Wrong", exact=True).click()
    assert HOSTILE in page.inner_text("#t-recent")
    page.locator("#f-balance .plot").focus()
    page.keyboard.press("End")
    assert HOSTILE[:39] in page.inner_text("#tip")
    assert page.evaluate("document.images.length") == 0
    assert page.title() == "tickets · prequential service"


def test_it_follows_what_happens(look, tickets):
    page = look(token_of(tickets))
    page.wait_for_selector("text=60 labels learned")
    assert page.locator("#t-recent tbody tr").first.inner_text().split("\t")[1] == "t61"
    made = tickets.predict([1.0, 1.0], id="newest")
    row = page.locator("#t-recent tr", has_text="newest")
    row.filter(has_text="waiting").wait_for(timeout=10_000)
    tickets.learn(id="newest", y=made.label)
    row.filter(has_text="right").wait_for(timeout=10_000)
    assert "61 labels learned" in page.inner_text("#about")
    before = page.evaluate("document.querySelector('#f-accuracy canvas').toDataURL()")
    page.get_by_role("button", name="By time").click()
    assert page.evaluate("document.querySelector('#f-accuracy canvas').toDataURL()") != before


def test_tokens(look, service, tickets):
    page = look("wrong-token-of-nobody")
    assert "The token is wrong" in page.inner_text("#message")
    assert page.evaluate("sessionStorage.length") == 0
    page.get_by_label("Token").fill("also wrong ✗")
    page.keyboard.press("Enter")
    assert page.is_visible("#sign-in")
    page.get_by_label("Token").fill(ADMIN)
    page.keyboard.press("Enter")
    page.get_by_role("link", name="tickets").click()
    page.wait_for_selector("#tenant:not([hidden])")
    page.reload()  # the tab keeps the token, no address and no cookie has it
    page.wait_for_selector("#tenant:not([hidden])")
    assert page.url == f"{service.url}/#tickets"
    assert page.evaluate("[document.cookie, JSON.stringify(localStorage)].join().includes('token')") is False
    assert ADMIN not in page.content()
    page.get_by_role("button", name="Sign out").click()
    assert page.is_visible("#sign-in")
    assert page.evaluate("sessionStorage.length") == 0
    page.reload()
    assert page.is_visible("#sign-in")


def test_a_newcomer_is_told_what_to_do(look, service):
    client = Client(service.url, "newcomer", service.tenant("newcomer"))
    page = look(token_of(client), width=390)
    page.wait_for_selector("text=No predictions yet")
    command = page.inner_text("#first-command")
    assert f"{service.url}/v1/newcomer/predict" in command
    assert token_of(client) not in command
    client.predict([1.0], id="it's")
    page.wait_for_selector("text=No labels yet")
    assert '\'{"id":"it\'\\\'\'s","y":"billing"}\'' in page.inner_text("#first-command")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_everything_can_be_reached_by_keys(look, tickets):
    page = look(ADMIN, "tickets")
    page.wait_for_selector("#tenant:not([hidden])")
    reached = set()
    for _ in range(32):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("(e => (e.closest('figure') || e.closest('[id]') || {}).id)(document.activeElement)"))
    assert {*FIGURES, "back", "out", "theme", "axis", "fate", "t-recent", "t-classes", "h-facts"} <= reached


def test_a_connection_that_is_gone_and_comes_back(look, tickets):
    page = look(token_of(tickets))
    page.wait_for_selector("#tenant:not([hidden])")
    page.context.set_offline(True)
    tickets.predict([1.0, 1.0], id="meanwhile")
    page.wait_for_selector("#live.off", timeout=30_000)
    assert page.is_visible("#headline")  # what was there stays
    page.context.set_offline(False)
    page.wait_for_selector("#live:not(.off)", timeout=30_000)
    assert page.locator("#t-recent tr", has_text="meanwhile").filter(has_text="waiting").count() == 1
