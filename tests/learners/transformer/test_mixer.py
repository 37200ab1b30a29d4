"""Mixing heads by their past likelihood."""

from __future__ import annotations

import numpy as np
import pytest

from prequential.learners.transformer.mixer import Mixer
from prequential.storage.checkpoint import same_state


def predictions(heads: int = 3, n: int = 40, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    logits = random.normal(size=(heads, n, classes)) * 2
    return logits - np.logaddexp.reduce(logits, axis=2)[:, :, None], random.integers(classes, size=n)


def by_hand(log_p: np.ndarray, class_ids: np.ndarray, share: float) -> np.ndarray:
    """The same in plain probabilities: the forward pass of a hidden Markov model whose states are the heads."""
    weight, rows = np.full(len(log_p), 1 / len(log_p)), []
    for t, slot in enumerate(class_ids):
        rows.append(weight @ np.exp(log_p[:, t]))
        weight = weight * np.exp(log_p[:, t, slot])
        weight = share * weight / weight.sum() + (1 - share) / len(weight)
    return np.log(rows)


@pytest.mark.parametrize("heads", [2, 3])
@pytest.mark.parametrize("share", [0.5, 0.98, 1.0])
def test_it_is_the_fixed_share_mixture(heads, share):
    log_p, class_ids = predictions(heads)
    mixed = Mixer(heads, share=share, learning_rates=()).commit(log_p, class_ids)
    np.testing.assert_allclose(mixed, by_hand(log_p, class_ids, share), atol=1e-12)
    np.testing.assert_allclose(np.exp(mixed).sum(1), 1)


def test_products_of_heads_are_experts_too_and_their_exponents_follow_the_gradient():
    log_p, class_ids = predictions()
    rate, step = 0.1, 1e-6

    def product(exponent, t):
        raised = exponent @ log_p[:, t]
        return raised - np.logaddexp.reduce(raised)

    exponent, rows = np.full(3, 1 / 3), []
    for t, slot in enumerate(class_ids):
        rows.append(product(exponent, t))
        gain = [product(exponent + step * one, t)[slot] - product(exponent - step * one, t)[slot] for one in np.eye(3)]
        exponent = exponent + rate * np.array(gain) / (2 * step)
    expected = by_hand(np.concatenate([log_p, np.array(rows)[None]]), class_ids, 0.999)
    mixer = Mixer(3, learning_rates=(rate,))
    np.testing.assert_allclose(mixer.commit(log_p, class_ids), expected, atol=1e-6)
    np.testing.assert_allclose(mixer.state_dict()["current"]["exponents"][0], exponent, atol=1e-6)


def test_two_heads_that_are_right_together_are_trusted_more_than_either():
    unsure = np.log([[0.7, 0.3]])
    mixer = Mixer(2)
    for _ in range(300):
        mixer.extend(np.stack([unsure, unsure]), np.array([0]))
    assert np.exp(mixer.predict(np.stack([unsure, unsure]))[0])[0, 0] > 0.9


def test_labels_reach_only_what_comes_after_them():
    log_p, class_ids = predictions()
    before = Mixer(3).commit(log_p, class_ids)
    for t in (0, 17, 39):
        other = class_ids.copy()
        other[t] = (other[t] + 1) % 4
        after = Mixer(3).commit(log_p, other)
        assert np.array_equal(after[: t + 1], before[: t + 1])
        assert (after[t + 1 :] != before[t + 1 :]).any(axis=1).all()


def test_the_sizes_in_which_examples_come_change_nothing():
    log_p, class_ids = predictions()
    whole, pieces, single = Mixer(3), Mixer(3), Mixer(3)
    expected = whole.commit(log_p, class_ids)
    parts = [pieces.commit(log_p[:, a:b], class_ids[a:b]) for a, b in ((0, 7), (7, 8), (8, 40))]
    assert np.array_equal(np.concatenate(parts), expected)
    for t in range(40):
        assert np.array_equal(single.predict(log_p[:, t : t + 1])[0], expected[t : t + 1])
        assert np.array_equal(single.extend(log_p[:, t : t + 1], class_ids[t : t + 1]), expected[t : t + 1])
    assert not same_state(single.state_dict(), whole.state_dict())  # it is not committed yet
    assert np.array_equal(single.commit(log_p, class_ids), expected)
    assert same_state(single.state_dict(), whole.state_dict())
    assert same_state(pieces.state_dict(), whole.state_dict())


@pytest.mark.parametrize("learning_rates", [(), (0.005, 0.08)])
def test_what_was_predicted_before_changes_no_bit_of_what_follows(learning_rates):
    log_p, class_ids = predictions()
    asked, other = Mixer(3, learning_rates=learning_rates), Mixer(3, learning_rates=learning_rates)
    for t in range(40):
        here = log_p[:, t : t + 1]
        predicted, reuse = asked.predict(here)
        if t % 3 == 1:
            asked.predict(log_p[:, t - 1 : t])  # another one in between
        before = predicted.copy()
        predicted[:] = 0  # it is the caller's
        assert np.array_equal(asked.extend(here, class_ids[t : t + 1], reuse), before)
        assert np.array_equal(other.extend(here, class_ids[t : t + 1]), before)
        assert same_state(asked.state_dict(), other.state_dict())
        if t % 10 == 9:
            asked.predict(log_p[:, t : t + 1])  # from before a chunk boundary
            for mixer in (asked, other):
                mixer.commit(log_p[:, t - 9 : t + 1], class_ids[t - 9 : t + 1])


def test_a_head_that_was_certain_of_the_wrong_label_can_come_back():
    good, poor = np.log([[1 - 1e-300, 1e-300]]), np.log([[1e-300, 1 - 1e-300]])
    mixer = Mixer(2, learning_rates=())
    for _ in range(50):
        mixer.extend(np.stack([good, poor]), np.array([0]))
    assert np.exp(mixer.predict(np.stack([good, poor]))[0])[0, 0] == pytest.approx(0.9995)
    for _ in range(2):
        mixer.extend(np.stack([good, poor]), np.array([1]))
    assert np.exp(mixer.predict(np.stack([good, poor]))[0])[0, 1] == pytest.approx(0.9995)


def test_one_head_is_left_as_it_is():
    log_p, class_ids = predictions(1)
    assert np.array_equal(Mixer(1).commit(log_p, class_ids), log_p[0])


def test_a_saved_mixer_goes_on_exactly():
    log_p, class_ids = predictions()
    mixer, loaded = Mixer(3), Mixer(3)
    mixer.commit(log_p[:, :20], class_ids[:20])
    mixer.extend(log_p[:, 20:30], class_ids[20:30])
    taken = mixer.state_dict()
    loaded.load_state_dict(taken)
    assert np.array_equal(loaded.extend(log_p[:, 30:], class_ids[30:]), mixer.extend(log_p[:, 30:], class_ids[30:]))
    loaded.load_state_dict(taken)
    assert np.array_equal(loaded.commit(log_p[:, 20:], class_ids[20:]), mixer.commit(log_p[:, 20:], class_ids[20:]))


def test_auxiliary_experts_start_small_and_outside_of_products():
    log_p, class_ids = predictions(heads=3)
    mixer = Mixer(3, auxiliary=[False, False, True], learning_rates=(0.02,))
    expected = Mixer(2, learning_rates=(0.02,)).predict(log_p[:2, :1])[0]
    first = np.exp(mixer.predict(log_p[:, :1])[0])  # of weight 1 + 1 + 0.1 + 1, and the product without it
    np.testing.assert_allclose(first, (3 * np.exp(expected) + 0.1 * np.exp(log_p[2, :1])) / 3.1)
    mixer.commit(log_p, class_ids)
    assert mixer.state_dict()["current"]["exponents"][0, 2] != 0


def test_what_is_spread_is_slowed_down_by_late_labels_only_where_asked():
    log_p, class_ids = predictions(heads=2, n=1)
    weights = []
    for slows_share in (False, True):
        mixer = Mixer(2, learning_rates=(), share=0.9, slows_share=slows_share)
        mixer.commit(log_p, class_ids, lags=np.array([9]))
        weights.append(np.exp(mixer.state_dict()["current"]["log_weights"]))
    kept = np.exp(0.1 * log_p[:, 0, class_ids[0]])
    for spread, made in zip((0.1, 0.01), weights, strict=True):
        np.testing.assert_allclose(made, (1 - spread) * kept / kept.sum() + spread / 2)
