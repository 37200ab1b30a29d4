import itertools

import numpy as np
import pytest

from prequential.errors import BadCheckpoint
from prequential.learners.normalizer import Normalizer
from prequential.storage.checkpoint import read_checkpoint, same_state, write_checkpoint


@pytest.fixture
def x():
    random = np.random.default_rng(0)
    return random.normal(size=(200, 4)) * [1, 1e-3, 1e6, 1] + [0, 5, 1e9, -3]


def expected(x, t, row):
    past = x[: t + 1]
    return (x[row] - past.mean(0)) / past.std(0)


def test_each_row_by_everything_up_to_itself(x):
    scaled = Normalizer(4).transform(x)
    for t in (1, 2, 50, 199):
        np.testing.assert_allclose(scaled[t], expected(x, t, t), rtol=1e-4, atol=1e-5)
    assert not scaled[0].any()


@pytest.mark.parametrize("size", [1, 7, 64])
def test_pieces_equal_the_whole(x, size):
    normalizer, parts = Normalizer(4), []
    for start in range(0, 200, size):
        parts.append(normalizer.transform(x[start : start + size]))
        normalizer.update(x[start : start + size])
    np.testing.assert_allclose(np.concatenate(parts), Normalizer(4).transform(x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(normalizer.apply(x)[7], expected(x, 199, 7), rtol=1e-4, atol=1e-5)


def test_each_on_its_own_is_as_the_next_one(x):
    normalizer = Normalizer(4)
    normalizer.update(x[:100])
    each = normalizer.transform_each(x[100:110])
    for i in range(10):
        np.testing.assert_allclose(each[i], normalizer.transform(x[100 + i : 101 + i])[0], rtol=1e-5, atol=1e-6)


def test_the_future_does_not_reach_the_past(x):
    other = x.copy()
    other[120:] *= 100
    assert np.array_equal(Normalizer(4).transform(x)[:120], Normalizer(4).transform(other)[:120])


def test_constant_missing_and_broken_features():
    x = np.array([[5.0, np.nan, 1.0], [5.0, 2.0, 2.0], [5.0, np.nan, 3.0], [5.0, 4.0, 1e300]])
    normalizer = Normalizer(3)
    scaled = normalizer.transform(x)
    assert not scaled[:, 0].any()
    assert scaled[:, 1].tolist() == [0, 0, 0, 1]  # 2 and 4 are one deviation from their mean 3
    assert np.isfinite(scaled).all()
    turns = np.arange(1000)[:, None] % 2 * 1.0  # 0 and 1: deviation 1/2
    for last, shown in ((8, 10), (1e6, 2), (-1e6, -2)):  # far is clipped; what is too far to count looks unusual
        turns[-1] = last
        assert Normalizer(1).transform(turns)[-1] == shown


def test_state_goes_on_exactly(x):
    first, second = Normalizer(4), Normalizer(4)
    first.update(x[:77])
    second.load_state_dict(first.state_dict())
    first.update(x[77:])
    second.update(x[77:])
    assert np.array_equal(first.apply(x), second.apply(x))


def test_the_next_one_is_to_the_bit_as_in_a_row_of_one(x):
    asked, other = Normalizer(4), Normalizer(4)
    for row in x[:50, None]:
        scaled, after = asked.peek(row)
        assert np.array_equal(scaled, other.transform(row))
        asked.take(after)
        other.update(row)
        assert same_state(asked.state_dict(), other.state_dict())


def by_hand(x, recent, chunk):
    """The mean and deviation of the latest examples after each chunk, from their definition."""
    count = mean = square = 0.0
    for start in range(0, len(x), chunk):
        for row in x[start : start + chunk]:
            count += 1
            step = row - mean
            mean = mean + step / count
            square = square + step * (row - mean)
        kept = min(1.0, recent / count)
        count, square = count * kept, square * kept
    return mean, np.sqrt(square / count)


def test_the_latest_examples_have_statistics_of_their_own(x):
    both, alone = Normalizer(4, recent=30), Normalizer(4)
    for start in range(0, 200, 10):
        rows = x[start : start + 10]
        assert np.array_equal(both.transform(rows)[:, :4], alone.transform(rows))
        for normalizer in (both, alone):
            normalizer.update(rows)
            normalizer.forget()
    mean, deviation = by_hand(x, 30, 10)
    np.testing.assert_allclose(both.apply(x)[:, 4:], np.clip((x - mean) / deviation, -10, 10), rtol=1e-3, atol=1e-3)


# Broken values.


def normal(n=2000, width=3):
    return np.random.default_rng(1).normal(size=(n, width))


def taken(x, sizes=(32,), **settings):
    """All examples standardised, in chunks of 32 that come in pieces of these sizes; and the normalizer after them."""
    normalizer, parts, start = Normalizer(x.shape[1], **settings), [], 0
    for size in itertools.cycle(sizes):
        if start == len(x):
            return np.concatenate(parts), normalizer
        stop = min(start + size, start + 32 - start % 32, len(x))
        parts.append(normalizer.transform(x[start:stop]))
        normalizer.update(x[start:stop])
        start = stop
        if start % 32 == 0:
            normalizer.forget()


def single(value, *rows):
    def change(x):
        x[list(rows), 0] = value

    return change


def sentinel(value, share):
    def change(x):
        x[np.random.default_rng(2).random(len(x)) < share, 0] = value

    return change


def stuck(x):
    x[:1000, 0], x[1000, 0] = 0, 1e7


BROKEN = {
    "1e7": single(1e7, 700),
    "1e300": single(1e300, 700),
    "the first": single(-1e7, 0),
    "the fourth": single(1e12, 3),
    "two of the first": single(1e6, 5, 20),
    "five in a row": single(1e6, *range(700, 705)),
    "for long": single(-1e4, *range(700, 1100)),
    "-9999 in 1 %": sentinel(-9999, 0.01),
    "-9999 in 30 %": sentinel(-9999, 0.3),
    "stuck at first": stuck,
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("recent", [None, 300])
def test_broken_values_leave_the_others_as_they_were(kind, recent):
    clean = normal()
    x = clean.copy()
    BROKEN[kind](x)
    scaled, _ = taken(x, recent=recent)
    expected, _ = taken(clean, recent=recent)
    rows = np.flatnonzero(x[:, 0] == clean[:, 0])
    rows = rows[rows >= (1200 if kind in ("stuck at first", "for long") else 40)]
    columns = range(0, scaled.shape[1], 3)
    for column in columns:  # a little otherwise, by as much as the statistics of fewer values differ
        ratio = scaled[rows[-500:], column].std() / expected[rows[-500:], column].std()
        assert 0.6 < ratio < 1.6, f"the values spread {ratio} times as much"
        if kind != "stuck at first":
            assert np.corrcoef(scaled[rows, column], expected[rows, column])[0, 1] > 0.99
    assert np.abs(scaled[np.flatnonzero(np.abs(x[:, 0]) > 1e3)][:, 0]).max() <= 10
    assert np.array_equal(scaled[:, 1:3], expected[:, 1:3]), "another feature was changed"


@pytest.mark.parametrize("kind", BROKEN)
def test_pieces_equal_the_whole_with_broken_values_too(kind):
    x = normal(1500)
    BROKEN[kind](x)
    whole, _ = taken(x, recent=300)
    for sizes in ((1,), (7, 1, 13)):
        np.testing.assert_allclose(taken(x, sizes, recent=300)[0], whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", BROKEN)
def test_each_on_its_own_is_as_the_next_one_with_broken_values_too(kind):
    x = normal(1200)
    BROKEN[kind](x)
    for stop in (8, 31, 40, 701, 730, 1001):
        normalizer = taken(x[:stop], recent=300)[1]
        for i, row in enumerate(normalizer.transform_each(x[stop : stop + 9])):
            np.testing.assert_array_equal(row, normalizer.transform(x[stop + i : stop + i + 1])[0])


def test_a_new_level_is_followed():
    x = normal()
    x[800:, 0] += 1e4
    scaled, normalizer = taken(x, recent=300)
    for column in (0, 3):
        assert 0.8 < scaled[900:, column].std() < 1.3
    assert normalizer.mean[0] == pytest.approx(1e4, abs=1)
    assert not normalizer.hints()


def test_a_feature_that_goes_to_and_fro_keeps_both_levels():
    x = normal(4000)
    away = np.arange(4000) // 200 % 2 == 1
    x[away, 0] = 1e4 + 50 * x[away, 0]
    scaled, _ = taken(x)
    # once both are known, it stays with them
    assert np.abs(scaled[1000:, 0]).max() < 2
    assert scaled[1000:][away[1000:], 0].min() > 0.5


def test_rare_values_count():
    random = np.random.default_rng(3)
    x = np.zeros((20000, 2))
    x[random.random(20000) < 0.002, 0] = 1  # one of many categories
    some = random.random(20000) < 0.05
    x[some, 1] = random.lognormal(8, 1, some.sum())  # an amount that is mostly 0
    _, normalizer = taken(x)
    np.testing.assert_allclose(normalizer.mean, x.mean(0), rtol=0.15)
    np.testing.assert_allclose(np.sqrt(normalizer.square / normalizer.count), x.std(0), rtol=0.3)
    assert not normalizer.hints()


@pytest.mark.parametrize("kind", ["clean", "heavy"])
def test_what_is_not_broken_counts_as_before(kind):
    x = normal() if kind == "clean" else np.random.default_rng(4).standard_t(4, size=(2000, 3))
    _, normalizer = taken(x)
    np.testing.assert_allclose(normalizer.mean, x.mean(0), atol=1e-9)
    np.testing.assert_allclose(np.sqrt(normalizer.square / normalizer.count), x.std(0), rtol=1e-9)


def test_what_recurs_is_named():
    x = normal()
    x[[100, 300, 1500], 1] = -9999
    x[50, 2] = x[60, 2] = 1e9
    assert [tuple(hint) for hint in taken(x)[1].hints()] == [(1, -9999.0, 3)]


@pytest.mark.parametrize("kind", BROKEN)
def test_the_state_goes_on_exactly_with_broken_values_too(kind, tmp_path):
    x = normal(1200)
    BROKEN[kind](x)
    for cut in (5, 320, 704, 736, 1024):
        first, second = taken(x[:cut], recent=300)[1], Normalizer(3, recent=300)
        write_checkpoint(tmp_path / "state", first.state_dict())
        second.load_state_dict(read_checkpoint(tmp_path / "state"))
        for normalizer in (first, second):
            normalizer.update(x[cut:])
        assert same_state(first.state_dict(), second.state_dict())


def test_a_state_from_before_broken_values_were_left_out_goes_on():
    x = normal(600)
    x[:, 2] = 5
    _, normalizer = taken(x, recent=300)
    old = {name: value for name, value in normalizer.state_dict().items() if name != "guard"}
    later = Normalizer(3, recent=300)
    later.load_state_dict(old)
    x = normal(300)
    assert np.array_equal(later.apply(x), normalizer.apply(x))
    x[100, 0] = 1e9  # no longer blinded by it, nor by the first values of a feature that was constant
    x[0, 2] = 1e9
    later.update(x)
    scaled = later.apply(x)
    assert scaled[150:, 0].std() > 0.8
    assert scaled[150:, 2].std() > 0.3


def test_a_state_of_other_features_is_refused():
    _, normalizer = taken(normal(100))
    state = normalizer.state_dict()
    state["guard"] = {**state["guard"], "low": state["guard"]["low"][:2]}
    with pytest.raises(BadCheckpoint, match=r"low .*shape \(2,\), expected \(3,\)"):
        Normalizer(3).load_state_dict(state)
