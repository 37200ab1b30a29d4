import numpy as np
import pytest
import torch

from prequential.learners.transformer.knn import DOUBT, NEAREST, Neighbours


def made(memory=20, width=3):
    return Neighbours(memory=memory, chunk=4, width=width, classes=3)


def examples(n, seed=0, width=3):
    random = np.random.default_rng(seed)
    return random.normal(size=(n, width)).astype(np.float32), random.integers(0, 3, n)


def by_hand(x, past, slots):
    """The votes on one input, as in the docstring."""
    apart = ((past.astype(np.float64) - x) ** 2).sum(1)
    nearest = np.argsort(apart)[:NEAREST]
    weight = np.exp(-apart[nearest] / (apart[nearest].mean() + 1e-9))
    total = weight.sum() + DOUBT * weight.mean()
    return np.bincount(slots[nearest], weight, minlength=3) / total


def test_the_nearest_vote():
    x, slots = examples(20)
    neighbours = made()
    for start in range(0, 20, 4):
        neighbours.finish_chunk(x[start : start + 4], slots[start : start + 4])
    new, _ = examples(5, seed=1)
    expected = np.stack([by_hand(row, x, slots) for row in new])
    np.testing.assert_allclose(neighbours.predict(new), expected, rtol=1e-4, atol=1e-5)


def test_without_a_past_there_are_no_votes():
    assert not made().predict(examples(2)[0]).any()
    assert not made().finish_chunk(*examples(1)).any()


def test_within_a_chunk_only_earlier_examples_vote():
    x, slots = examples(4)
    votes = made().finish_chunk(x, slots)
    assert not votes[0].any()
    for t in (1, 2, 3):
        np.testing.assert_allclose(votes[t], by_hand(x[t], x[:t], slots[:t]), rtol=1e-4, atol=1e-5)


def test_later_examples_and_labels_change_nothing():
    x, slots = examples(8)
    before = made().finish_chunk(x, slots)
    x[5:], slots[5:] = 9.0, (slots[5:] + 1) % 3
    slots[4] = (slots[4] + 1) % 3
    assert torch.equal(made().finish_chunk(x, slots)[:5], before[:5])


@pytest.mark.parametrize("memory", [20, 6])
def test_one_by_one_as_in_chunks(memory):
    x, slots = examples(12)
    whole, single = made(memory), made(memory)
    for start in range(0, 12, 4):
        part = slice(start, start + 4)
        together = whole.finish_chunk(x[part], slots[part])
        for t in range(start, start + 4):
            torch.testing.assert_close(single.predict(x[t : t + 1])[0], together[t - start])
            torch.testing.assert_close(single.extend(x[t : t + 1], slots[t : t + 1])[0], together[t - start])
        single.finish_chunk(x[part], slots[part])
    state, other = whole.state_dict(), single.state_dict()
    assert all(np.array_equal(state[name], other[name]) for name in state)


def test_only_the_latest_are_kept():
    neighbours = made(memory=4)
    x, slots = examples(400)
    for start in range(0, 400, 4):
        neighbours.finish_chunk(x[start : start + 4], slots[start : start + 4])
    expected = by_hand(x[0], x[-4:], slots[-4:])
    np.testing.assert_allclose(neighbours.predict(x[:1])[0], expected, rtol=1e-4, atol=1e-5)
    assert neighbours.state_dict()["count"] == 4


def test_its_state_has_one_size():
    x, slots = examples(8)
    neighbours = made()
    sizes = []
    for t in range(8):
        neighbours.extend(x[t : t + 1], slots[t : t + 1])
        sizes.append(neighbours.state_dict()["x"].shape)
        if t % 4 == 3:
            neighbours.finish_chunk(x[t - 3 : t + 1], slots[t - 3 : t + 1])
    assert set(sizes) == {(24, 3)}


def test_it_goes_on_from_its_state():
    x, slots = examples(10)
    neighbours, other = made(), made()
    neighbours.finish_chunk(x[:4], slots[:4])
    neighbours.extend(x[4:6], slots[4:6])
    other.load_state_dict(neighbours.state_dict())
    assert torch.equal(neighbours.predict(x[6:]), other.predict(x[6:]))
    assert torch.equal(neighbours.finish_chunk(x[4:8], slots[4:8]), other.finish_chunk(x[4:8], slots[4:8]))


def test_what_is_too_far_for_a_number_has_no_vote():
    neighbours = made()
    neighbours.finish_chunk(np.float32([[0, 0, 0], [1, 0, 0]]), np.array([0, 1]))
    votes = neighbours.predict(np.float32([[1e30, 0, 0], [1, 0, 0]]))
    assert not votes[0].any()
    assert votes[1].argmax() == 1


@pytest.mark.parametrize("same", [1, 5])
def test_equal_inputs_share_the_votes(same):
    """All distances are 0: every one of them votes alike, and the doubt is what one vote's half is of them all."""
    neighbours = made()
    neighbours.finish_chunk(np.ones((same, 3), np.float32), np.zeros(same, np.int64))
    votes = neighbours.predict(np.ones((1, 3), np.float32))[0]
    assert votes[0].item() == pytest.approx(same / (same + DOUBT), rel=1e-3)
