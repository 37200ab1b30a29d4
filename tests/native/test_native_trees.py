import copy

import numpy as np
import pytest

from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.experts.native_boosting import make_grower
from prequential.learners.transformer.experts.trees import TreesExpert
from prequential.native.native_trees import tree_functions

needs_native = pytest.mark.skipif(tree_functions() is None, reason="there is no native core")


def rows(n, width, K, seed=0):
    """Few different values, some of them missing, and labels that need several features."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, width)).round(1)
    y = np.abs(3 * x[:, 0] + x[:, -1] + random.normal(size=n) / 4).astype(np.int64) % K
    x[random.random(x.shape) < 0.02] = np.nan
    return x, y


def batch(x, y, K, lags=None):
    return Batch(x.astype(np.float32), y, np.full(len(x), K), lags, raw=x)


@needs_native
@pytest.mark.parametrize(("K", "width"), [(2, 5), (7, 20), (12, 1), (70, 2)])
def test_trees_of_the_core_equal_those_of_numpy_at_any_length(K, width):
    x, y = rows(300, width, K)
    in_numpy = TreesExpert(num_trees=5, width=width, num_classes=K)
    in_core = TreesExpert(num_trees=5, width=width, num_classes=K, grower=make_grower(log_probs=True))
    for start, stop in ((0, 3), (3, 64), (64, 96), (96, 200), (200, 300)):
        given = batch(x[start:stop], y[start:stop], K, np.arange(stop - start) if start == 64 else None)
        np.testing.assert_allclose(in_core.commit(given), in_numpy.commit(given), atol=1e-5)
    equal(in_core.state_dict(), in_numpy.state_dict())
    np.testing.assert_array_equal(in_core._forest.scores, in_numpy._forest.scores)
    assert in_core._num_grown > 10  # so that the oldest were taken out


@needs_native
def test_a_copy_has_arrays_of_its_own():
    x, y = rows(200, 3, 2)
    trees = TreesExpert(num_trees=10, width=3, num_classes=2, grower=make_grower(log_probs=True))
    trees.commit(batch(x[:100], y[:100], 2))
    asked = Queries(x[100:], np.full(100, 2), raw=x[100:])
    before, copied = trees.predict(asked).log_probs, copy.deepcopy(trees)
    trees.commit(batch(x[100:], y[100:], 2))
    np.testing.assert_array_equal(copied.predict(asked).log_probs, before)
    assert not np.array_equal(trees.predict(asked).log_probs, before)


def equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, dict):
            equal(value, other[name])
        else:
            np.testing.assert_array_equal(value, other[name], err_msg=name)
