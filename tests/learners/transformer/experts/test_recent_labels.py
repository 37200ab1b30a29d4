import copy

import numpy as np
import pytest

from prequential.errors import BadCheckpoint
from prequential.labels import num_seen_before
from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.experts.recent_labels import KEEP, SLOTS, RecentLabelsExpert
from prequential.native.experts import native_experts
from prequential.storage.checkpoint import same_state

NATIVE = native_experts()
ENGINES = [None] if NATIVE is None else [None, NATIVE]


def made(native=None, num_classes=3, chunk_size=4):
    return RecentLabelsExpert(chunk_size=chunk_size, num_classes=num_classes, native=native)


def batch(class_ids, lags=None, num_seen=3):
    class_ids = np.array(class_ids)
    return Batch(np.zeros((len(class_ids), 1)), class_ids, np.full(len(class_ids), num_seen), lags)


def probs(expert, lag=0, num_seen=3):
    missing = {} if not lag else {"missing": np.array([0]), "position": np.array([lag])}
    return np.exp(expert.predict(Queries(np.zeros((1, 1)), np.array([num_seen]), **missing)).log_probs[:, 0])


def smoothed(counts, weight):
    return (np.array(counts) + weight / len(counts)) / (np.sum(counts) + weight)


@pytest.mark.parametrize("native", ENGINES)
def test_counts_halve_and_what_followed_is_counted(native):
    expert = made(native)
    expert.commit(batch([0, 1, 0, 2]))
    expert.extend(batch([0]))
    quick, slow, followed = probs(expert)
    half = 0.5 ** np.arange(5)
    np.testing.assert_allclose(quick, smoothed([1 + half[2] + half[4], half[3], half[1]], 1), rtol=1e-6)
    tenth = half**0.1
    np.testing.assert_allclose(slow, smoothed([1 + tenth[2] + tenth[4], tenth[3], tenth[1]], 1), rtol=1e-6)
    np.testing.assert_allclose(followed, smoothed([0, KEEP, 1], 2), rtol=1e-6)  # 1, and later 2, came after 0


@pytest.mark.parametrize("native", ENGINES)
def test_late_labels_say_less_and_are_followed_by_others(native):
    expert = made(native)
    expert.commit(batch([0, 1, 2, 0]))  # at once, 1 follows 0
    expert.commit(batch([2, 1, 2, 0], lags=np.array([1, 1, 1, 1])))  # 1 after 0, with one between them
    assert probs(expert)[2].argmax() == 1
    late = probs(expert, lag=1)
    assert late[2].argmax() == 1
    np.testing.assert_allclose(late[0], smoothed(0.5 * np.array([1 + 1 / 16, 1 / 4, 1 / 2 + 1 / 8]), 1), rtol=0.02)
    np.testing.assert_allclose(probs(expert, lag=900)[0], 1 / 3)


@pytest.mark.parametrize("native", ENGINES)
def test_without_labels_all_are_alike_and_those_not_seen_share_one_place(native):
    expert = made(native, num_classes=5)
    np.testing.assert_allclose(probs(expert, num_seen=2), [[1 / 3, 1 / 3, 1 / 9, 1 / 9, 1 / 9]] * 3, rtol=1e-6)
    expert.commit(batch([0, 1, 1, 0], num_seen=2))
    assert (probs(expert, num_seen=2)[:, 2:] < 1 / 9).all()
    np.testing.assert_allclose(probs(expert, num_seen=2).sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize("native", ENGINES)
def test_later_labels_change_nothing(native):
    lags = np.array([0, 2, 0, 3, 1, 4, 2, 2])
    class_ids = np.array([0, 1, 2, 0, 1, 1, 2, 0])
    before = made(native, chunk_size=8).commit(batch(class_ids, lags))
    for t in range(8):
        other = class_ids.copy()
        other[t:] = (other[t:] + 1) % 3
        after = made(native, chunk_size=8).commit(batch(other, lags))
        rows = np.arange(8) - lags <= t
        assert np.array_equal(after[:, rows], before[:, rows])


@pytest.mark.parametrize("native", ENGINES)
def test_one_by_one_as_in_chunks_and_as_asked(native):
    random = np.random.default_rng(0)
    class_ids = random.integers(0, 3, 24)
    whole, single = made(native), made(native)
    for start in range(0, 24, 4):
        chunk = batch(class_ids[start : start + 4])
        together = whole.commit(chunk)
        for t in range(4):
            one = batch(class_ids[start + t : start + t + 1])
            asked = single.predict(Queries(one.x, one.num_seen))
            assert np.array_equal(asked.log_probs[:, 0], together[:, t])
            assert np.array_equal(single.extend(one, asked if t % 2 else None)[:, 0], together[:, t])
        single.commit(chunk)
    assert same_state(whole.state_dict(), single.state_dict())


@pytest.mark.parametrize("native", ENGINES)
def test_it_goes_on_from_its_state_and_a_copy_is_its_own(native):
    expert, other = made(native), made(native)
    expert.commit(batch([0, 1, 2, 1]))
    expert.extend(batch([1, 1], lags=np.array([0, 1])))
    other.load_state_dict(expert.state_dict())
    twin = copy.deepcopy(expert)
    assert np.array_equal(probs(expert), probs(other))
    after = [one.commit(batch([1, 1, 0, 2])) for one in (expert, other)]
    assert np.array_equal(*after)
    assert not np.array_equal(probs(twin), probs(expert))
    assert np.array_equal(twin.commit(batch([1, 1, 0, 2])), after[0])


@pytest.mark.parametrize("native", ENGINES)
def test_more_examples_than_a_chunk_has(native):
    class_ids = [0, 1, 2, 1, 1, 0, 2]
    small, large = made(native, chunk_size=2), made(native, chunk_size=8)
    for class_id in class_ids:
        assert np.array_equal(small.extend(batch([class_id])), large.extend(batch([class_id])))
    assert np.array_equal(small.commit(batch(class_ids)), large.commit(batch(class_ids)))
    assert np.array_equal(probs(small), probs(large))


@pytest.mark.skipif(NATIVE is None, reason="there is no native core")
@pytest.mark.parametrize(("num_classes", "late"), [(2, False), (SLOTS + 9, False), (5, True)])
def test_both_engines_predict_alike(num_classes, late):
    random = np.random.default_rng(0)
    expected, native, seen = made(num_classes=4), made(NATIVE, num_classes=4), 0
    for expert in (expected, native):
        expert.grow(num_classes=max(num_classes, 4))
    for _ in range(60):
        class_ids = random.integers(0, min(num_classes, seen + 1), 4)
        lags = random.integers(0, 9, 4) if late else None
        chunk = Batch(np.zeros((4, 1)), class_ids, num_seen_before(class_ids, seen), lags)
        seen = max(seen, int(class_ids.max()) + 1)
        np.testing.assert_allclose(native.commit(chunk), expected.commit(chunk), rtol=1e-5, atol=1e-6)
    assert same_state(native.state_dict(), expected.state_dict())


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("class_ids", np.full(9, -1), r"class_ids of recent labels has shape \(9,\)"),
        ("lags", np.array([0, -1, 0, 0]), "lags of recent labels must be from 0 to 1024"),
        ("followers", np.full((8, 3, SLOTS), 3), "followers of recent labels must be from -1 to 2"),
        ("num_fresh", 5, r"num_fresh \(5\) of recent labels must be from 0 to 4"),
    ],
)
def test_states_that_cannot_be_are_not_loaded(name, value, sentence):
    expert = made()
    with pytest.raises(BadCheckpoint, match=sentence):
        expert.load_state_dict({**expert.state_dict(), name: value})
