"""Every baseline through the battery that every learner must pass."""

from __future__ import annotations

import pytest

from prequential.baselines import (
    ACM,
    ExperienceReplay,
    Kalman,
    KalmanNetwork,
    LastLabel,
    Majority,
    Refit,
    ReplayStreams,
    RiverLearner,
    SklearnLearner,
)
from prequential.testing.learners import CHECKS

LEARNERS = {
    "last-label": lambda classes: LastLabel(classes),
    "majority": lambda classes: Majority(classes, window=20),
    "er": lambda classes: ExperienceReplay(classes, batch=10, buffer=50, learning_rate=0.1),
    "er-searching": lambda classes: ExperienceReplay(
        classes, hidden_sizes=(8,), batch=10, buffer=50, learning_rate=0.1, polrs=True, adrep=True, period=2
    ),
    "acm": lambda classes: ACM(classes, block=16),
    "replay-streams": lambda classes: ReplayStreams(classes, hidden_sizes=(8,), chunk_size=10, num_streams=3),
    "kalman": lambda classes: Kalman(classes, block=16),
    "kalman-sequential": lambda classes: Kalman(classes, block=1, gamma=0.95),
    "kalman-network": lambda classes: KalmanNetwork(classes, hidden_sizes=(8,), chunk_size=10, num_streams=3),
    "river": lambda classes: RiverLearner(classes, model="naive_bayes.GaussianNB"),
    "river-tree": lambda classes: RiverLearner(classes, model="tree.HoeffdingTreeClassifier", standardize=True),
    "sklearn": lambda classes: SklearnLearner(classes, batch=16),
    "refit": lambda classes: Refit(classes, model="sklearn:naive_bayes.GaussianNB", lags=2, growth=0.5),
    "refit-lightgbm": lambda classes: Refit(
        classes, settings={"n_estimators": 5, "min_child_samples": 5}, growth=0.5, window=100
    ),
}
NEEDS = {
    "acm": "faiss",
    "river": "river",
    "river-tree": "river",
    "sklearn": "sklearn",
    "refit": "sklearn",
    "refit-lightgbm": "lightgbm",
}
NOT_SO = {
    ("acm", "check_memory"): "it remembers every example: that is what the method is",
    ("last-label", "check_past_counts"): "only the last label counts, by definition",
    ("river-tree", "check_memory"): "a tree of River grows with the stream",
}


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_battery(check, name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    if (name, check.__name__) in NOT_SO:
        pytest.skip(NOT_SO[name, check.__name__])
    check(LEARNERS[name])
