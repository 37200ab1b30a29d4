"""Differences from a moving average: causal, robust, the same however rows come, in NumPy and in the native core."""

from __future__ import annotations

import numpy as np
import pytest

from prequential import ArrayStream, Learner, evaluate
from prequential.errors import BadCheckpoint, BadSetting
from prequential.learners.moving_average import MovingAverage
from prequential.native.experts import native_experts
from prequential.settings import Settings

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(300, 4))
NATIVE = native_experts()
ENGINES = [None, *([] if NATIVE is None else [NATIVE])]


@pytest.mark.parametrize("native", ENGINES)
def test_it_is_an_exponential_moving_average_of_the_rows_before(native):
    x = np.concatenate([np.zeros((200, 1)), np.ones((64, 1))]) + 0.3 * RANDOM.normal(size=(264, 1))
    rows, _ = MovingAverage(1, half_life=16, native=native).widen(x)
    assert np.array_equal(rows[:, :1], x)
    average = (rows[:, 0] - rows[:, 1])[1:]
    rate, expected = 1 - 0.5 ** (1 / 16), x[0, 0]
    mean = []
    for t, value in enumerate(x[:-1, 0], 1):
        expected += max(rate, 1 / t) * (value - expected)
        mean.append(expected)
    # the second value decides how far is far, and does not move it; from then on nothing here is that far away
    np.testing.assert_allclose(average[100:], mean[100:], atol=0.02)


@pytest.mark.parametrize("native", ENGINES)
def test_rows_may_come_in_any_sizes(native):
    start = MovingAverage(4, half_life=16, native=native)
    whole, after = start.widen(X)
    parts, now = [], start
    for part in np.split(X, [1, 2, 40, 41, 200]):
        each = now.widen_each(part[:1])
        rows, now = now.widen(part)
        assert np.array_equal(each[0], rows[0])
        parts.append(rows)
    assert np.array_equal(np.concatenate(parts), whole)
    assert all(np.array_equal(now.state_dict()[name], value) for name, value in after.state_dict().items())


@pytest.mark.parametrize("native", ENGINES)
def test_a_broken_value_hardly_moves_it_and_a_jump_does(native):
    x = X[:, :1].copy()
    x[100] = 1e30
    x[200:] += 1000
    difference = MovingAverage(1, half_life=16, native=native).widen(x)[0][:, 1]
    assert np.abs(difference[101:200]).max() < 6
    assert difference[200] > 900
    assert np.abs(difference[290:]).max() < 100


@pytest.mark.parametrize("native", ENGINES)
def test_missing_values_change_nothing(native):
    x = X.copy()
    x[::3] = np.nan
    rows, after = MovingAverage(4, half_life=16, native=native).widen(x)
    without, other = MovingAverage(4, half_life=16, native=native).widen(x[~np.isnan(x[:, 0])])
    assert np.isnan(rows[::3]).all()
    assert np.array_equal(rows[~np.isnan(x[:, 0])], without)
    assert np.array_equal(after.state_dict()["mean"], other.state_dict()["mean"])


@pytest.mark.skipif(NATIVE is None, reason="no native core")
def test_both_engines_agree():
    x = X.copy()
    x[RANDOM.random(x.shape) < 0.1] = np.nan
    x[50, 0], x[:100, 1] = 1e20, 7.0
    ours, theirs = (MovingAverage(4, half_life=16, native=native).widen(x)[0] for native in (None, NATIVE))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_state_of_another_width_is_refused():
    with pytest.raises(BadCheckpoint, match=r"has shape \(3,\), expected \(4,\)"):
        MovingAverage(4, half_life=16).load_state_dict(MovingAverage(3, half_life=16).state_dict())


def test_labels_that_depend_on_the_trend_are_predicted_from_inputs_alone():
    """y says whether x is above its average of late; labels come in batches, so that none helps."""
    level = np.cumsum(RANDOM.normal(size=1500)) * 0.5
    x = level + 2 * RANDOM.normal(size=1500)
    recent = np.array([x[max(0, t - 40) : t].mean() if t else x[0] for t in range(1500)])
    stream = ArrayStream(x[:, None], (x > recent).astype(int).tolist())
    small = {"width": 16, "depth": 1, "window": 32, "num_streams": 2, "num_query_heads": 2}
    accuracy = {
        half_life: evaluate(stream, Learner(2, change_half_life=half_life, **small), label_batches=100).accuracy
        for half_life in (0, 16)
    }
    assert accuracy[16] > 0.85
    assert accuracy[16] > accuracy[0] + 0.08


def test_it_needs_standardized_vectors():
    assert Settings(method="paper").change_half_life is None
    with pytest.raises(BadSetting, match=r"change_half_life \(4\) needs standardized vectors, but x has shape \(2,\)"):
        Learner(2, change_half_life=4, standardize=False).learn([1.0, 2.0], 0)


@pytest.mark.parametrize(("width", "wide"), [(64, 2), (65, 1)])
def test_features_the_network_sees(width, wide):
    learner = Learner(2, depth=1, width=16, window=8)
    learner.learn(np.zeros(width), 0)
    assert learner._parts.inputs.features == 2 * wide * width
