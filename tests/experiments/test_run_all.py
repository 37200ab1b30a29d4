"""`prequential experiment all`: what fits into a budget, in the order of value."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from prequential.cli.app import main
from prequential.errors import BadInput
from prequential.experiments import NAMES, run_all
from prequential.experiments.budget import EXAMPLES_PER_SECOND, MACS_PER_SECOND, estimate_seconds
from prequential.experiments.costs import macs_of
from prequential.experiments.experiment import PAPER, Request, over_seeds
from prequential.experiments.run_all import PLAN, Step


def trials(request):
    return [
        *over_seeds(request, PAPER, {"rate": 1}, run={"examples": 1000}),
        *over_seeds(request, PAPER, {"rate": 2}, run={"examples": 1000}, tier=2),
    ]


@pytest.fixture
def calls(monkeypatch):
    made = []

    def run_experiment(name, request, directory, **how):
        made.append((how["tier"], name, request.scale, request.stream))
        if name == "cloc-table":
            raise BadInput("none of its runs finished")
        return None if name == "cloc-chunk" else ()

    monkeypatch.setattr(run_all, "run_experiment", run_experiment)
    streams = {"cloc-oracle": "photos", "split-emnist": "emnist"}
    monkeypatch.setattr(
        run_all, "find_experiment", lambda name: SimpleNamespace(STREAM=streams.get(name, "photos"), trials=trials)
    )
    return made


def test_tier_by_tier_in_the_order_of_the_plan(calls, tmp_path):
    plan = [Step("split-emnist", "paper", 5), Step("cloc-oracle", "medium", 3), Step("cloc-table", "medium", 3)]
    assert run_all.run_all(1000.0, tmp_path, plan=plan) == ["cloc-oracle"]
    assert [call[:2] for call in calls] == [
        (1, "cloc-oracle"),
        (1, "cloc-table"),
        (2, "cloc-oracle"),
        (2, "cloc-table"),
    ]
    calls.clear()
    run_all.run_all(1000.0, tmp_path, plan=plan, streams=["emnist:x.npz"])
    assert calls[0] == (1, "split-emnist", "paper", "emnist:x.npz")


def test_it_stops_when_interrupted_and_when_the_time_is_up(calls, tmp_path):
    run_all.run_all(1000.0, tmp_path, plan=[Step("cloc-chunk", "medium", 3), Step("cloc-oracle", "medium", 3)])
    assert [call[1] for call in calls] == ["cloc-chunk"]
    assert run_all.run_all(0.0, tmp_path, plan=[Step("cloc-oracle", "medium", 3)]) == []


def test_the_plan_has_every_experiment():
    assert sorted(step.name for step in PLAN if not step.data) == sorted(NAMES)
    assert {step.data for step in PLAN} == {"", "geo-images"}


def test_time_is_estimated_from_the_runs_that_are_finished(tmp_path):
    request = Request(scale="medium", seeds=1, stream="photos")
    trial = trials(request)[0]
    directory = tmp_path / "one" / "runs" / trial.name
    macs = macs_of(trial, request)
    assert estimate_seconds(trial, request, directory) == pytest.approx(macs / MACS_PER_SECOND)
    other = tmp_path / "two" / "runs" / "x,seed=0"
    other.mkdir(parents=True)
    scores = {"finished": True, "count": 10, "classes": 2, "accuracy": 0.5, "macs_per_example": 1e6, "seconds": 5.0}
    (other / "scores.json").write_text(json.dumps(scores))
    assert estimate_seconds(trial, request, directory) == pytest.approx(macs / 2e6)
    for i, per_example in enumerate([1e3] * 9 + [macs / 1000] * 5):
        at = tmp_path / "two" / "runs" / f"y,seed={i}"
        at.mkdir()
        seconds = 10 * per_example / (1e3 if per_example == 1e3 else 2e6)
        (at / "scores.json").write_text(json.dumps({**scores, "macs_per_example": per_example, "seconds": seconds}))
    assert estimate_seconds(trial, request, directory) == pytest.approx(macs / 2e6)  # by those of the same size alone
    directory.mkdir(parents=True)
    (directory / "progress.json").write_text(json.dumps({"position": 750, "length": 1000}))
    assert estimate_seconds(trial, request, directory) == pytest.approx(macs / 2e6 / 4)
    kalman = over_seeds(request, PAPER, {"learner": "kalman"}, learner="kalman", run={"examples": 1000})[0]
    at = tmp_path / "one" / "runs" / kalman.name
    assert estimate_seconds(kalman, request, at) == pytest.approx(1000 / EXAMPLES_PER_SECOND)


def test_without_a_budget_it_says_so(capsys):
    with pytest.raises(SystemExit):
        main(["experiment", "all"])
    assert "say how long it may run, such as --budget 10h" in capsys.readouterr().err
