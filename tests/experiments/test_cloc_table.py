"""Table 1: every row is tuned with the same effort on a stream that is not reported, then reported with what was best."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from prequential.comparisons.table1 import OWN, PAPER
from prequential.errors import BadInput, BadSetting
from prequential.experiments import cloc_features, cloc_table, run_all, runner
from prequential.experiments.cloc_common import SMALL, TOO_FEW
from prequential.experiments.experiment import Outcome, Request, Results, Trial
from prequential.experiments.shared_runs import key_of
from prequential.experiments.stored import decided, read_all
from prequential.experiments.tuning import LONG_EXAMPLES, TUNED, TUNING_EXAMPLES, chosen, tuned_learner
from prequential.registry import make_learner
from prequential.streams.open import open_stream

MEDIUM = Request(scale="medium", seeds=3, stream="photos")
TUNING = cloc_table.trials(MEDIUM)


def outcome(trial: Trial, accuracy: float, log_loss: float = 2.0) -> Outcome:
    summary = {"count": trial.run["examples"], "classes": 713}
    return Outcome(trial.tags, accuracy, log_loss, 1.0, 1.0, 1e12, summary, Path(), {"last_tenth": accuracy})


def tuned(place: dict[str, int] | None = None) -> Results:
    """What comes out of tuning if the value at a place among a row's values is best, by default the third."""
    found = []
    for trial in TUNING:
        option, values = TUNED[trial.tags["learner"]]
        distance = abs(sorted(values).index(trial.tags[option]) - (place or {}).get(trial.tags["learner"], 2))
        found.append(outcome(trial, 0.4 - 0.02 * distance))
    return Results(tuple(found), MEDIUM)


def reported(tuning: Results, shares: dict[str, float], keep=lambda trial: True, **more) -> Results:
    """The same with the table, in which rows have these accuracies, a little other with each seed."""
    found = [
        outcome(trial, shares[trial.tags["learner"]] + 0.001 * trial.tags["seed"], **more)
        for trial in cloc_table.trials_after(MEDIUM, tuning)
        if keep(trial)
    ]
    return replace(tuning, outcomes=(*tuning.outcomes, *found))


PAPERS = {row: share / 100 for row, share in PAPER.items()}


class TestTrials:
    def test_every_row_that_has_settings_has_as_many_tuning_trials(self):
        counts = Counter(trial.tags["learner"] for trial in TUNING)
        assert set(counts) == set(PAPER) - {"last-label"}
        assert set(counts.values()) == {5}
        assert {trial.run["examples"] for trial in TUNING} == {TUNING_EXAMPLES}
        assert TUNING_EXAMPLES > TOO_FEW
        assert len({trial.learner for trial in TUNING}) == len(TUNING)

    @pytest.mark.parametrize("row", TUNED)
    def test_the_first_value_is_what_the_row_has_by_itself(self, row):
        option, values = TUNED[row]
        assert tuned_learner(row, values[0]) == row
        learners = [make_learner(tuned_learner(row, value), 5, settings=SMALL) for value in values]
        of = [getattr(learner, "settings", None) for learner in learners]
        found = [getattr(s, option) if s else learner.config()[option] for learner, s in zip(learners, of, strict=True)]
        assert found == list(values)

    @pytest.mark.parametrize("given", ["photos", "photos(seed=3)"])
    def test_the_tuning_stream_is_not_reported(self, given):
        request = replace(MEDIUM, stream=given)

        def streams(trials):
            runs = {(trial.run_settings(request).stream, trial.settings.seed) for trial in trials}
            return {open_stream(stream, seed=seed).read(0, 50).x.tobytes() for stream, seed in runs}

        tuning, table = streams(cloc_table.trials(request)[:1]), streams(cloc_table.trials_after(request, tuned()))
        assert len(tuning) == 1
        assert len(table) == (3 if given == "photos" else 1)  # the long streams begin as the others do
        assert not tuning & table

    def test_the_best_value_on_the_tuning_stream_is_reported(self):
        place = {"er": 0, "kalman": 4, OWN: 3}
        table = cloc_table.trials_after(MEDIUM, tuned(place))
        for row, (option, values) in TUNED.items():
            best = sorted(values)[place.get(row, 2)]
            trials = [trial for trial in table if trial.tags["learner"] == row]
            assert {trial.learner for trial in trials} == {tuned_learner(row, best)}
            assert {trial.tags[option] for trial in trials} == {best}
            assert {(t.tags["length"], t.run["examples"]) for t in trials} == {(n, n) for n in (500_000, LONG_EXAMPLES)}
            assert sorted(t.tags["seed"] for t in trials) == [0, 0, 1, 1, 2, 2]
        assert len(table) == 2 * 3 * len(PAPER)
        tiers = {t.tags["learner"]: t.tier for t in table if t.tags["length"] == LONG_EXAMPLES}
        assert tiers == {row: 5 if row == "acm" else 4 for row in PAPER}
        long = next(t for t in table if t.tags["length"] == LONG_EXAMPLES)
        assert len(open_stream(long.run["stream"])) == LONG_EXAMPLES

    def test_rows_that_are_best_as_they_are_share_runs_with_cloc_features(self):
        place = {row: sorted(values).index(values[0]) for row, (_, values) in TUNED.items()}
        table, features = (
            {key_of(trial.run_settings(MEDIUM), trial.settings) for trial in trials}
            for trials in (cloc_table.trials_after(MEDIUM, tuned(place)), cloc_features.trials(MEDIUM))
        )
        assert len(table & features) == 4 * 3  # the transformer, no image, no attention and the last label

    def test_a_row_whose_tuning_is_not_complete_is_not_reported(self):
        without = tuple(o for o in tuned().outcomes if o.tags.get("drift_rate") != 1.0)
        results = replace(tuned(), outcomes=without)
        assert chosen(results, "kalman") is None
        rows = {trial.tags["learner"] for trial in cloc_table.trials_after(MEDIUM, results)}
        assert rows == set(PAPER) - {"kalman"}

    def test_other_scales_run_every_row_as_it_is(self):
        for scale in ("small", "paper"):
            request = replace(MEDIUM, scale=scale, seeds=1)
            assert [trial.learner for trial in cloc_table.trials(request)] == list(PAPER)
            assert cloc_table.trials_after(request, Results((), request)) == []


