"""Runs that several experiments need are made once."""

from __future__ import annotations

from prequential.experiments import find_experiment
from prequential.experiments.experiment import Request, Results
from prequential.experiments.shared_runs import key_of
from prequential.runs.run_settings import RunSettings
from prequential.settings import Settings


def test_experiments_at_medium_scale_share_runs():
    request = Request(scale="medium", seeds=3, stream="photos")
    keys = {}
    for name in ("cloc-features", "cloc-stopping", "cloc-window", "cloc-streams", "cloc-width"):
        experiment = find_experiment(name)
        trials = experiment.trials(request)
        if hasattr(experiment, "trials_after"):
            trials += experiment.trials_after(request, Results((), request))
        keys[name] = {key_of(trial.run_settings(request), trial.settings) for trial in trials}
        assert len(keys[name]) == len(trials)
    common = set.intersection(*keys.values())
    assert len(common) == 3  # the model as it is, with three seeds
    assert len(keys["cloc-window"] & keys["cloc-width"]) >= 5 * 3  # all rates


def test_the_paper_s_plain_split_emnist_is_shared_with_mixed():
    request = Request(scale="paper", seeds=3, stream="emnist:x.npz")
    plain, mixed = (
        {key_of(trial.run_settings(request), trial.settings) for trial in find_experiment(name).trials(request)}
        for name in ("split-emnist", "split-emnist-mixed")
    )
    assert plain < mixed


def test_what_results_depend_on():
    def key(learner="transformer", **settings):
        return key_of(RunSettings(stream="digits", learner=learner), Settings(**settings))

    assert key(engine="torch") == key()
    assert key(width=64) != key()
    assert key("kalman", width=64) == key("kalman")
    assert key("kalman", seed=1) != key("kalman")
    assert key("majority(window=5)") != key("majority")
