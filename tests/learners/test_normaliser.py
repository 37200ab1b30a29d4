import numpy as np
import pytest

from prequential.checkpoint import same_state
from prequential.learners.normaliser import Normaliser


@pytest.fixture
def x():
    random = np.random.default_rng(0)
    return random.normal(size=(200, 4)) * [1, 1e-3, 1e6, 1] + [0, 5, 1e9, -3]


def expected(x, t, row):
    past = x[: t + 1]
    return (x[row] - past.mean(0)) / past.std(0)


def test_each_row_by_everything_up_to_itself(x):
    scaled = Normaliser(4).transform(x)
    for t in (1, 2, 50, 199):
        np.testing.assert_allclose(scaled[t], expected(x, t, t), rtol=1e-4, atol=1e-5)
    assert not scaled[0].any()


@pytest.mark.parametrize("size", [1, 7, 64])
def test_pieces_equal_the_whole(x, size):
    normaliser, parts = Normaliser(4), []
    for start in range(0, 200, size):
        parts.append(normaliser.transform(x[start : start + size]))
        normaliser.update(x[start : start + size])
    np.testing.assert_allclose(np.concatenate(parts), Normaliser(4).transform(x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(normaliser.apply(x)[7], expected(x, 199, 7), rtol=1e-4, atol=1e-5)


def test_each_on_its_own_is_as_the_next_one(x):
    normaliser = Normaliser(4)
    normaliser.update(x[:100])
    each = normaliser.each(x[100:110])
    for i in range(10):
        np.testing.assert_allclose(each[i], normaliser.transform(x[100 + i : 101 + i])[0], rtol=1e-5, atol=1e-6)


def test_the_future_does_not_reach_the_past(x):
    other = x.copy()
    other[120:] *= 100
    assert np.array_equal(Normaliser(4).transform(x)[:120], Normaliser(4).transform(other)[:120])


def test_constant_missing_and_broken_features():
    x = np.array([[5.0, np.nan, 1.0], [5.0, 2.0, 2.0], [5.0, np.nan, 3.0], [5.0, 4.0, 1e300]])
    normaliser = Normaliser(3)
    scaled = normaliser.transform(x)
    assert not scaled[:, 0].any()
    assert scaled[:, 1].tolist() == [0, 0, 0, 1]  # 2 and 4 are one deviation from their mean 3
    assert np.isfinite(scaled).all()
    assert (
        np.abs(Normaliser(1).transform(np.r_[np.zeros(999), 1e6][:, None] + np.arange(1000)[:, None] % 2)).max() == 10
    )


def test_state_goes_on_exactly(x):
    first, second = Normaliser(4), Normaliser(4)
    first.update(x[:77])
    second.load_state(first.state())
    first.update(x[77:])
    second.update(x[77:])
    assert np.array_equal(first.apply(x), second.apply(x))


def test_the_next_one_is_to_the_bit_as_in_a_row_of_one(x):
    asked, other = Normaliser(4), Normaliser(4)
    for row in x[:50, None]:
        scaled, after = asked.following(row)
        assert np.array_equal(scaled, other.transform(row))
        asked.take(after)
        other.update(row)
        assert same_state(asked.state(), other.state())


def test_features_with_memories_of_their_own_are_as_if_alone(x):
    both = Normaliser(8, memory=np.repeat([np.inf, 30], 4))
    alone = [Normaliser(4), Normaliser(4, memory=30)]
    for start in range(0, 100, 10):
        rows = x[start : start + 10]
        expected = np.concatenate([normaliser.transform(rows) for normaliser in alone], 1)
        assert np.array_equal(both.transform(np.concatenate([rows, rows], 1)), expected)
        for normaliser, taken in ((both, np.concatenate([rows, rows], 1)), *((one, rows) for one in alone)):
            normaliser.update(taken)
            normaliser.forget()
    for name, value in both.state().items():
        assert np.array_equal(value, np.concatenate([normaliser.state()[name] for normaliser in alone]))
