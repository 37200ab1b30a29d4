from __future__ import annotations

import numpy as np
import pytest

from prequential.baselines import LastLabel


def test_predicts_the_label_before():
    y = np.random.default_rng(0).integers(4, size=500)
    learner = LastLabel(4)
    charges = learner.observe(np.zeros((500, 1)), y)
    known = learner.labels.known
    assert charges.predicted[0] == -1
    assert [known[p] for p in charges.predicted[1:]] == y[:-1].tolist()


def test_predicts_the_label_before_even_when_it_never_repeats():
    y = [t % 3 for t in range(300)]
    charges = LastLabel(3).observe(np.zeros((300, 1)), y)
    assert charges.predicted[1:].tolist() == y[:-1]
    assert not charges.correct.any()


def test_learns_how_often_labels_repeat():
    random = np.random.default_rng(1)
    y = [0]
    for _ in range(4000):
        y.append(y[-1] if random.random() < 0.7 else (y[-1] + 1 + random.integers(9)) % 10)
    learner = LastLabel(10)
    learner.learn_many(np.zeros((len(y), 1)), y)
    assert learner.predict_proba([0.0])[y[-1]] == pytest.approx(0.7, abs=0.03)


def test_one_class_is_certain():
    assert LastLabel(1).observe(np.zeros((3, 1)), ["a"] * 3).log_loss.tolist() == [0, 0, 0]
