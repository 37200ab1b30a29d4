import numpy as np
import pytest

from prequential import Learner, Settings
from prequential.errors import BadCheckpoint, BadSetting
from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.experts.boosting import BINS, quantile_cuts
from prequential.learners.transformer.experts.native_boosting import make_grower
from prequential.learners.transformer.experts.trees import KEPT, TreesExpert


def expert(width=3, K=2, num_trees=20):
    return TreesExpert(num_trees=num_trees, width=width, num_classes=K, grower=make_grower(log_probs=False))


def batch(x, y, K=2, lags=None):
    return Batch(x.astype(np.float32), y, np.full(len(x), K), lags, raw=x)


def queries(x, K=2):
    return Queries(x.astype(np.float32), np.full(len(x), K), raw=x)


def table(n, seed=0):
    """The label is whether exactly one of two features is large."""
    x = np.random.default_rng(seed).random((n, 3))
    return x, ((x[:, 0] > 0.3) ^ (x[:, 2] > 0.6)).astype(np.int64)


def learned(x, y, chunk=32, **sizes):
    trees = expert(**sizes)
    parts = [trees.commit(batch(x[at : at + chunk], y[at : at + chunk])) for at in range(0, len(x), chunk)]
    return trees, np.concatenate(parts, 1)[0]


def test_it_learns_a_small_table_from_a_few_hundred_rows():
    x, y = table(640)
    _, log_probs = learned(x, y)
    assert (log_probs.argmax(1) == y)[320:].mean() > 0.95
    assert -log_probs[320:][np.arange(320), y[320:]].mean() < 0.2


def test_scores_that_are_too_sure_get_a_smaller_scale():
    x, y = table(640)
    steady, _ = learned(x, y)
    noisy, _ = learned(x, np.random.default_rng(1).permutation(y))
    assert noisy._log_scale < -0.1
    assert steady._log_scale > -0.05


def test_predicting_changes_nothing_and_rows_do_not_depend_on_each_other():
    x, y = table(96)
    trees, _ = learned(x[:64], y[:64])
    before = trees.state_dict()
    together = trees.predict(queries(x[64:])).log_probs
    alone = [trees.predict(queries(x[i : i + 1])).log_probs for i in range(64, 96)]
    np.testing.assert_array_equal(np.concatenate(alone, 1), together)
    np.testing.assert_array_equal(trees.extend(batch(x[64:80], y[64:80])), together[:, :16])
    np.testing.assert_array_equal(trees.commit(batch(x[64:], y[64:])), together)
    assert trees.state_dict()["num_rows"] == before["num_rows"] + 32


def test_rows_whose_labels_came_late_are_predicted_by_the_trees_of_then():
    x, y = table(448)
    trees, _ = learned(x[:256], y[:256])
    asked = trees.predict(queries(x[256:356])).log_probs
    found = []
    for start in range(256, 352, 32):
        position = np.arange(start - 256, start - 224)
        found.append(trees.commit(batch(x[start : start + 32], y[start : start + 32], lags=position)))
    np.testing.assert_array_equal(np.concatenate(found, 1), asked[:, :96])
    # the last four rows begin a chunk; they come one by one
    for i in range(352, 356):
        one = batch(x[i : i + 1], y[i : i + 1], lags=np.array([i - 256]))
        np.testing.assert_array_equal(trees.extend(one), asked[:, i - 256 : i - 255])


def test_what_is_older_than_all_that_is_kept_is_predicted_by_the_oldest():
    x, y = table(640)
    trees, _ = learned(x[:608], y[:608])
    assert np.isfinite(trees.commit(batch(x[608:], y[608:], lags=np.full(32, 600)))).all()
    assert trees._num_grown - trees._versions[0].trees.stop <= KEPT


