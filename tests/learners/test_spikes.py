"""Broken values: the accuracy comes back, nothing becomes NaN, and steps that are not finite are not taken."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from prequential.learners.transformer.learner import Learner
from prequential.learners.transformer.optimizer import all_finite
from prequential.learners.transformer.steps import TorchSteps
from prequential.registry import make_learner
from prequential.settings import Settings
from prequential.storage.checkpoint import same_state
from prequential.testing.learners import check_broken_values
from shared.engines import ENGINES

SMALL = {"width": 16, "num_query_heads": 2, "depth": 1, "window": 32, "chunk_size": 16, "num_streams": 2}
BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture
def spikes(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("spikes")


# linear ones, of which a single large value moves all weights
LEARNERS = [
    "kalman(block=32)",
    "acm",
    "river:linear_model.LogisticRegression(standardize=True)",
    "sklearn:linear_model.SGDClassifier(loss='log_loss')",
]


@pytest.mark.parametrize("learner", LEARNERS)
def test_baselines_see_as_well_after_broken_values(spikes, learner):
    kinds = ["one 1e30", "the very first, -1e7", "five 1e6 in a row", "999 in 1 %"]
    kinds = kinds[2:] if ":" in learner else kinds  # some take their time
    for row in spikes.measure(learner, "synthetic", kinds, n=1000, start=300):
        assert row["finite"]
        assert row["lost"] < 0.03, row


def test_the_transformer_sees_as_well_after_broken_values(spikes):
    kinds = ["999 in 1 %", "new level, 1e4 deviations off"]
    settings = Settings(**SMALL)
    for row in spikes.measure("transformer", "synthetic", kinds, n=1100, start=400, settings=settings):
        assert row["finite"]
        assert row["lost"] < 0.03, row


RAW = [
    *(
        f"transformer(standardize=False{more})"
        for more in ("", ", async_steps=True", ", updates='joint'", ", model='two-token'")
    ),
    "er(standardize=False, batch=16)",
    "replay-streams(standardize=False, chunk_size=16, hidden_sizes=[8])",
    "kalman(standardize=False, block=16)",
    "kalman(standardize=False, block=16, precision='float32')",
    "kalman-network(standardize=False, chunk_size=16, hidden_sizes=[8])",
    "acm(standardize=False)",
    "river:linear_model.LogisticRegression()",
    "sklearn:linear_model.SGDClassifier(loss='log_loss', standardize=False)",
]


@pytest.mark.parametrize("spec", RAW)
def test_unscaled_features_break_nothing(spec):
    # gradient descent with a fixed step goes as far astray as the largest feature is large
    most = np.inf if spec.startswith("er(") else 20.0
    check_broken_values(lambda classes: make_learner(spec, classes, settings=Settings(**SMALL)), most=most)


@pytest.mark.parametrize("large", [1e30, float(np.finfo(np.float32).max)])
def test_predictions_after_an_absurd_image_are_finite(large):
    random = np.random.default_rng(0)
    x, y = random.random((96, 8, 8)).astype(np.float32), [0, 1] * 48
    x[20, 3, 3] = large
    learner = Learner(2, **SMALL)
    assert np.isfinite(learner.observe(x, y).log_loss).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("changes", [{}, {"updates": "joint"}, {"async_steps": True}], ids=str)
def test_a_step_that_is_not_finite_is_not_taken(monkeypatch, changes, engine):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(192, 3)).astype(np.float32), random.integers(0, 2, 192).tolist()
    learner = Learner(2, **{**SMALL, **changes}, engine=engine)
    learner.observe(x[:96], y[:96])
    before = parts(learner)
    assert learner.skipped_steps == 0
    loss = TorchSteps._loss
    with monkeypatch.context() as patched:
        if engine == "torch":
            patched.setattr(TorchSteps, "_loss", lambda self, *given: loss(self, *given) * torch.nan)
        else:
            poisoned = learner.model.get_parameter("output_heads.copy.log_temperature").data
            temperature = poisoned.clone()
            poisoned.fill_(torch.nan)
        said = pytest.warns(UserWarning, match="not finite and is not taken")
        with said:
            charged = learner.observe(x[96:112], y[96:112])
            if engine == "native":
                learner._parts.trainer.wait()
                poisoned.copy_(temperature)
            after = parts(learner)  # waits for steps behind
    assert np.isfinite(charged.log_loss).all()
    if not changes.get("async_steps"):  # there, what was taken over shows a chunk later
        assert same_state(before["model"], after["model"])
    assert same_state(before["optimizer"], after["optimizer"])
    skipped = 1 if changes.get("updates") == "joint" else 2
    assert learner.skipped_steps == skipped
    again = Learner(2, **{**SMALL, **changes}, engine=engine)
    again.load_state_dict(learner.state_dict())
    assert again.skipped_steps == skipped
    assert np.isfinite(learner.observe(x[112:], y[112:]).log_loss).all()
    assert learner.skipped_steps == skipped
    assert not same_state(after["optimizer"], parts(learner)["optimizer"]), "no step was taken any more"


def parts(learner):
    return learner.state_dict()["learner"]["parts"]["trainer"]


@pytest.mark.parametrize(
    "spec",
    [
        "er(batch=16)",
        "replay-streams(chunk_size=16, hidden_sizes=[8])",
        "kalman-network(chunk_size=16, hidden_sizes=[8])",
    ],
)
def test_baselines_take_no_step_that_is_not_finite(monkeypatch, spec):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(64, 3)).astype(np.float32), random.integers(0, 2, 64).tolist()
    learner = make_learner(spec, 2)
    learner.observe(x[:32], y[:32])
    grad = torch.autograd.grad
    with monkeypatch.context() as patched:
        patched.setattr(torch.autograd, "grad", lambda *given, **more: [g * torch.nan for g in grad(*given, **more)])
        learner.observe(x[32:48], y[32:48])
    assert learner.skipped_steps > 0
    again = make_learner(spec, 2)
    again.load_state_dict(learner.state_dict())
    assert again.skipped_steps == learner.skipped_steps
    assert np.isfinite(learner.observe(x[48:], y[48:]).log_loss).all()


def test_all_finite():
    whole = [torch.ones(3, 2), torch.zeros(4)]
    assert all_finite(whole)
    assert torch.equal(whole[0], torch.ones(3, 2)), "looking changed the gradients"
    for value in (torch.nan, torch.inf, -torch.inf):
        assert not all_finite([torch.ones(3), torch.tensor([1.0, value])])


def test_a_network_that_has_diverged_still_predicts():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(64, 3)).astype(np.float32), random.integers(0, 2, 64).tolist()
    learner = Learner(2, **SMALL)
    learner.observe(x[:32], y[:32])
    with torch.no_grad():
        trainer = learner._parts.trainer
        for parameter in [*trainer.model.parameters(), *trainer.ema_model.parameters()]:
            parameter.fill_(torch.nan)
    with pytest.warns(UserWarning, match="not taken"):
        charges = learner.observe(x[32:], y[32:])
    assert np.isfinite(charges.log_loss).all()
    assert learner.skipped_steps == 4
    assert sum(learner.predict_proba(x[0]).values()) == pytest.approx(1, abs=1e-6)


def test_hints_name_what_recurs():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(400, 3)), random.integers(0, 2, 400).tolist()
    x[[100, 150, 200, 399], 2] = -9999
    for learner in (Learner(2, **SMALL), make_learner("kalman", 2), make_learner("er", 2), make_learner("acm", 2)):
        assert learner.hints() == []
        learner.observe(x, y)
        (hint,) = learner.hints(["a", "b", "pressure"])
        assert hint.startswith("feature 2 ('pressure') is -9999 in 4 of 400 examples, far outside its range")
        assert len(hint) <= 300
        assert learner.hints()[0].startswith("feature 2 is -9999")
