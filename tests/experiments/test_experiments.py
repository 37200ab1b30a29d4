"""Every experiment: its trials can be run, and its figures and claims work on what comes out."""

from __future__ import annotations

import re
from dataclasses import asdict, replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from prequential.comparisons import table1
from prequential.errors import BadSetting
from prequential.evaluation.scores import Scores
from prequential.experiments import NAMES, find_experiment
from prequential.experiments.experiment import Claim, Request, Results
from prequential.experiments.result_pages import claims_table
from prequential.experiments.runner import measures_of
from prequential.learners.charges import Charges
from prequential.registry import make_learner
from shared.planned_results import Planned, planned

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def rising(i, n, tags):
    """Every trial a little better than the one before, and every seed a little other than the first."""
    return 0.1, round(0.3 + 0.5 * i / n + 0.01 * tags["seed"], 2)


SCALES = ("small", "medium", "paper")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_trials_can_be_made(name, scale):
    request = Request(scale=scale, seeds=2, stream=find_experiment(name).STREAM)
    trials = find_experiment(name).trials(request)
    assert len({trial.name for trial in trials}) == len(trials) > 0
    assert min(trial.tier for trial in trials) == 1
    made_with = set()
    for trial in trials:
        run = trial.run_settings(request)
        settings = trial.settings.changed(seed=0, **({} if scale != "paper" else {"width": 64, "depth": 1}))
        if (run.learner, settings) not in made_with and len(made_with) < 12:
            make_learner(run.learner, 10, settings=settings)
            made_with.add((run.learner, settings))
        # what the experiments are about, but for the one that compares it
        assert trial.settings.method == ("paper" if name != "split-emnist-mixed" else trial.tags["method"])
        assert re.fullmatch(r"[\w=.,:()\[\] -]+", trial.name)


@pytest.mark.parametrize("scale", ["small", "medium"])
@pytest.mark.parametrize("name", NAMES)
def test_figures_and_claims(name, scale, tmp_path):
    results = planned(name, scale, rising, tmp_path)
    figures = find_experiment(name).figures(results)
    assert figures
    for captioned in figures.values():
        assert isinstance(captioned.figure, Figure)
        assert captioned.figure.axes[0].lines
        assert captioned.caption.endswith(".")
    claims = find_experiment(name).claims(results)
    assert claims
    for claim in claims:
        assert isinstance(claim, Claim)
        assert "nan" not in claim.found
        assert claim.criterion
        assert claim.measure
        assert claim.paper or "Not in the paper" in claim.says or "same behavior" in claim.says
        assert (claim.verdict == "cannot be said") == bool(claim.reason)
        assert len(claims_table([claim])) == 3


