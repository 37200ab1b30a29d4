"""A call that fails after some of its chunks were learned leaves every baseline as it was."""

from __future__ import annotations

import numpy as np
import pytest

from prequential.baselines import ACM, ExperienceReplay, Kalman, KalmanNetwork, ReplayStreams, SklearnLearner
from prequential.baselines.fifo import FIFOBuffer
from prequential.baselines.kalman_filter import KalmanFilter
from prequential.baselines.neighbor_index import NeighborIndex
from prequential.errors import BadSetting
from prequential.storage.checkpoint import same_state

CASES = {  # how it is made, and what fails inside a call
    "er": (lambda: ExperienceReplay(3, batch=10, buffer=45), (FIFOBuffer, "push")),
    "er-adrep": (lambda: ExperienceReplay(3, batch=10, buffer=25, adrep=True, period=1), (FIFOBuffer, "push")),
    "acm": (lambda: ACM(3, block=10), (NeighborIndex, "search_and_add")),
    "acm-half": (lambda: ACM(3, block=10, half=True), (NeighborIndex, "search_and_add")),
    "kalman": (lambda: Kalman(3, block=10), (KalmanFilter, "observe")),
    "kalman-network": (lambda: KalmanNetwork(3, hidden_sizes=(4,), chunk_size=10), (KalmanFilter, "observe")),
    "replay-streams": (lambda: ReplayStreams(3, hidden_sizes=(4,), chunk_size=10), (ReplayStreams, "_step")),
    "sklearn": (lambda: SklearnLearner(3, batch=10), (SklearnLearner, "_fit")),
}
NEEDS = {"acm": "faiss", "sklearn": "sklearn"}


@pytest.mark.parametrize("learned", [0, 63])
@pytest.mark.parametrize("error", [BadSetting, KeyboardInterrupt])
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_learned(monkeypatch, name, error, learned):
    if name.partition("-")[0] in NEEDS:
        pytest.importorskip(NEEDS[name.partition("-")[0]])
    make, (kind, method) = CASES[name]
    random = np.random.default_rng(0)
    x = random.normal(size=(140, 4))
    y = (x[:, 0] > 0).astype(int).tolist()
    learner, other = make(), make()
    for one in (learner, other):
        if learned:
            one.learn_many(x[:learned], y[:learned])
    before, real, calls = learner.state_dict(), getattr(kind, method), []

    def fails(self, *arguments, **named):
        calls.append(self)
        if len(calls) == 3:
            raise error("the third time")
        return real(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(kind, method, fails)
        with pytest.raises(error):
            learner.learn_many(x[learned:], y[learned:])
    assert len(calls) == 3
    assert same_state(before, learner.state_dict())
    a, b = learner.observe(x[learned:], y[learned:]), other.observe(x[learned:], y[learned:])
    assert np.array_equal(a.log_loss, b.log_loss)
