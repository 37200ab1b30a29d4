"""The cost model against PyTorch's own counter and the figure known for the paper's model."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parent))
from helpers import FEATURES, example, small

from prequential.learners.transformer.learner import Learner
from prequential.models.pi import PiTransformer
from prequential.settings import Settings


@pytest.mark.parametrize("model", ["pi", "two-token"])
@pytest.mark.parametrize(("method", "window"), [("paper", 0), ("paper", 8), ("mixed", 8), ("copy", 8)])
def test_multiply_accumulates_equal_what_the_counter_counts(model, method, window):
    network = small(model, chunk_size=6, window=window, method=method)
    x, y = example(18)
    context = network.new_context()
    for start in (0, 6):  # fills it
        _, new = network(x[:, start : start + 6], y[:, start : start + 6], context.committed())
        context.commit(new)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(x[:, 12:], y[:, 12:], context.committed())
    compared = window + 6 * network.tokens_per_example + 1  # all keys of the pass and the null slot
    counted = counter.get_total_flops() / 2
    if model == "two-token":
        assert FEATURES < 16  # the readout is for x tokens only, as the cost model says
    examples = network.settings.window_examples + 6 + 1
    assert counted == 6 * network.macs_per_example(keys=compared, examples=examples)


def test_the_paper_s_base_model_costs_what_it_should():
    settings = Settings(
        method="paper", width=1024, depth=4, num_query_heads=8, window=512, chunk_size=256, num_streams=8
    )
    with torch.device("meta"):
        model = PiTransformer(settings, features=2048, num_classes=713)
    total = 3 * 8 * 37_093_769 * model.macs_per_example()
    assert f"{total:.3g}" == "4.45e+16"


def test_copying_costs_little():
    with torch.device("meta"):
        paper, mixed = (
            PiTransformer(Settings(method=method, mlp_width=512), features=54, num_classes=7).macs_per_example()
            for method in ("paper", "mixed")
        )
    assert mixed - paper == 512 * 128 + 512 * 32 + 32 * 128  # the number of classes does not matter
    assert mixed < 1.08 * paper


@pytest.mark.parametrize(
    ("features", "classes"),
    [(2, 2), (8, 2), (54, 7), (64, 10), (256, 40), (8, 434), (512, 434), (64, 713), (2, 1000), (64, 1000)],
)
def test_the_default_costs_no_more_than_the_paper_s_method(features, classes):
    x = np.random.default_rng(0).normal(size=(2, features))
    macs = {}
    for method in ("paper", "mixed"):
        learner = Learner(classes, method=method)
        learner.learn_many(x, [0, 1])
        macs[method] = learner.macs_per_example()
    assert macs["mixed"] < macs["paper"]
