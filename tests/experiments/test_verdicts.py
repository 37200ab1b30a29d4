"""The rule by which claims are decided."""

from __future__ import annotations

import pytest

from prequential.experiments.verdicts import claim_from_json, decide, deviation_interval, judge, t_interval


def verdict(values, least=0.05, **more):
    return judge(
        "More helps.",
        arms={"few": dict.fromkeys(range(len(values)), 0.3), "many": {i: 0.3 + v for i, v in enumerate(values)}},
        effect=lambda few, many: many - few,
        least=least,
        criterion="at least 5 points more",
        **more,
    )


@pytest.mark.parametrize(
    ("values", "expected", "reason"),
    [
        ([0.1, 0.11, 0.12], "holds", ""),
        ([-0.1, -0.11, -0.12], "does not hold", ""),
        ([0.01, 0.011, 0.012], "does not hold", ""),  # an effect, but less than counts
        ([0.1, 0.0, 0.12], "cannot be said", "within seed noise"),
        ([0.5], "cannot be said", "one seed"),
        ([], "cannot be said", "no results for few, many"),
    ],
)
def test_verdicts(values, expected, reason):
    claim = verdict(values)
    assert (claim.verdict, claim.reason) == (expected, reason)
    assert claim.effect["seeds"] == len(values)


def test_seeds_are_paired():
    """The seeds differ by far more than the effect, which is the same with each."""
    few, many = {0: 0.1, 1: 0.5, 2: 0.9}, {0: 0.17, 1: 0.56, 2: 0.95, 3: 0.99}
    claim = judge(
        "More helps.", arms={"few": few, "many": many}, effect=lambda a, b: b - a, least=0.03, criterion="3 points"
    )
    assert claim.verdict == "holds"
    assert claim.effect["seeds"] == 3
    assert claim.values["many"]["3"] == 0.99


def test_a_reason_goes_before_the_numbers():
    claim = verdict([0.1, 0.11, 0.12], unless="grid edge")
    assert (claim.verdict, claim.reason, claim.holds) == ("cannot be said", "grid edge", None)


def test_intervals_are_those_of_the_tables():
    found = t_interval([1.0, 2.0, 3.0, 4.0])
    assert (found.mean, found.high) == (2.5, pytest.approx(2.5 + 3.182 * 1.29099 / 2, abs=1e-3))
    assert decide(found, 0.0)[0] == "holds"
    assert deviation_interval([1.0, 2.0, 3.0, 4.0, 5.0]).high == pytest.approx(1.5811 * (4 / 0.7107) ** 0.5, rel=0.02)


def test_what_an_earlier_version_wrote():
    for holds, expected in ((True, "holds"), (False, "does not hold"), (None, "cannot be said")):
        assert claim_from_json({"says": "x", "found": "y", "holds": holds}).verdict == expected