class TestClaims:
    def test_they_are_decided_from_the_table_and_not_from_tuning(self):
        ahead, code, order = cloc_table.claims(tuned())
        assert {claim.verdict for claim in (ahead, code, order)} == {"cannot be said"}
        assert ahead.reason.startswith("not run: last-label, er, acm")
        ahead, _, order = cloc_table.claims(reported(tuned(), PAPERS))
        assert (ahead.verdict, order.verdict) == ("holds", "holds")
        assert "tuned for accuracy to transformer learning_rate 0.18, replay-streams learning_rate 0.003" in ahead.found
        ahead, _, order = cloc_table.claims(reported(tuned(), {**PAPERS, "kalman": 0.7}))
        assert (ahead.verdict, order.verdict) == ("does not hold", "does not hold")
        assert "replay-streams is not above kalman" in order.found

    def test_the_side_that_is_behind_must_not_be_at_an_edge(self):
        at_edge = tuned({"kalman": 4})
        ahead, _, order = cloc_table.claims(reported(at_edge, {**PAPERS, "kalman": 0.57}))
        assert ahead.reason == "grid edge: kalman is behind, and best at drift_rate 100, the last of those tried"
        assert "kalman drift_rate 100 (highest tried)" in ahead.found
        assert order.verdict == "does not hold"  # others are misplaced whatever becomes of it
        ahead, _, order = cloc_table.claims(reported(at_edge, {**PAPERS, "kalman": 0.65}))
        assert ahead.verdict == "does not hold"  # tuned further it could only be still better
        assert "kalman drift_rate 100 (highest tried)" in ahead.found
        ahead, _, _ = cloc_table.claims(reported(tuned({OWN: 0}), {**PAPERS, "kalman": 0.65}))
        assert ahead.reason.startswith("grid edge: transformer is behind, and best at learning_rate 0.02")
        _, _, order = cloc_table.claims(reported(at_edge, {**PAPERS, "kalman": 0.25}))
        assert order.reason.startswith("grid edge: kalman is behind")

    def test_they_are_about_the_longest_table_that_is_complete(self):
        def found(keep):
            return cloc_table.claims(reported(tuned(), PAPERS, keep))[0]

        assert cloc_table.reported(reported(tuned(), PAPERS)).examples == LONG_EXAMPLES
        one_seed = found(lambda trial: trial.tags["length"] == 500_000 or trial.tags["seed"] == 0)
        assert one_seed.verdict == "holds"
        assert "with 2,000,000 examples transformer 59.0 %, replay-streams 38.0 %" in one_seed.found
        without = found(lambda trial: trial.tags["length"] == 500_000 or trial.tags["learner"] != "acm")
        assert without.verdict == "holds"
        assert len(without.values["transformer"]) == 3

    def test_figures_of_tuning_alone(self):
        figures = cloc_table.figures(tuned())
        assert list(figures) == ["tuning"]
        assert "kalman drift_rate 0.01, 0.1, 1, 10, 100" in figures["tuning"].caption


