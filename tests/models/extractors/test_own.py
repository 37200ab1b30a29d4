"""Extractors of one's own: made, trained jointly, saved, resumed, and never imported because a file says so."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from prequential.errors import BadSetting
from prequential.learners.transformer.learner import Learner
from prequential.models.extractors.own import OwnExtractor
from prequential.storage.checkpoint import same_state
from prequential.trust import Untrusted

SMALL = {"width": 16, "num_query_heads": 2, "depth": 1, "window": 8, "chunk_size": 8, "num_streams": 2}
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, channels, features=6):
        super().__init__()
        self.conv = nn.Conv2d(channels, features, 3, padding=1)
        self.norm = nn.BatchNorm2d(features)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.drop(self.norm(self.conv(x)).relu().mean((2, 3)))

    def macs(self):
        return 100

class Said(Net):
    def __init__(self, channels, features):
        super().__init__(channels, features)
        self.features = features

    def config(self):
        return {"features": self.features}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_net_for_tests.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("own_net_for_tests", None)
    return "own_net_for_tests"


def images(n: int, shape: tuple[int, ...] = (6, 5, 3)) -> tuple[np.ndarray, list[int]]:
    random = np.random.default_rng(0)
    return random.integers(0, 256, (n, *shape), dtype=np.uint8), random.integers(0, 3, n).tolist()


def test_it_is_trained_jointly_with_its_own_learning_rate(module: str) -> None:
    x, y = images(16)
    trained = Learner(3, extractor=f"{module}:Net(features=4)", **SMALL)
    frozen = Learner(3, extractor=f"{module}:Net(features=4)", extractor_learning_rate=0.0, weight_decay=0.0, **SMALL)
    weights = []
    for learner in (trained, frozen):
        learner.learn_many(x[:1], y[:1])
        assert isinstance(learner.model.extractor, OwnExtractor)
        assert learner.model.features == 4
        before = learner.model.extractor.network.conv.weight.detach().clone()
        learner.learn_many(x[1:], y[1:])
        weights.append(torch.equal(before, learner.model.extractor.network.conv.weight))
    assert weights == [False, True]
    assert trained.macs_per_example() > 100


def test_it_resumes_exactly_with_dropout_and_running_statistics(module: str, tmp_path: Path) -> None:
    x, y = images(40)
    learner = Learner(3, extractor=f"{module}:Net", **SMALL)
    learner.learn_many(x[:20], y[:20])
    learner.save(tmp_path / "saved")
    loaded = Learner.load(tmp_path / "saved", trust=True)
    copied = copy.deepcopy(learner)
    expected = learner.observe(x[20:], y[20:]).log_loss
    for other in (loaded, copied):
        assert np.array_equal(other.observe(x[20:], y[20:]).log_loss, expected)
        assert same_state(other.state_dict(), learner.state_dict())


def test_a_file_alone_imports_nothing(module: str, tmp_path: Path) -> None:
    x, y = images(4)
    learner = Learner(3, extractor=f"{module}:Net", home=tmp_path / "home", **SMALL)
    learner.learn_many(x, y)
    learner.save(tmp_path / "saved")
    learner.save()
    learner.close()
    del sys.modules[module]
    for load in (lambda: Learner.load(tmp_path / "saved"), lambda: Learner.open(tmp_path / "home")):
        with pytest.raises(Untrusted, match=rf"asks to import the extractor {module}:Net; .* add --trust"):
            load()
    assert module not in sys.modules
    assert Learner.open(tmp_path / "home", trust=True).position == 4


def test_a_class_and_a_module_can_be_given(module: str) -> None:
    x, y = images(12)
    kind = __import__(module).Net
    named, by_class = Learner(3, extractor=f"{module}:Net", **SMALL), Learner(3, extractor=kind, **SMALL)
    assert np.array_equal(named.observe(x, y).log_loss, by_class.observe(x, y).log_loss)
    given = kind(3)
    before = given.conv.weight.detach().clone()
    learner = Learner(3, extractor=given, **SMALL)
    learner.learn_many(x[:1], y[:1])
    assert torch.equal(learner.model.extractor.network.conv.weight, before)
    learner.learn_many(x[1:], y[1:])
    assert torch.equal(given.conv.weight, before), "the learner trains a copy"


def test_a_module_that_says_its_arguments_is_made_again_with_them(module: str, tmp_path: Path) -> None:
    x, y = images(24)
    learner = Learner(3, extractor=__import__(module).Said(3, features=4), **SMALL)
    assert learner.settings.extractor == f"{module}:Said(features=4)"
    learner.learn_many(x[:12], y[:12])
    learner.save(tmp_path / "saved")
    loaded = Learner.load(tmp_path / "saved", trust=True)
    assert np.array_equal(loaded.observe(x[12:], y[12:]).log_loss, learner.observe(x[12:], y[12:]).log_loss)


def test_a_module_that_cannot_be_made_again_is_refused(module: str) -> None:
    x, y = images(4)
    net = __import__(module).Net
    for given, sentence in (
        (
            net(3, features=4),
            r"extractor Net was given as a module that Net does not make, but loading a saved learner",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(90, 5)),
            "extractor Sequential was given as a module that Sequential does",
        ),
        (nn.Linear(90, 5), r"extractor Linear cannot be made .*, which loading a saved learner has to do; give a func"),
    ):
        learner = Learner(3, extractor=given, **SMALL)
        with pytest.raises(BadSetting, match=sentence) as raised:
            learner.learn_many(x, y)
        assert len(str(raised.value)) <= 300
        assert learner.position == 0
    with pytest.raises(
        BadSetting, match=r"extractor <lambda> cannot be found as .*; move it to the top level of a mod"
    ):
        Learner(3, extractor=lambda: nn.Flatten(), **SMALL)
    wrong = net(3)
    wrong.config = lambda: {"features": torch.zeros(2)}
    with pytest.raises(BadSetting, match=r"extractor Net: config\(\) gave .*, expected a dict of the arguments"):
        Learner(3, extractor=wrong, **SMALL)


@pytest.mark.parametrize("method", ["paper", "mixed"])
def test_later_examples_of_a_chunk_reach_no_prediction_through_batch_statistics(module: str, method: str) -> None:
    x, y = images(24)
    changed = x.copy()
    changed[20:] = 255 - changed[20:]
    losses = [
        Learner(3, extractor=f"{module}:Net", method=method, **SMALL).observe(given, y).log_loss
        for given in (x, changed)
    ]
    assert np.array_equal(losses[0][:20], losses[1][:20])
    assert not np.array_equal(losses[0][20:], losses[1][20:])


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (lambda: 3, "gave a int, expected a torch.nn.Module"),
        (nn.Identity, r"gave \(2, 3, 6, 5\) for 2 images, expected \(2, features\)"),
        (lambda: nn.Linear(7, 2), r"cannot take images of shape \(3, 6, 5\): RuntimeError"),
        (lambda wrong: nn.Flatten(), r"cannot be made for images of shape \(3, 6, 5\): TypeError"),
    ],
)
def test_what_is_no_extractor_is_refused_in_a_sentence(network: object, sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        OwnExtractor(network, (3, 6, 5), {})  # type: ignore[arg-type]


def test_names_that_mean_nothing_are_refused() -> None:
    with pytest.raises(BadSetting, match=r"extractor is 'resnet', expected one of auto, none, .*, MODULE:CLASS"):
        Learner(3, extractor="resnet")
    with pytest.raises(BadSetting, match="extractor 'no_such_module:Net': module 'no_such_module' cannot be imported"):
        Learner(3, extractor="no_such_module:Net")


def test_channels_first_is_said_or_refused_never_guessed() -> None:
    x, y = images(12)
    first = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    with pytest.raises(BadSetting, match=r"x has shape \(3, 6, 5\), which looks like \(channels, height, width\)"):
        Learner(3, **SMALL).learn_many(first, y)
    last = Learner(3, **SMALL).observe(x, y).log_loss
    said = Learner(3, channel_order="first", **SMALL).observe(first, y).log_loss
    assert np.array_equal(said, last)
    Learner(3, channel_order="last", **SMALL).learn_many(first, y)
