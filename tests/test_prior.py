"""The study of a start that has learned to learn in context computes what the learner's own network computes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prequential.models.lookback import LookBack
from prequential.models.pi import PiTransformer
from prequential.settings import Settings

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports files of the study as its commands do, and forgets them afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


def test_streams_are_those_of_their_seed_and_number_labels_as_they_appear(load: Callable[[str], Any]) -> None:
    random_stream = load("prior_streams").random_stream
    for seed in range(60):
        x, y, num_classes = random_stream(np.random.default_rng(seed), 64)
        again = random_stream(np.random.default_rng(seed), 64)
        assert np.array_equal(x, again.x)
        assert np.array_equal(y, again.y)
        assert x.shape[0] == len(y) == 64
        assert np.isfinite(x).all()
        assert y.max() < num_classes
        assert (y <= np.concatenate([[0], np.maximum.accumulate(y)[:-1] + 1])).all()


@pytest.mark.parametrize("label_batch", [1, 20])
def test_the_pass_of_the_prior_is_that_of_the_model(load: Callable[[str], Any], label_batch: int) -> None:
    study = load("prior")
    rows, settings = 70, Settings(chunk_size=96)
    prior = study.Prior(settings)
    batch = study.make_batch(np.random.default_rng(0), 2, rows, label_batch, settings.width)
    row = np.arange(rows)
    look = LookBack((row // label_batch * label_batch)[None], row, True, row // 32) if label_batch > 1 else None
    model = PiTransformer(settings, features=settings.width, num_classes=study.CLASSES)
    torch.nn.init.eye_(model.embed.weight)
    with torch.no_grad():
        found = prior(batch)
        for i, (x, y, prior_of_labels) in enumerate(zip(batch.embedded, batch.y, batch.log_prior, strict=True)):
            prior.apply_to(model, batch.codes[i])
            outs, _ = model(x[None], y[None], model.new_context().committed(), look)
            for head, out, of_prior in zip(model.all_heads, outs, found, strict=True):
                expected = head.log_probs(out[0], prior_of_labels).gather(1, y[:, None])[:, 0]
                torch.testing.assert_close(of_prior[i], expected, rtol=0, atol=1e-4)


def test_a_training_that_was_interrupted_ends_with_the_same_bits(
    load: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load("prior")
    monkeypatch.setattr(study, "SHAPES", ((2, 32, 1), (2, 32, 10)))
    macs = 3.5 * study.Prior(Settings()).macs(64, 32)
    whole = study.train(tmp_path / "whole.safetensors", macs=macs)
    study.train(tmp_path / "parts.safetensors", macs=macs, most_steps=2)
    assert study.train(tmp_path / "parts.safetensors", macs=macs) == whole
    assert whole.step == 4
    files = [(tmp_path / f"{name}.safetensors").read_bytes() for name in ("whole", "parts")]
    assert files[0] == files[1]
    with pytest.raises(SystemExit, match="was begun with"):
        study.train(tmp_path / "parts.safetensors", macs=2 * macs)


def test_a_learner_starts_with_what_was_trained(load: Callable[[str], Any], tmp_path: Path) -> None:
    study, start = load("prior"), load("prior_start")
    study.train(tmp_path / "prior.safetensors", macs=0)
    kinds = {"features": 4, "extractor": "none", "shape": (4,), "num_classes": 3}
    random = start.make_model(Settings(), **kinds)
    model = start.started(str(tmp_path / "prior.safetensors"))(Settings(), **kinds)
    trained = study.load_prior(tmp_path / "prior.safetensors").trained()
    assert torch.equal(model.embed.weight, random.embed.weight)
    assert torch.equal(model.blocks[1].in_proj.weight, trained["blocks.1.in_proj.weight"])
    assert not torch.equal(model.blocks[1].in_proj.weight, random.blocks[1].in_proj.weight)
    assert model.output_heads["softmax"].readout.weight.abs().min() > 0
    like = start.started("likeness")(Settings(), **kinds).blocks[0].in_proj.weight
    assert torch.equal(like[:32], like[128:160])
