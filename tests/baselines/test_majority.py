from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from prequential.baselines import Majority
from prequential.errors import BadSetting


@pytest.mark.parametrize("window", [1, 7, 50])
def test_is_the_most_frequent_of_the_window(window):
    y = np.random.default_rng(0).integers(5, size=400).tolist()
    learner = Majority(5, window=window)
    charges = learner.observe(np.zeros((400, 2)), y)
    order = {label: class_id for class_id, label in enumerate(learner.labels.known)}
    for t in range(1, 400):
        counts = Counter(order[label] for label in y[max(0, t - window) : t])
        best = min(counts, key=lambda class_id: (-counts[class_id], class_id))  # ties: the label met first
        assert charges.predicted[t] == best


def test_probabilities_are_smoothed_counts():
    learner = Majority(4, window=3, smoothing=2.0)
    learner.learn_many(np.zeros((4, 1)), ["a", "b", "b", "c"])
    p = learner.predict_proba([0.0])
    assert p == pytest.approx({"a": 0.5 / 5, "b": 2.5 / 5, "c": 1.5 / 5})
    assert p["never met"] == pytest.approx(0.5 / 5)


def test_bad_settings():
    with pytest.raises(BadSetting, match=r"window \(0\) must be at least 1"):
        Majority(2, window=0)
    with pytest.raises(BadSetting, match=r"smoothing \(0\) must be above 0"):
        Majority(2, smoothing=0)
