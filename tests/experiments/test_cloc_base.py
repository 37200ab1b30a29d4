"""The paper's base model beside a small one: its sizes, what it costs, and when larger counts as better."""

from __future__ import annotations

from pathlib import Path

import pytest

from prequential.experiments import cloc_base
from prequential.experiments.costs import macs_of
from prequential.experiments.experiment import Outcome, Request, Results
from prequential.experiments.run_all import PLAN

MEDIUM = Request(scale="medium", seeds=1, stream="photos")


def results(base: list[float], small: list[float], examples: int = 1_000_000) -> Results:
    """What came out, by seed."""
    made = {"base": (base, 1.2e15), "small": (small, 7e12)}
    return Results(
        tuple(
            Outcome({"model": model, "seed": seed}, share, 2.0, 1.0, 7200.0, macs, {"count": examples}, Path())
            for model, (shares, macs) in made.items()
            for seed, share in enumerate(shares)
        ),
        MEDIUM,
    )


def test_the_base_model_is_the_papers():
    small, base = cloc_base.trials(MEDIUM)
    s = base.settings
    assert (s.depth, s.width, s.window, s.chunk_size, s.num_streams, s.learning_rate) == (4, 1024, 512, 256, 8, 0.03)
    assert s.method == small.settings.method == "paper"
    assert base.run == small.run == {"examples": 1_000_000}
    assert (small.tier, base.tier) == (1, 4)
    assert (PLAN[-1].name, PLAN[-1].seeds) == ("cloc-base", 1)


def test_it_costs_what_its_head_says():
    small, base = (macs_of(trial, MEDIUM) for trial in cloc_base.trials(MEDIUM))
    assert small == pytest.approx(7.0e12, rel=0.01)
    assert base == pytest.approx(1.15e15, rel=0.01)
    assert "7.0e12" in cloc_base.__doc__
    assert "1.15e15" in cloc_base.__doc__
    hours = [base / speed / 3600 for speed in (30e9, 25e9)]
    assert 10.5 < hours[0] < hours[1] < 13


def test_small_is_tiny():
    request = Request(scale="small", seeds=1, stream="photos")
    assert sum(macs_of(trial, request) for trial in cloc_base.trials(request)) < 1e11


@pytest.mark.parametrize(
    ("base", "small", "verdict", "reason"),
    [
        ([0.55, 0.56, 0.55], [0.5, 0.5, 0.5], "holds", ""),
        ([0.51, 0.51, 0.51], [0.5, 0.5, 0.5], "does not hold", ""),
        ([0.55, 0.50, 0.53], [0.5, 0.5, 0.5], "cannot be said", "within seed noise"),
        ([0.9], [0.1], "cannot be said", "one seed"),
        ([], [0.5, 0.5], "cannot be said", "no results for base"),
    ],
)
def test_when_larger_is_better(base, small, verdict, reason):
    (claim,) = cloc_base.claims(results(base, small))
    assert (claim.verdict, claim.reason) == (verdict, reason)
    assert ("base 1.2e+15 multiply-accumulates and 2 hours" in claim.found) == bool(base)
    assert "nan" not in claim.found


def test_a_short_run_says_nothing():
    (claim,) = cloc_base.claims(results([0.6, 0.6], [0.5, 0.5], examples=5_000))
    assert claim.reason.startswith("the runs of 5,000 examples are too short")
