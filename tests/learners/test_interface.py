"""The names of the interface: one and many, and those of earlier versions, which warn."""

from __future__ import annotations

import numpy as np
import pytest

import prequential
from prequential import LastLabel, Majority
from prequential.storage.checkpoint import same_state

X, Y = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], ["a", "b", "a"]


@pytest.fixture
def learner():
    made = Majority(4)
    made.learn_many(X, Y)
    return made


def test_one_is_a_dict_by_label_and_many_an_array(learner):
    p, log_p = learner.predict_proba_one(X[0]), learner.predict_log_proba_one(X[0])
    assert list(p) == list(log_p) == ["a", "b"]
    assert learner.predict_proba_many(X)[1, 0] == pytest.approx(p["a"])
    assert np.exp(log_p["never seen"]) == pytest.approx(p["never seen"]) == pytest.approx(p.unseen)
    assert learner.predict_many(X) == [learner.predict_one(x) for x in X] == ["a"] * 3


def test_where_no_class_is_free_another_label_is_impossible():
    learner = Majority(2)
    learner.learn_many(X, Y)
    assert learner.predict_proba_one(X[0])["c"] == 0
    assert learner.predict_log_proba_one(X[0])["c"] == -np.inf


def test_before_the_first_example_no_label_is_predicted():
    assert LastLabel(2).predict_one(X[0]) is None
    assert LastLabel(2).predict_many(X) == [None] * 3


def test_learn_one_is_learn_many_of_one(learner):
    other = Majority(4)
    for x, y in zip(X, Y, strict=True):
        other.learn_one(x, y)
    assert same_state(learner.state_dict(), other.state_dict())


def test_names_of_version_0_1_warn(learner):
    with pytest.warns(DeprecationWarning, match="predict_log_proba is deprecated, use predict_log_proba_many"):
        assert np.array_equal(learner.predict_log_proba(X), learner.predict_log_proba_many(X))
    with pytest.warns(DeprecationWarning, match="state is deprecated, use state_dict"):
        state = learner.state()
    other = Majority(4)
    with pytest.warns(DeprecationWarning, match="load_state is deprecated, use load_state_dict"):
        other.load_state(state)
    assert same_state(learner.state_dict(), other.state_dict())


def test_the_public_names_exist():
    for name in prequential.__all__:
        assert getattr(prequential, name) is not None
    assert prequential.__version__[0].isdigit()
    assert prequential.testing.check_learner is prequential.check_learner