def test_results_of_earlier_versions_are_decided():
    """They have neither stages nor lengths."""
    (saved,) = read_all([Path(__file__).parents[1] / "data" / "format-1" / "cloc-table"])
    claims = decided(saved)
    assert len(claims) == 3
    assert claims[0].reason == "one seed"
    assert "tuned" not in claims[0].found


# The runner: trials that follow from the results of others.

WINDOWS = (2, 30)
DIGITS = {"tasks": 2, "task_length": 40}


def two_stages(calls: list[int]) -> SimpleNamespace:
    """An experiment whose second stage is the better of two windows."""

    def trial(window, tags, tier=1):
        return Trial(tags=tags, settings=SMALL, learner=f"majority(window={window})", run=DIGITS, tier=tier)

    def after(request, results):
        calls.append(len(results))
        tried = [o for o in results.outcomes if "best" not in o.tags]
        best = max(tried, key=lambda o: o.accuracy).tags["window"] if len(tried) == len(WINDOWS) else None
        return [] if best is None else [trial(best, {"best": best, "seed": 0}, tier=2)]

    return SimpleNamespace(
        __doc__="Two stages.",
        STREAM="digits",
        trials=lambda request: [trial(window, {"window": window, "seed": 0}) for window in WINDOWS],
        trials_after=after,
        figures=lambda results: {},
        claims=lambda results: [],
    )


def test_the_second_stage_follows_and_can_be_resumed(tmp_path, monkeypatch):
    calls: list[int] = []
    experiment = two_stages(calls)
    monkeypatch.setattr(runner, "find_experiment", lambda name: experiment)
    request = Request(scale="small", seeds=1, stream="digits")

    def run(**how):
        results = runner.run_experiment("cloc-table", request, tmp_path / "out", jobs=0, **how)
        return results, json.loads((tmp_path / "out" / "results.json").read_text())["missing"]

    with pytest.raises(BadInput, match="none of the 2 runs"):
        run(partial=True)
    results, missing = run(tier=1)  # the first stage alone, as if it had been killed then
    best = max(results.outcomes, key=lambda o: o.accuracy).tags["window"]
    assert (len(results), missing) == (2, [f"best={best},seed=0"])
    first = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").glob("window=*/scores.json")}
    for how in ({"partial": True}, {"budget": 1e-9}):  # nothing is run
        results, missing = run(**how)
        assert (len(results), len(missing)) == (2, 1)
    results, missing = run()
    assert (len(results), missing) == (3, [])
    assert results.outcomes[2].tags == {"best": best, "seed": 0}
    assert results.outcomes[2].accuracy == max(o.accuracy for o in results.outcomes[:2])
    assert {path: path.stat().st_mtime_ns for path in first} == first  # nothing was run again
    calls.clear()
    results, _ = run(partial=True)
    assert (len(results), calls) == (3, [2, 3])


def test_only_runs_those_with_the_values_that_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "find_experiment", lambda name: two_stages([]))
    request = Request(scale="small", seeds=1, stream="digits")

    def run(folder, **only):
        results = runner.run_experiment("cloc-table", request, tmp_path / folder, jobs=0, only=only)
        return [outcome.tags for outcome in results.outcomes]

    assert run("part", window=["30"]) == [{"window": 30, "seed": 0}]
    assert run("part", window=["2", "7"], seed=["0"]) == [{"window": 2, "seed": 0}, {"window": 30, "seed": 0}]
    assert len(run("whole", seed=["0"])) == 3  # of the second stage, too
    with pytest.raises(BadInput, match="none of the 2 runs"):  # nor any that a run beside it could be taken for
        run("elsewhere/nothing", window=["30"], seed=["1"])
    with pytest.raises(BadSetting, match="has a tag rate, expected one of window, seed"):
        run("part", rate=["1"])


def test_all_runs_the_long_table_too(tmp_path, monkeypatch):
    """No trial of the first stage has the tier of the long runs."""
    tiers = []
    monkeypatch.setattr(run_all, "run_experiment", lambda *_, tier, **how: tiers.append(tier) or ())
    run_all.run_all(100.0, tmp_path, plan=[run_all.Step("cloc-table", "medium", 3)])
    assert tiers == [1, 2, 3, 4, 5]
    assert {trial.tier for trial in TUNING} == {1, 2, 3}