@pytest.mark.parametrize("rows", [20, 500])
def test_it_resumes_to_the_bit_from_a_state_of_one_size(rows):
    x, y = table(600)
    trees, _ = learned(x[:rows], y[:rows])
    trees.extend(batch(x[rows : rows + 3], y[rows : rows + 3]))
    other = expert()
    other.load_state_dict(trees.state_dict())
    larger = learned(x, y)[0].state_dict()
    rest = batch(x[rows : rows + 40], y[rows : rows + 40])
    np.testing.assert_array_equal(other.commit(rest), trees.commit(rest))
    assert other.state_dict()["num_grown"] > 0
    for name, value in other.state_dict().items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, trees.state_dict()[name])
            assert value.nbytes == larger[name].nbytes


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("child", 0, "no such child"), ("feature", 3, "within 0 to 2"), ("num_leaves", 99, "within 0 to 16")],
)
def test_trees_that_cannot_be_are_refused(name, value, said):
    trees, _ = learned(*table(200))
    state = trees.state_dict()
    state[name][...] = value
    with pytest.raises(BadCheckpoint, match=said):
        expert().load_state_dict(state)
    with pytest.raises(BadCheckpoint, match="shape"):
        expert(width=4).load_state_dict(trees.state_dict())


def test_labels_appear_at_any_time_and_beyond_64():
    x, trees = np.arange(300.0)[:, None], expert(width=1, K=128)
    y = np.arange(300) // 3
    for start in range(0, 300, 30):
        y_part, seen = y[start : start + 30], np.maximum(y[start : start + 30], start // 3)
        given = Batch(x[start : start + 30], y_part, seen, raw=x[start : start + 30])
        log_probs = trees.commit(given)
        np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1, rtol=1e-5)
    asked = Queries(x[:2], np.array([100, 100]), raw=x[[30, 290]])
    probs = np.exp(trees.predict(asked).log_probs[0])
    assert probs[0].argmax() < 63
    assert probs[1].argmax() >= 63
    np.testing.assert_allclose(probs[1, 63:100], probs[1, 63])  # for trees they are one class
    trees.grow(256)
    assert trees.predict(asked).log_probs.shape == (1, 2, 256)


def test_large_values_that_differ_little_are_told_apart():
    x, y = table(640)
    times = 1.7e9 + 10 * x
    _, log_probs = learned(times, y)
    assert (log_probs.argmax(1) == y)[320:].mean() > 0.95


def test_cuts_are_between_values_and_at_quantiles():
    assert quantile_cuts(np.float32([3, 1, np.nan, 1, 2])).tolist() == [1.5, 2.5]
    cuts = quantile_cuts(np.arange(6400, dtype=np.float32))
    assert len(cuts) == BINS - 1
    assert np.abs(np.diff(cuts) - 200).max() < 1
    skewed = quantile_cuts(np.float32([0] * 6000 + list(range(400))))
    assert len(skewed) <= BINS - 1
    assert skewed[0] == 0.5


def test_a_learner_with_trees_learns_the_same_one_by_one_and_in_blocks():
    x, y = table(70)
    settings = Settings(width=8, num_query_heads=2, depth=1, window=8, num_streams=2, num_trees=10)
    blocks, single = (Learner(2, settings=settings) for _ in range(2))
    blocks.learn_many(x, y.tolist())
    for row, label in zip(x, y.tolist(), strict=True):
        single.predict_proba(row)
        single.learn(row, label)
    state, other = (learner._parts.ensemble.others["trees"].state_dict() for learner in (blocks, single))
    np.testing.assert_array_equal(state["value"], other["value"])
    assert state["num_grown"] == other["num_grown"] > 0


def test_trees_need_vectors():
    with pytest.raises(BadSetting, match=r"num_trees \(5\) needs vectors, but x has shape \(6, 6\)"):
        Learner(2, num_trees=5).learn(np.zeros((6, 6)), 0)
    with pytest.raises(BadSetting, match=r"num_trees \(10001\) must be at most 10,000"):
        Settings(num_trees=10_001)
