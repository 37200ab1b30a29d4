from __future__ import annotations

import pytest
import torch

from prequential.baselines.feed_forward import Network
from prequential.errors import BadCheckpoint


def new(seed=0, hidden_sizes=(16, 5)):
    return Network((8,), 3, hidden_sizes=hidden_sizes, extractor="none", seed=seed)


def test_all_labels_are_equally_probable_at_the_start():
    assert torch.equal(new()(torch.randn(4, 8)), torch.zeros(4, 3))


def test_the_seed_decides_the_weights_and_nothing_else_is_touched():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    a, b, c = new(0), new(0), new(1)
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(a.hidden[0].weight, b.hidden[0].weight)
    assert not torch.equal(a.hidden[0].weight, c.hidden[0].weight)


def test_macs():
    assert new().macs() == 8 * 16 + 16 * 5 + 5 * 3
    assert new(hidden_sizes=()).macs() == 8 * 3
    image = Network((16, 16), 3, hidden_sizes=(), extractor="convnet", seed=0)
    assert image.macs() == image.extractor.macs() + 256 * 3


def test_examples_do_not_see_each_other():
    network = Network((16, 16, 3), 3, hidden_sizes=(4,), extractor="vgg", seed=0).eval()
    x = torch.rand(3, 3, 16, 16)
    torch.testing.assert_close(network.features(x)[:1], network.features(x[:1]))


def test_foreign_parameters_are_refused():
    parameters = {name: p.detach().numpy() for name, p in new(hidden_sizes=(16, 6)).named_parameters()}
    with pytest.raises(BadCheckpoint, match=r"shape \(6, 16\), expected \(5, 16\)"):
        new().load(parameters)