@pytest.mark.parametrize("name", NAMES)
def test_what_is_finished_is_drawn_and_concluded_from(name, tmp_path):
    results = planned(name, "paper", rising, tmp_path)
    random = np.random.default_rng(0)
    count = len(results.outcomes)
    kept = [(0,), (count - 1,), *(sorted(random.choice(count, (count + 1) // 2, replace=False)) for _ in range(2))]
    for some in kept:
        part = replace(results, outcomes=tuple(results.outcomes[i] for i in some))
        for claim in find_experiment(name).claims(part):
            assert "nan" not in claim.found
            if len(some) == 1 and count > 1:
                assert claim.verdict == "cannot be said"
        if len(some) == 1:
            assert find_experiment(name).figures(part)


# The accuracy at the start and at the end of trial i of n, in worlds of which each makes some claims true, others false.
WORLDS = {
    "all the same": lambda i, n, tags: (0.5, 0.5),
    "later trials are better": lambda i, n, tags: (0.1, 0.1 + round(0.8 * i / n, 2)),
    "earlier trials are better": lambda i, n, tags: (0.3, 0.9 - round(0.8 * i / n, 2)),
    "few are right": lambda i, n, tags: (0.12, 0.12),
    "gets worse": lambda i, n, tags: (0.9, 0.1),
    "the first is good": lambda i, n, tags: (0.9 if i == 0 else 0.1,) * 2,
    "the second is good": lambda i, n, tags: (0.9 if i == 1 else 0.1,) * 2,
    "each step helps half as much": lambda i, n, tags: (round(0.9 - 0.8 * 0.5**i, 3),) * 2,
    "as in the paper's table": lambda i, n, tags: (table1.PAPER.get(tags.get("learner"), 50) / 100,) * 2,
    "more is better, then no more": lambda i, n, tags: (0.1, _saturating(tags)),
    "less is better": lambda i, n, tags: (0.1, 1 - _saturating(tags)),
}
# Those that only real runs can decide, or that have a test of their own.
NOT_HERE = (
    "2-token improves in steps",
    "... and against",
    "Larger chunks like",
    "The best step size is",
    "It goes on improving",
    "The average accuracy varies little",
    "At first it gets worse",
    "More streams make it robust",
    "Good pi-transformers",
    "(Not in the paper.) The transformer has the shortest",
)


def _saturating(tags) -> float:
    size = next((tags[t] for t in ("window", "streams", "chunk", "width", "length", "stopped") if t in tags), 1)
    size = 1e9 if size == "never" else size
    return round(0.2 + 0.6 * size / (size + 30), 2) - (0.05 if tags.get("rate") not in (None, 0.18, 0.03) else 0)


@pytest.mark.parametrize("name", NAMES)
def test_claims_hold_in_one_world_and_fail_in_another(name, tmp_path):
    scale = "paper" if name not in ("cloc-pareto",) else "medium"
    stream = "features" if name.startswith("cloc") else None  # nothing is circular there
    verdicts: dict[str, set] = {}
    for plan in WORLDS.values():
        results = planned(name, scale, plan, tmp_path, seeds=2, stream=stream)
        for claim in find_experiment(name).claims(results):
            if not claim.reason.startswith(("not run", "no results")):
                verdicts.setdefault(claim.says, set()).add(claim.verdict)
    assert verdicts
    for says, found in verdicts.items():
        if not says.startswith(NOT_HERE):
            assert {"holds", "does not hold"} <= found, says


def test_what_costs_more_is_not_compared(tmp_path):
    results = planned("split-emnist-mixed", "paper", rising, tmp_path)
    dear = replace(
        results, outcomes=tuple(replace(o, macs=2e9 if "queries" in o.tags else 1e9) for o in results.outcomes)
    )
    for claim in find_experiment("split-emnist-mixed").claims(dear):
        assert ("costs more" in claim.reason) == ("keys" in claim.says or "these" in claim.says)


def test_one_seed_says_nothing(tmp_path):
    for name in ("cloc-features", "split-emnist", "cloc-table"):
        results = planned(name, "medium", rising, tmp_path, seeds=1)
        assert {claim.verdict for claim in find_experiment(name).claims(results)} == {"cannot be said"}


def test_short_runs_on_the_stand_in_say_nothing_about_context(tmp_path):
    results = planned("cloc-chunk", "small", rising, tmp_path)
    short = tuple(replace(o, summary={**o.summary, "count": 20_000}) for o in results.outcomes)
    claim = find_experiment("cloc-chunk").claims(replace(results, outcomes=short))[0]
    assert claim.reason == "the runs of 20,000 examples are too short: the context is not used yet"


def test_runs_shorter_than_the_papers_that_do_not_use_their_context_do_not_speak_against_it(tmp_path):
    def second(end, count):
        results = planned("split-emnist-two-token", "medium", lambda i, n, t: (0.1, end), tmp_path, seeds=3)
        short = tuple(replace(o, summary={**o.summary, "count": count}) for o in results.outcomes)
        return find_experiment("split-emnist-two-token").claims(replace(results, outcomes=short))[1]

    assert second(0.2, 30_000).reason == "the runs of 30,000 examples are too short: the context is not used yet"
    assert second(0.2, 100_000).verdict == "does not hold"
    assert second(0.9, 30_000).verdict == "holds"


def test_one_learning_rate_decides_nothing_about_the_best_one(tmp_path):
    """However clear the effect: another rate could be better for the side that is behind."""
    for name, tag in (
        ("cloc-window", "window"),
        ("cloc-streams", "streams"),
        ("cloc-width", "width"),
        ("cloc-chunk", "chunk"),
    ):
        results = planned(name, "medium", lambda i, n, tags: (0.1, 0.9 if tags[tag] == 256 else 0.2), tmp_path, seeds=3)  # noqa: B023
        one = find_experiment(name).claims(results.where(rate=0.18))
        assert "best of 1 learning rates, at least 3 needed" in {claim.reason for claim in one}
        assert not {claim.verdict for claim in one} & {"holds", "does not hold"}
        several = find_experiment(name).claims(results)
        assert not any("learning rates, at least" in claim.reason for claim in several)


def test_best_rates_at_the_edge_of_the_grid_say_nothing(tmp_path):
    """Higher rates are better for all widths: the best one may lie beyond those that were run."""
    results = planned("cloc-width", "medium", lambda i, n, tags: (0.1, 0.3 + 0.3 * tags["rate"]), tmp_path)
    wider, same = find_experiment("cloc-width").claims(results)
    assert same.reason.startswith("grid edge: the best rate of D 32, 64, 128, 256")
    assert wider.reason.startswith("grid edge: the side that is behind is best at rate 1.5")
    results = planned("cloc-width", "medium", lambda i, n, t: (0.1, 0.5 - abs(t["rate"] - 0.18) / 9), tmp_path)
    assert find_experiment("cloc-width").claims(results)[1].verdict == "holds"


def test_the_circular_one_is_no_verdict(tmp_path):
    results = planned("cloc-oracle", "medium", lambda i, n, tags: (0.12, 0.12), tmp_path)
    assert find_experiment("cloc-oracle").claims(results)[0].reason == "circular: `photos` was fitted to this number"


def test_a_cube_of_settings_has_an_interval_over_the_settings(tmp_path):
    """So one seed decides, where the effect is there in most samples of the settings."""

    def of(plan, kept=None):
        results = planned("cloc-pareto", "medium", plan, tmp_path, seeds=1, stream="features")
        return find_experiment("cloc-pareto").claims(replace(results, outcomes=results.outcomes[:kept]))

    def better(shallow, deep):  # the depth that pi and 2-token are best with
        best = {"pi": shallow, "two-token": deep}
        return lambda i, n, tags: (0.1, 0.9 if tags["depth"] == best[tags["model"]] else 0.3)

    shallower, same = of(better(1, 6))
    assert (shallower.verdict, same.verdict) == ("holds", "holds")
    assert (shallower.effect["seeds"], shallower.effect["of"]) == (60, "settings")
    assert shallower.effect["low"] <= shallower.effect["mean"] <= shallower.effect["high"]
    assert of(better(6, 1))[0].verdict == "does not hold"
    assert of(lambda i, n, tags: (0.1, 0.3 + 0.001 * (7 * i % 61)))[0].reason == "within the noise of the settings"
    assert of(lambda i, n, tags: (0.1, 0.9 if tags["model"] == "pi" else 0.3))[1].verdict == "does not hold"
    assert of(better(1, 6), kept=30)[0].reason == "one seed"  # 2-token has ten of them
    assert " over 60 settings" in "\n".join(claims_table([shallower]))


def test_low_variability_needs_five_seeds(tmp_path):
    def of(spread, seeds):
        results = planned(
            "split-emnist", "paper", lambda i, n, t: (0.5, 0.8 + spread * t["seed"]), tmp_path, seeds=seeds
        )
        return find_experiment("split-emnist").claims(results)[-1]

    assert of(0.002, 5).verdict == "holds"
    assert of(0.1, 3).reason == "3 of 5 seeds"
    assert of(0.1, 5).verdict == "does not hold"


@pytest.mark.parametrize("name", NAMES)
def test_the_head_says_what_it_shows(name):
    text = find_experiment(name).__doc__
    for word in ("Shows:", "Settings", "Hardware and time:", "Expected"):
        assert word in text


def test_unknown():
    with pytest.raises(BadSetting, match=r"unknown experiment 'split-emist'; did you mean 'split-emnist'?"):
        find_experiment("split-emist")


def test_table_1_says_which_rows_are_out_of_order(tmp_path):
    results = planned("cloc-table", "paper", rising, tmp_path, stream="features")
    shares = {
        "acm": 0.6,
        "transformer(method=paper,recent_window=0)": 0.59,
        "kalman": 0.3,
        "replay-streams(hidden_sizes=[256])": 0.2,
    }
    kept = [replace(o, accuracy=shares.get(o.tags["learner"], 0.1)) for o in results.outcomes]
    ahead, code, order = find_experiment("cloc-table").claims(replace(results, outcomes=tuple(kept)))
    assert ahead.found.startswith("transformer 59.0 ± 0.0 %, acm 60.0 ± 0.0 %; in nats ")
    assert "; over the last tenth " in ahead.found
    assert "replay-streams (learned) is not above acm, kalman;" in order.found
    assert (ahead.verdict, order.verdict) == ("does not hold", "does not hold")
    assert code.measure == "cumulative log-loss, in nats an example"
    without = tuple(o for o in kept if o.tags["learner"] != "acm")
    assert find_experiment("cloc-table").claims(replace(results, outcomes=without))[0].reason == "not run: acm"


class Changes(Planned):
    """An outcome that is right for a tenth of the examples, and after a place for nine tenths."""

    def scores(self) -> Scores:
        place = self.summary["place"]
        scores = Scores(10)
        correct = np.where(np.arange(1000) < place, np.arange(1000) % 10 == 0, np.arange(1000) % 10 != 0)
        zeros = np.zeros(1000, np.int64)
        scores.update(0, Charges(np.where(correct, 0.2, 2.0), zeros, correct, np.full(1000, 0.5)))
        return scores


@pytest.mark.parametrize(
    ("two", "pi", "holds"),
    [
        ((300, 400, 700), (300, 310, 320), True),
        ((300, 310, 320), (300, 400, 700), False),
        ((300, 400, 1000), (300, 310, 320), None),  # one has not changed
    ],
)
def test_phases_are_where_the_accuracy_rises(two, pi, holds, tmp_path):
    experiment = find_experiment("cloc-two-token")
    outcomes = []
    for model, places in (("two-token", two), ("pi", pi)):
        for seed, place in enumerate(places):
            tags, summary = {"model": model, "seed": seed}, {"place": place, "count": 500_000}
            outcome = Changes(tags, 0.5, 1.0, 1.0, 1.0, None, summary, tmp_path)
            outcomes.append(replace(outcome, measures=measures_of(experiment, outcome)))
    results = Results(tuple(outcomes), Request(scale="medium", seeds=3, stream="photos"))
    claim = experiment.claims(results)[0]
    assert claim.holds is holds
    if holds is not None:
        at = [int(place) for place in claim.values["2-token"].values()]
        assert at == pytest.approx([place + 50 for place in two], abs=15)  # half of the tenth that is averaged over
    assert asdict(claim)["criterion"]
