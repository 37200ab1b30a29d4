"""Long chunks attend in parts, each with the keys that it may see; the result is that of attending in one."""

from unittest.mock import patch

import pytest
import torch

from prequential.models import attention, transformer
from prequential.models.context import stacked
from prequential.models.pi import PiTransformer
from prequential.models.two_token import TwoTokenTransformer
from prequential.settings import Settings


def outputs(kind, window, in_parts):
    """What a network gives for chunks of several lengths, then for two streams with unequal pasts, and its gradient."""
    settings = Settings(
        model="pi" if kind is PiTransformer else "two-token", width=16, depth=2, window=window, chunk_size=150
    )
    torch.manual_seed(0)
    network = kind(settings, features=4, classes=3)
    for parameter in network.parameters():
        parameter.data.normal_(std=0.3)
    contexts, given = [network.new_context() for _ in range(2)], []
    with patch.object(transformer, "parts", attention.parts if in_parts else lambda tokens: [(0, tokens)]):
        for n in (30, 150, 150):
            outs, new = network(torch.randn(1, n, 4), torch.randint(0, 3, (1, n)), contexts[0].past())
            contexts[0].finish_chunk(new)
            given += outs
            if n == 30:
                contexts[1].finish_chunk(new)
        given += network(torch.randn(2, 150, 4), torch.randint(0, 3, (2, 150)), stacked(contexts))[0]
    everything = torch.cat([out.flatten() for out in given])
    everything.square().mean().backward()
    gradient = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
    return everything.detach(), gradient


@pytest.mark.parametrize("kind", [PiTransformer, TwoTokenTransformer])
@pytest.mark.parametrize("window", [40, 200])
def test_parts_give_what_the_whole_gives(kind, window):
    (there, slope), (here, same_slope) = (outputs(kind, window, in_parts) for in_parts in (False, True))
    torch.testing.assert_close(here, there)
    torch.testing.assert_close(same_slope, slope, rtol=1e-4, atol=1e-6)


def test_parts_see_fewer_keys():
    network = PiTransformer(Settings(width=16, depth=1, window=200, chunk_size=256), features=4, classes=3)
    context = network.new_context()
    for _ in range(2):
        context.finish_chunk(network(torch.randn(1, 256, 4), torch.randint(0, 3, (1, 256)), context.past())[1])
    assert [bias.shape[2] for bias in network._bias(256, context.past())] == [200 + 64 + 1] * 4


def test_short_chunks_stay_whole():
    assert attention.parts(100) == [(0, 100)]
    assert attention.parts(150) == [(0, 64), (64, 128), (128, 150)]
