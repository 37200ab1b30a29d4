"""The cost model against PyTorch's own counter and the figure known for the paper's model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parent))
from helpers import FEATURES, example, small

from prequential.models.pi import PiTransformer
from prequential.settings import Settings


@pytest.mark.parametrize("model", ["pi", "two-token"])
@pytest.mark.parametrize("window", [0, 8])
def test_multiply_accumulates_equal_what_the_counter_counts(model, window):
    network = small(model, chunk=6, window=window)
    x, y = example(18)
    cache = network.new_cache()
    for start in (0, 6):  # fills the cache
        _, new = network(x[:, start : start + 6], y[:, start : start + 6], cache.past(), [cache.filled])
        cache.finish_chunk(new)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(x[:, 12:], y[:, 12:], cache.past(), [cache.filled])
    compared = window + 6 * network.tokens_per_example + 1  # all keys of the pass and the null slot
    counted = counter.get_total_flops() / 2
    if model == "two-token":
        assert FEATURES < 16  # the readout is for x tokens only, as the cost model says
    assert counted == 6 * network.macs_per_example(keys=compared)


def test_the_paper_s_base_model_costs_what_it_should():
    settings = Settings(width=1024, depth=4, heads=8, window=512, chunk=256, streams=8)
    with torch.device("meta"):
        model = PiTransformer(settings, features=2048, classes=713)
    total = 3 * 8 * 37_093_769 * model.macs_per_example()
    assert f"{total:.3g}" == "4.45e+16"
