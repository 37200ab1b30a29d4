from __future__ import annotations

import numpy as np
import pytest

from prequential.baselines import OracleRow
from prequential.errors import BadInput, BadSetting
from prequential.registry import make_learner
from prequential.testing import learners as checks

# what of the battery asks for no prediction and no loss
BATTERY = [checks.check_state_is_a_snapshot, checks.check_same_again, checks.check_inputs_are_copied]
BATTERY += [checks.check_save_load, checks.check_bad_input, checks.check_memory]


@pytest.mark.parametrize("check", BATTERY, ids=lambda check: check.__name__)
def test_battery(check):
    check(lambda classes: OracleRow(classes, window=7))


def test_is_right_where_the_label_was_among_the_last():
    y = np.random.default_rng(0).integers(9, size=400).tolist()
    charges = OracleRow(9, window=4).observe(np.zeros((400, 1)), y)
    assert charges.correct.tolist() == [y[t] in y[max(0, t - 4) : t] for t in range(400)]
    order = list(dict.fromkeys(y))
    assert charges.predicted.tolist() == [order.index(y[t]) if right else -1 for t, right in enumerate(charges.correct)]
    assert np.isinf(charges.log_loss).all()


def test_goes_on_where_it_was():
    x = np.zeros((6, 1))
    learner, again = make_learner("oracle(window=2)", 3), make_learner("oracle(window=2)", 3)
    learner.observe(x[:3], ["a", "b", "a"])
    learner.learn(x[3], "c")
    again.load_state_dict(learner.state_dict())
    for one in (learner, again):
        assert one.observe(x[4:], ["b", "c"]).correct.tolist() == [False, True]
        assert one.position == 6


def test_cannot_predict():
    learner = OracleRow(3)
    learner.learn([0.0], "a")
    with pytest.raises(BadInput, match="the oracle cannot predict"):
        learner.predict_proba([0.0])


def test_bad_settings():
    with pytest.raises(BadSetting, match=r"windows \(\[0\]\)"):
        OracleRow(3, window=0)
    with pytest.raises(BadSetting, match=r"seed \(-3\)"):
        OracleRow(3, seed=-3)
