"""The optimiser takes exactly the steps of torch's AdamW, without its detours."""

from __future__ import annotations

import torch
from torch import Tensor

from prequential.learners.transformer.optimizer import Optimiser
from prequential.models.pi import PiTransformer
from prequential.settings import Settings

SETTINGS = Settings(width=16, depth=1, window=8, chunk_size=4, method="paper", warmup_examples=20, weight_decay=0.1)


def new() -> tuple[PiTransformer, Optimiser]:
    torch.manual_seed(0)
    model = PiTransformer(SETTINGS, features=3, classes=4)
    return model, Optimiser(model, SETTINGS)


def give_gradients(model: PiTransformer, step: int, but: str = "") -> None:
    random = torch.Generator().manual_seed(step)
    for name, parameter in model.named_parameters():
        gradient = torch.randn(parameter.shape, generator=random)
        parameter.grad = None if name == but else gradient


def values(model: PiTransformer) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_steps_are_those_of_adamw_to_the_bit() -> None:
    (ours, optimiser), (theirs, other) = new(), new()
    for step in range(5):
        for model in (ours, theirs):
            give_gradients(model, step)
        for each in (optimiser, other):
            each.set_rate(step)
        optimiser.step()
        other._adamw.step()
        assert all(torch.equal(a, b) for a, b in zip(values(ours), values(theirs), strict=True))
    assert all(parameter.grad is None for parameter in ours.parameters())
    assert optimiser._parts is not None, "the way without detours was not taken"


def test_a_parameter_without_a_gradient_stays_as_it_is() -> None:
    model, optimiser = new()
    for step in range(4):
        but = "embed.bias" if step in (0, 2) else ""
        give_gradients(model, step, but)
        before = model.embed.bias.detach().clone()
        optimiser.set_rate(100)
        optimiser.step()
        assert torch.equal(before, model.embed.bias) == bool(but)


def test_a_restored_optimiser_goes_on_to_the_bit() -> None:
    (model, optimiser), (restored, other) = new(), new()
    for step in range(6):
        if step == 3:
            restored.load_state_dict(model.state_dict())
            other.load_state_dict(optimiser.state_dict())
        for each, its in ((model, optimiser), (restored, other)):
            give_gradients(each, step)
            its.set_rate(step)
            its.step()
    assert all(torch.equal(a, b) for a, b in zip(values(model), values(restored), strict=True))
