from __future__ import annotations

import numpy as np
import pytest

from prequential.baselines import ACM
from prequential.baselines.acm import SMOOTHINGS
from prequential.errors import BadSetting

pytest.importorskip("faiss")


def test_one_neighbour_on_duplicates_is_always_right():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(500, 16)), random.integers(20, size=500)
    learner = ACM(20, num_neighbors=1, standardize=False, block=64)
    learner.observe(x, y)
    again = random.permutation(500)
    assert learner.observe(x[again], y[again]).correct.all()


def test_scored_from_the_first_example():
    charges = ACM(8, block=4).observe(np.eye(8), list(range(8)))
    assert charges.log_loss[0] == pytest.approx(np.log(8))
    assert np.isfinite(charges.log_loss).all()


def test_votes_and_ties():
    learner = ACM(3, num_neighbors=2, standardize=False)
    learner.learn_many([[1.0, 0.0], [0.0, 1.0]], ["a", "b"])
    assert learner.predict([1.0, 0.9]) == "a"  # one vote each: the nearer wins
    assert learner.predict([0.9, 1.0]) == "b"
    learner.learn_many([[0.1, 1.0]], ["b"])
    p = learner.predict_proba([0.0, 1.0])
    smoothing = SMOOTHINGS[learner.loss.argmin()]
    assert p["b"] == pytest.approx((2 + smoothing / 3) / (2 + smoothing), rel=1e-2)
    assert p["a"] == pytest.approx(smoothing / 3 / (2 + smoothing), rel=1e-2)


def test_k_adapts_to_noisy_labels():
    random = np.random.default_rng(1)
    y = random.integers(3, size=3000)
    x = np.eye(3)[y] + 0.1 * random.normal(size=(3000, 3))
    noisy = np.where(random.random(3000) < 0.4, random.integers(3, size=3000), y)
    adaptive, one = ACM(3), ACM(3, num_neighbors=1)
    assert adaptive.observe(x, noisy).correct.mean() > one.observe(x, noisy).correct.mean() + 0.05
    best = np.unravel_index(adaptive.loss.argmin(), adaptive.loss.shape)
    assert adaptive.ks[best[0]] >= 8
    clean = ACM(3)
    clean.observe(x, y)
    assert np.median(clean.observe(x, y).log_loss) < 0.02  # sure of itself where it can be


def test_states_its_memory():
    learner = ACM(2, block=16)
    learner.observe(np.random.default_rng(0).normal(size=(64, 256)), [0, 1] * 32)
    assert 1200 < learner.memory_bytes() / 64 < 1300  # 37 million: 46 GB


def test_bad_settings():
    with pytest.raises(BadSetting, match=r"links \(0\)"):
        ACM(2, links=0)
    with pytest.raises(BadSetting, match="standardize"):
        ACM(2, missing=True, standardize=False)


def test_features_are_standardised_by_the_past():
    random = np.random.default_rng(0)
    y = random.integers(2, size=600)
    x = np.stack([y + 0.1 * random.normal(size=600), 1e6 * random.normal(size=600)], 1)
    standardised, raw = (ACM(2, standardize=standardize).observe(x, y) for standardize in (True, False))
    assert standardised.correct[200:].mean() > 0.9
    assert raw.correct[200:].mean() < 0.7


def test_what_a_choice_lost_long_ago_fades():
    learner = ACM(2, num_neighbors=1, standardize=False)
    votes = np.array([0])
    right = -np.log((1 + SMOOTHINGS / 2) / (1 + SMOOTHINGS))
    wrong = -np.log((SMOOTHINGS / 2) / (1 + SMOOTHINGS))
    learner._update_losses(votes, 1, 2)
    for _ in range(2000):
        learner._update_losses(votes, 0, 2)
    fading = 0.999 ** np.arange(2000)
    np.testing.assert_allclose(learner.loss[0], 0.999**2000 * wrong + fading.sum() * right)
