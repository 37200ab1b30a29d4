import numpy as np
import pytest

from prequential.labels import num_seen_before
from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.experts.knn import NEAREST, PRIOR_WEIGHT, KNNExpert


class Probs:
    """An expert by its probabilities (n, 3), all labels having been seen."""

    def __init__(self, **sizes):
        self.expert = KNNExpert(**sizes)

    def predict(self, x):
        return np.exp(self.expert.predict(Queries(x, np.full(len(x), 3))).log_probs[0])

    def extend(self, x, class_ids):
        return np.exp(self.expert.extend(batch(x, class_ids))[0])

    def commit(self, x, class_ids):
        return np.exp(self.expert.commit(batch(x, class_ids))[0])

    def __getattr__(self, name):
        return getattr(self.expert, name)


def batch(x, class_ids):
    return Batch(x, class_ids, np.full(len(x), 3))


def made(memory=20, width=3):
    return Probs(memory=memory, chunk_size=4, width=width, num_classes=3)


def examples(n, seed=0, width=3):
    random = np.random.default_rng(seed)
    return random.normal(size=(n, width)).astype(np.float32), random.integers(0, 3, n)


def by_hand(x, past, class_ids):
    """The probabilities for one input: the weights of the neighbors' labels, and the rest to all alike."""
    apart = ((past.astype(np.float64) - x) ** 2).sum(1)
    nearest = np.argsort(apart)[:NEAREST]
    weight = np.exp(-apart[nearest] / (apart[nearest].mean() + 1e-9))
    total = weight.sum() + PRIOR_WEIGHT * weight.mean()
    found = np.bincount(class_ids[nearest], weight, minlength=3) / total
    return found + (1 - found.sum()) / 3


def test_the_nearest_decide():
    x, class_ids = examples(20)
    knn = made()
    for start in range(0, 20, 4):
        knn.commit(x[start : start + 4], class_ids[start : start + 4])
    new, _ = examples(5, seed=1)
    expected = np.stack([by_hand(row, x, class_ids) for row in new])
    np.testing.assert_allclose(knn.predict(new), expected, rtol=1e-4, atol=1e-5)


def test_without_a_past_all_labels_are_alike():
    assert made().predict(examples(2)[0]).ravel().tolist() == pytest.approx([1 / 3] * 6)
    assert made().commit(*examples(1)).ravel().tolist() == pytest.approx([1 / 3] * 3)


def test_within_a_chunk_only_earlier_examples_count():
    x, class_ids = examples(4)
    probs = made().commit(x, class_ids)
    assert probs[0].tolist() == pytest.approx([1 / 3] * 3)
    for t in (1, 2, 3):
        np.testing.assert_allclose(probs[t], by_hand(x[t], x[:t], class_ids[:t]), rtol=1e-4, atol=1e-5)


def test_later_examples_and_labels_change_nothing():
    x, class_ids = examples(8)
    before = made().commit(x, class_ids)
    x[5:], class_ids[5:] = 9.0, (class_ids[5:] + 1) % 3
    class_ids[4] = (class_ids[4] + 1) % 3
    assert np.array_equal(made().commit(x, class_ids)[:5], before[:5])


@pytest.mark.parametrize("memory", [20, 6])
def test_one_by_one_as_in_chunks(memory):
    x, class_ids = examples(12)
    whole, single = made(memory), made(memory)
    for start in range(0, 12, 4):
        part = slice(start, start + 4)
        together = whole.commit(x[part], class_ids[part])
        for t in range(start, start + 4):
            np.testing.assert_allclose(single.predict(x[t : t + 1])[0], together[t - start], rtol=1e-5)
            np.testing.assert_allclose(
                single.extend(x[t : t + 1], class_ids[t : t + 1])[0], together[t - start], rtol=1e-5
            )
        single.commit(x[part], class_ids[part])
    state, other = whole.state_dict(), single.state_dict()
    assert all(np.array_equal(state[name], other[name]) for name in state)


def test_only_the_latest_are_kept():
    knn = made(memory=4)
    x, class_ids = examples(400)
    for start in range(0, 400, 4):
        knn.commit(x[start : start + 4], class_ids[start : start + 4])
    expected = by_hand(x[0], x[-4:], class_ids[-4:])
    np.testing.assert_allclose(knn.predict(x[:1])[0], expected, rtol=1e-4, atol=1e-5)
    assert knn.state_dict()["count"] == 4


def test_its_state_has_one_size():
    x, class_ids = examples(8)
    knn = made()
    sizes = []
    for t in range(8):
        knn.extend(x[t : t + 1], class_ids[t : t + 1])
        sizes.append(knn.state_dict()["x"].shape)
        if t % 4 == 3:
            knn.commit(x[t - 3 : t + 1], class_ids[t - 3 : t + 1])
    assert set(sizes) == {(24, 3)}


def test_it_goes_on_from_its_state():
    x, class_ids = examples(10)
    knn, other = made(), made()
    knn.commit(x[:4], class_ids[:4])
    knn.extend(x[4:6], class_ids[4:6])
    other.load_state_dict(knn.state_dict())
    assert np.array_equal(knn.predict(x[6:]), other.predict(x[6:]))
    assert np.array_equal(knn.commit(x[4:8], class_ids[4:8]), other.commit(x[4:8], class_ids[4:8]))


def test_what_is_too_far_for_a_number_does_not_count():
    knn = made()
    knn.commit(np.float32([[0, 0, 0], [1, 0, 0]]), np.array([0, 1]))
    probs = knn.predict(np.float32([[1e30, 0, 0], [1, 0, 0]]))
    assert probs[0].tolist() == pytest.approx([1 / 3] * 3)
    assert probs[1].argmax() == 1


@pytest.mark.parametrize("same", [1, 5])
def test_equal_inputs_count_alike(same):
    """All distances are 0: each has the same weight, and the prior has half of such a weight."""
    knn = made()
    knn.commit(np.ones((same, 3), np.float32), np.zeros(same, np.int64))
    probs = knn.predict(np.ones((1, 3), np.float32))[0]
    weight = same / (same + PRIOR_WEIGHT)
    assert probs[0].item() == pytest.approx(weight + (1 - weight) / 3, rel=1e-3)


def test_labels_not_seen_yet_share_the_prior_of_one():
    knn = KNNExpert(memory=4, chunk_size=2, width=1, num_classes=5)
    probs = np.exp(knn.predict(Queries(np.float32([[0]]), np.array([2]))).log_probs[0, 0])
    assert probs.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 9, 1 / 9, 1 / 9])


def test_what_was_predicted_is_not_computed_again(monkeypatch):
    x, class_ids = examples(6)
    knn, other = made().expert, made().expert
    for expert in (knn, other):
        expert.commit(Batch(x[:4], class_ids[:4], num_seen_before(class_ids[:4], 0)))
    new = batch(x[4:5], class_ids[4:5])
    predicted = knn.predict(Queries(x[4:5], np.array([3])))
    expected = other.extend(new)
    monkeypatch.setattr(KNNExpert, "_knn_probs", None)
    assert np.array_equal(knn.extend(new, predicted), expected)
    assert knn.state_dict()["count"] == other.state_dict()["count"] == 5
