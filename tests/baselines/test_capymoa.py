"""CapyMOA's learners. They start a Java machine, and so they are run on demand: PREQUENTIAL_CAPYMOA=1."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from prequential.baselines import CapyMOALearner
from prequential.errors import BadSetting, MissingExtra
from prequential.registry import make_learner
from prequential.testing.learners import CHECKS

on_demand = pytest.mark.skipif("PREQUENTIAL_CAPYMOA" not in os.environ, reason="set PREQUENTIAL_CAPYMOA to run it")


def test_without_the_package_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "capymoa", None)
    with pytest.raises(MissingExtra, match=r"pip install 'prequential\[capymoa\]'"):
        make_learner("capymoa:classifier.NaiveBayes", 2)


@on_demand
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_battery(check):
    check(lambda classes: CapyMOALearner(classes, model="classifier.NaiveBayes"))


@on_demand
def test_equals_capymoa_by_hand():
    from capymoa.classifier import AdaptiveRandomForestClassifier
    from capymoa.core import Instance, LabeledInstance
    from capymoa.stream import Schema

    random = np.random.default_rng(0)
    x = random.normal(size=(200, 3))
    y = (x[:, 0] > x[:, 1]).astype(int)
    schema = Schema.from_custom(["a", "b", "c", "y"], "y", {"y": ["0", "1"]})
    model, predicted = AdaptiveRandomForestClassifier(schema=schema, random_seed=3, ensemble_size=5), []
    for row, label in zip(x, y, strict=True):
        predicted.append(model.predict(Instance.from_array(schema, row)))
        model.train(LabeledInstance.from_array(schema, row, int(label)))
    learner = make_learner("capymoa:classifier.AdaptiveRandomForestClassifier(ensemble_size=5)", [0, 1], seed=3)
    charges = learner.observe(x, y)
    assert (charges.predicted[1:] == predicted[1:]).mean() > 0.99  # ties aside


@on_demand
def test_words_are_refused():
    with pytest.raises(BadSetting, match="expected a number, true or false"):
        make_learner("capymoa:classifier.AdaptiveRandomForestClassifier(CLI='-s 5')", 2)
