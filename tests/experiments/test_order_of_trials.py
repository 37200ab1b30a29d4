"""What is run first: which trials of a sweep come at once, and which follow from the results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prequential.experiments import find_experiment
from prequential.experiments.experiment import Request, Results
from shared.planned_results import SWEEPS, planned

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_medium_sweeps_begin_with_what_is_worth_most():
    request = Request(scale="medium", seeds=3, stream="photos")
    trials = find_experiment("cloc-window").trials(request)
    first = [trial.tags for trial in trials if trial.tier == 1]
    assert first == [{"window": c, "rate": 0.18, "seed": s} for s in range(3) for c in (16, 64, 256, 512, 1024)]
    assert {trial.tags["rate"] for trial in trials} == {0.02, 0.06, 0.18, 0.5, 1.5}
    assert [trial.tier for trial in trials] == sorted(trial.tier for trial in trials)
    assert {trial.tags.get("model") for trial in trials if trial.tier == 2} == {
        None
    }  # 2-token costs more, and is later
    assert {trial.tags.get("model") for trial in trials if trial.tier == 3} == {None, "two-token"}


@pytest.mark.parametrize("name", SWEEPS)
def test_medium_sweeps_go_on_with_the_best_rate_of_each_value(name, tmp_path):
    """Its other seeds are what a claim at the best rates needs."""
    best = {16: 0.06, 64: 0.5, 1: 0.06, 2: 0.5, 32: 0.5}  # of some of the values; of the others it is the usual one
    experiment, tag = find_experiment(name), name.removeprefix("cloc-")
    results = planned(
        name,
        "medium",
        lambda i, n, tags: (0.1, 0.4 + 0.2 * (tags["rate"] == best.get(tags[tag], 0.18))),
        tmp_path,
        seeds=3,
    )
    after = experiment.trials_after(results.request, results)
    assert {(trial.tags[tag], trial.tags["rate"]) for trial in after if trial.tier == 2} == {
        (value, rate) for value, rate in best.items() if value in results.values(tag)
    }
    assert {trial.tags["seed"] for trial in after} == {1, 2}
    grid = [trial.name for trial in [*experiment.trials(results.request), *after]]
    models = 2 if name in ("cloc-window", "cloc-streams") else 1
    assert len(set(grid)) == len(grid) == models * len(results.values(tag)) * 5 * 3  # all values, rates and seeds
    of_two_token = {
        (trial.tags[tag], trial.tags["rate"]) for trial in after if trial.tier == 3 and "model" in trial.tags
    }
    values = results.values(tag) if models == 2 else []
    assert of_two_token == {(value, best.get(value, 0.18)) for value in values}


def test_the_replay_grid_goes_on_with_the_best_step_size_of_each_number_of_streams(tmp_path):
    best = {1: 1e-4, 8: 1e-3}  # otherwise 5e-4
    experiment, name = find_experiment("split-emnist-replay"), "split-emnist-replay"
    results = planned(
        name,
        "medium",
        lambda i, n, t: (0.1, 0.4 + 0.2 * (t["step"] == best.get(t["streams"], 5e-4))),
        tmp_path,
        seeds=3,
    )
    first = experiment.trials(results.request)
    assert [trial.tags["seed"] for trial in first] == [0] * 5 * 4
    after = experiment.trials_after(results.request, results)
    sooner = [(trial.tags["streams"], trial.tags["step"], trial.tags["seed"]) for trial in after if trial.tier == 2]
    assert sorted(sooner) == [(e, best.get(e, 5e-4), seed) for e in (1, 2, 4, 8, 16) for seed in (1, 2)]
    assert len({trial.name for trial in [*first, *after]}) == len(first) + len(after) == 5 * 4 * 3
    for scale in ("small", "paper"):
        request = Request(scale=scale, seeds=2, stream="emnist")
        assert experiment.trials_after(request, Results((), request)) == []
        assert {trial.tags["seed"] for trial in experiment.trials(request)} == {0, 1}


def test_the_grid_goes_on_where_the_best_rate_is_its_last(tmp_path):
    """Up to a rate that is no better, or nine times the highest."""
    experiment, request = find_experiment("cloc-streams"), Request(scale="medium", seeds=2, stream="photos")

    def results_if(rates):
        accuracy = {1: {1.5: 0.7, 4.5: 0.8, 13.5: 0.9}, 8: {0.02: 0.7}}  # by streams; otherwise 0.5
        results = planned(
            "cloc-streams",
            "medium",
            lambda i, n, t: (accuracy.get(t["streams"], {}).get(t["rate"], 0.5),) * 2,
            tmp_path,
        )
        one = results.outcomes[0]
        beyond = [
            replace(one, accuracy=accuracy[1][rate], tags={"streams": 1, "rate": rate, "seed": seed})
            for rate in rates
            for seed in range(2)
        ]
        return replace(results, outcomes=(*results.outcomes, *beyond))

    def beyond(results):
        trials = experiment.trials_after(request, results)
        new = [trial for trial in trials if trial.tags["rate"] > 1.5 or trial.tags["rate"] < 0.02]
        assert all(trial.settings.learning_rate == trial.tags["rate"] for trial in new)
        return {(trial.tags.get("model", "pi"), trial.tags["streams"], trial.tags["rate"], trial.tier) for trial in new}

    low = {("pi", 8, 0.006667, 2), ("two-token", 8, 0.006667, 3)}
    assert beyond(results_if([])) == {("pi", 1, 4.5, 2), ("two-token", 1, 4.5, 3), *low}
    assert beyond(results_if([4.5])) == {("pi", 1, 13.5, 2), ("two-token", 1, 4.5, 3), *low}
    assert beyond(results_if([4.5, 13.5])) == {("two-token", 1, 4.5, 3), *low}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_that_has_no_best_rate_yet_goes_on_late(name):
    request = Request(scale="medium", seeds=3, stream="photos")
    experiment = find_experiment(name)
    after = experiment.trials_after(request, Results((), request))
    assert {trial.tier for trial in after} == {3, 4}
    lowest = [trial.tags for trial in after if trial.tier == 3]  # one claim is about these
    assert {tags["rate"] for tags in lowest} == {0.02}
    assert len(lowest) == 2 * 2  # the smallest and the largest value, two seeds
    for scale in ("small", "paper"):
        assert experiment.trials_after(Request(scale=scale, seeds=3, stream="photos"), Results((), request)) == []
