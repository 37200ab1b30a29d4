"""Every experiment: its trials can be run, and its figures and claims work on what comes out."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from prequential.comparisons import table1
from prequential.errors import BadSetting
from prequential.evaluation.scores import Scores
from prequential.experiments import NAMES, find_experiment
from prequential.experiments.experiment import Claim, Outcome, Request, Results
from prequential.learners.charges import Charges
from prequential.registry import make_learner

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Made(Outcome):
    """An outcome whose scores are drawn at random, a little better the longer its tags are."""

    def scores(self) -> Scores:
        rng = np.random.default_rng(len(str(self.tags)))
        scores = Scores(10, np.arange(0, 600, 30))
        correct = rng.random(600) < np.linspace(0.1, 0.9, 600)
        zeros = np.zeros(600, np.int64)
        scores.update(0, Charges(np.where(correct, 0.2, 2.0), zeros, correct, np.full(600, 0.5)))
        return scores


def made(name: str, scale: str, tmp_path) -> tuple[Results, list]:
    experiment = find_experiment(name)
    request = Request(scale=scale, seeds=2, stream=experiment.STREAM)
    trials = experiment.trials(request)
    outcomes = []
    for i, trial in enumerate(trials):
        blank = Made(trial.tags, 0.0, 0.0, 0.0, 1.0, 10.0 ** (9 + i % 5), {}, tmp_path)
        summary = blank.scores().to_dict()
        numbers = {key: summary[key] + 0.001 * i for key in ("accuracy", "log_loss", "bits")}
        outcomes.append(Made(trial.tags, *numbers.values(), 1.0, 10.0 ** (9 + i % 5), summary, tmp_path))
    return Results(tuple(outcomes), request), trials


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("name", NAMES)
def test_trials_figures_and_claims(name, scale, tmp_path):
    results, trials = made(name, scale, tmp_path)
    assert len({trial.name for trial in trials}) == len(trials) > 0
    made_with = set()
    for trial in trials:
        run = trial.run_settings(results.request)
        settings = trial.settings.changed(seed=0, **({} if scale == "small" else {"width": 64}))
        if (run.learner, settings) not in made_with:
            make_learner(run.learner, 10, settings=settings)
            made_with.add((run.learner, settings))
        # what the experiments are about, but for the one that compares it
        assert trial.settings.method == ("paper" if name != "split-emnist-mixed" else trial.tags["method"])
        assert re.fullmatch(r"[\w=.,:()\[\] -]+", trial.name)
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


class Planned(Outcome):
    """An outcome whose accuracy goes evenly from `summary["start"]` to `summary["end"]`."""

    def scores(self) -> Scores:
        scores = Scores(10, np.arange(0, 6000, 300))
        correct = (
            np.diff(np.floor(np.cumsum(np.linspace(self.summary["start"], self.summary["end"], 6000))), prepend=0) > 0
        )
        zeros = np.zeros(6000, np.int64)
        scores.update(0, Charges(np.where(correct, 0.2, 2.0), zeros, correct, np.full(6000, 0.5)))
        return scores


# The accuracy at the start and at the end of trial i of n, in worlds of which each makes some claims true and others false.
WORLDS = {
    "all the same": lambda i, n, tags, random: (0.5, 0.5),
    "later trials are better": lambda i, n, tags, random: (0.1, 0.1 + 0.8 * i / n),
    "earlier trials are better": lambda i, n, tags, random: (0.3, 0.9 - 0.8 * i / n),
    "only the first is good": lambda i, n, tags, random: (0.9 if i == 0 else 0.1,) * 2,
    "only the last is good": lambda i, n, tags, random: (0.9 if i == n - 1 else 0.1,) * 2,
    "as in the paper's table": lambda i, n, tags, random: (table1.PAPER.get(tags.get("learner"), 50) / 100,) * 2,
    **{f"random {seed}": lambda i, n, tags, random: random.uniform(0.05, 0.95, 2) for seed in range(8)},
}
OF_PHASES = "2-token improves in steps whose places are chance, pi more reliably."  # tested below, with real steps
UNDECIDED = {"small": ["Learned from scratch, the network and the context work together."], "paper": []}


@pytest.mark.parametrize(
    ("name", "scale"),
    # not that of the paper for cloc-pareto: it has hundreds of trials, and the same claims
    [(name, scale) for name in NAMES for scale in ("small", "paper") if (name, scale) != ("cloc-pareto", "paper")],
)
def test_every_claim_holds_in_one_world_and_fails_in_another(name, scale, tmp_path):
    experiment = find_experiment(name)
    request = Request(scale=scale, seeds=1, stream=experiment.STREAM)
    trials = experiment.trials(request)
    verdicts: dict[str, set] = {}
    for number, (world, accuracy) in enumerate(WORLDS.items()):
        random = np.random.default_rng(number)
        outcomes = []
        for i, trial in enumerate(trials):
            start, end = accuracy(i, len(trials), trial.tags, random)
            macs = 10.0 ** random.integers(8, 13) if world.startswith("random") else 1e9
            blank = Planned(trial.tags, 0.0, 0.0, 0.0, 1.0, macs, {"start": start, "end": end}, tmp_path)
            summary = {**blank.scores().to_dict(), **blank.summary}
            numbers = [summary[key] for key in ("accuracy", "log_loss", "bits")]
            outcomes.append(Planned(trial.tags, *numbers, 1.0, macs, summary, tmp_path))
        for claim in experiment.claims(Results(tuple(outcomes), request)):
            verdicts.setdefault(claim.says, set()).add(claim.holds)
    for says, found in verdicts.items():
        if says in UNDECIDED[scale]:
            assert found == {None}
        elif says != OF_PHASES:
            assert found == {True, False}, says


@pytest.mark.parametrize("name", NAMES)
def test_the_head_says_what_it_shows(name):
    text = find_experiment(name).__doc__
    for word in ("Shows:", "Settings", "Hardware and time:", "Expected"):
        assert word in text


def test_unknown():
    with pytest.raises(BadSetting, match=r"unknown experiment 'split-emist'; did you mean 'split-emnist'?"):
        find_experiment("split-emist")


def test_table_1_says_which_rows_are_out_of_order(tmp_path):
    results, _ = made("cloc-table", "paper", tmp_path)
    shares = {
        "acm": 0.6,
        "transformer(method=paper,recent_window=0)": 0.59,
        "kalman": 0.3,
        "replay-streams(hidden_sizes=[256])": 0.2,
    }
    kept = [replace(o, accuracy=shares[o.tags["learner"]]) for o in results.outcomes if o.tags["learner"] in shares]
    ahead, order = find_experiment("cloc-table").claims(replace(results, outcomes=tuple(kept)))
    assert ahead.found == "transformer 59.0%, best of the others acm 60.0%"
    assert order.found == (
        "2 of 6 pairs of rows are in the paper's order; replay-streams (learned) is not above acm, kalman; "
        "kalman is not above acm; transformer is not above acm"
    )
    assert (ahead.holds, order.holds) == (False, False)


def test_small_streams_are_judged_by_their_last_tenth(tmp_path):
    results, _ = made("cloc-table", "small", tmp_path)
    latest = results.latest()
    scores = results.outcomes[0].scores()
    last = scores.curve(60)
    assert last["examples"][-1] == 60
    assert latest[0] == last["accuracy"][-1] > scores.accuracy  # it gets better
    assert find_experiment("cloc-table").claims(results)[0].found.startswith("over the last tenth transformer ")


@pytest.mark.parametrize("name", ["cloc-table", "cloc-features", "cloc-window"])
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_where_they_are_judged_by_it_the_average_is_given_too(name, scale, tmp_path):
    results, _ = made(name, scale, tmp_path)
    for claim in find_experiment(name).claims(results):
        assert claim.found.startswith("over the last tenth ") == (scale == "small")
        assert ("; over all of it " in claim.found) == (scale == "small")


class Changes(Outcome):
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
    outcomes = [
        Changes({"model": model, "seed": seed}, 0.5, 1.0, 1.0, 1.0, None, {"place": place}, tmp_path)
        for model, places in (("two-token", two), ("pi", pi))
        for seed, place in enumerate(places)
    ]
    results = Results(tuple(outcomes), Request(scale="small", seeds=3, stream="photos"))
    claim = find_experiment("cloc-two-token").claims(results)[0]
    assert claim.holds is holds
    if holds is not None:
        at = [int(place) for place in re.findall(r"\d+", claim.found.partition("halfway at ")[2].partition(", pi")[0])]
        assert at == pytest.approx([place + 50 for place in two], abs=15)  # half of the tenth that is averaged over
