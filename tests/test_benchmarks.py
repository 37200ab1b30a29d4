"""The benchmark suite runs from end to end, in small."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports files of the suite as its command does, and forgets them afterwards: their names are short."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


def test_one_command_writes_a_table_numbers_and_pictures(
    load: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, limit, growth = load("run"), load("limit"), load("growth")
    small = load("workloads").DIGITS.changed(depth=1, window=20, chunk_size=10, num_streams=2)

    def measure(quick: bool) -> list[Any]:
        return [limit.of_limit(small, rounds=2)]

    monkeypatch.setattr(limit, "measure", measure)
    monkeypatch.setattr(growth, "AXES", growth.AXES[:1])
    found = run.main(["growth", "limit", "--quick", "--longest", "2048", "--out", str(tmp_path)])
    (row,) = found["limit"]
    assert row.ratio > 0
    assert sum(row.shares.values()) == pytest.approx(1, abs=1e-6)
    assert min(row.shares[part] for part in ("attention", "projections and MLP", "optimizer", "data")) > 0
    written = json.loads((tmp_path / "benchmarks.json").read_text())
    assert written["parts"]["limit"][0]["ratio"] == row.ratio
    assert len(written["parts"]["growth"]) == 2
    assert "growth over window C" in (tmp_path / "benchmarks.md").read_text()
    assert {path.name for path in tmp_path.glob("*.png")} == {"ratios.png", "time.png", "growth.png"}


def test_products_are_those_of_the_work_and_nothing_else(load: Callable[[str], Any]) -> None:
    products = load("products")
    linear, conv = torch.nn.Linear(5, 7), torch.nn.Conv2d(3, 4, 3, padding=1)
    images = torch.randn(2, 3, 6, 6)

    def work() -> None:
        linear(torch.randn(11, 5)).relu().sum().backward()
        conv(images).tanh().sum().backward()

    found = products.Products.of(work)
    assert found.kinds() == {"mm": 2, "convolution": 1, "convolution_backward": 1}
    # forward and the gradient of the weights; nobody needs that of the inputs
    assert found.macs() == 2 * 11 * 5 * 7 + 2 * 2 * 6 * 6 * 4 * 3 * 9
    again = products.Products.of(found.runner())
    assert again.macs() == found.macs()
    # as the library itself passes on where it needs a shape
    shared = products.Like.of(torch.zeros(1).expand(3, 4)).make()
    assert shared.shape == (3, 4)
    assert shared.stride() == (0, 0)


def test_rows_know_whether_they_reach_their_targets(load: Callable[[str], Any]) -> None:
    measuring = load("measuring")
    seconds = {"slow": [4.0, 6.0, 5.0], "fast": [2.0, 2.0, 1.0]}
    row = measuring.compared("row", seconds, slow="slow", fast="fast", target=2.5)
    assert (row.ratio, row.best, row.reached) == (3.0, 4.0, True)
    assert not measuring.Row(name="growth", ratio=1.2, target=1.0, unit="exponent", lower_is_better=True).reached
    assert not measuring.Row(name="less accurate", ratio=3.0, target=2.0, holds=False).reached
    assert measuring.missing("row", "why", target=1.0).reached is None


def test_exponents_are_slopes(load: Callable[[str], Any]) -> None:
    exponent = load("growth").exponent
    sizes = [10, 100, 1000]
    assert exponent(sizes, np.power(sizes, 1.5)) == pytest.approx(1.5)
    assert exponent(sizes, [3.0, 3.0, 3.0]) == pytest.approx(0)


def test_peers_take_the_same_step(load: Callable[[str], Any]) -> None:
    pytest.importorskip("transformers")
    peers = load("peers")
    work = load("workloads").TWO_TOKEN.changed(width=64, depth=1, window=16, chunk_size=4)
    rows = peers.on_chunks(work, rounds=2)
    assert rows[0].ratio > 0
    assert "pip install" in rows[1].note or rows[1].ratio > 0


@pytest.mark.filterwarnings("ignore::prequential.errors.ColumnWarning")
def test_words_decide_the_queue_of_a_ticket(load: Callable[[str], Any]) -> None:
    tickets = load("tickets")
    made = tickets.make_tickets(300, seed=1)
    assert {len(column) for column in made.values()} == {300}
    own = [{word for word in tickets.TOPICS[queue].split()} for queue in made["queue"]]
    hits = [
        any(word.startswith(stem) for word in body.split() for stem in own[i]) for i, body in enumerate(made["body"])
    ]
    assert np.mean(hits) > 0.9
    assert tickets.measure("text:64", [0], 40).startswith("| text:64 | ")


def test_one_row_at_a_time_is_measured_inside_and_outside_the_network(
    load: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = load("one_at_a_time")
    monkeypatch.setattr(bench, "AXES", {"window": (16, 32)})
    monkeypatch.setattr(bench, "INPUTS", ("dict", "observe"))
    threads = torch.get_num_threads()
    try:
        feeds = bench.main(["--quick", "--out", str(tmp_path)])
    finally:
        torch.set_num_threads(threads)
    assert [feed.rows for feed in feeds] == ["list", "list", "dict", "observe"]
    for feed in feeds:
        chunk = feed.learner.settings.chunk_size
        assert len(feed.turns) == 2
        assert feed.network > 0
        (turn,) = feed.quiet()
        assert turn.total == min(other.total for other in feed.turns)
        assert len(turn.predict) == chunk == len(turn.learn) + 1
        assert 0 < turn.outside * chunk < turn.total
    lines = (tmp_path / "one_at_a_time.md").read_text().splitlines()
    assert len(lines) == 2 + len(feeds)
    assert (tmp_path / "one_at_a_time.png").stat().st_size > 1000
