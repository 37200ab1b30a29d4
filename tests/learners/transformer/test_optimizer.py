"""The optimizer takes exactly the steps of torch's AdamW."""

from __future__ import annotations

import torch
from torch import Tensor

from prequential.learners.transformer.optimizer import Optimizer
from prequential.models.pi import PiTransformer
from prequential.settings import Settings

SETTINGS = Settings(width=16, depth=1, window=8, chunk_size=4, method="paper", warmup_examples=20, weight_decay=0.1)


def new() -> tuple[PiTransformer, Optimizer]:
    torch.manual_seed(0)
    model = PiTransformer(SETTINGS, features=3, num_classes=4)
    return model, Optimizer(model, SETTINGS)


def give_gradients(model: PiTransformer, step: int, but: str = "") -> None:
    random = torch.Generator().manual_seed(step)
    for name, parameter in model.named_parameters():
        gradient = torch.randn(parameter.shape, generator=random)
        parameter.grad = None if name == but else gradient


def values(model: PiTransformer) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_steps_are_those_of_adamw_to_the_bit() -> None:
    (ours, optimizer), (theirs, other) = new(), new()
    for step in range(5):
        for model in (ours, theirs):
            give_gradients(model, step)
        for each in (optimizer, other):
            each.set_learning_rate(step)
        optimizer.step()
        other._adamw.step()
        assert all(torch.equal(a, b) for a, b in zip(values(ours), values(theirs), strict=True))
    assert all(parameter.grad is None for parameter in ours.parameters())


def test_a_parameter_without_a_gradient_stays_as_it_is() -> None:
    model, optimizer = new()
    for step in range(4):
        but = "embed.bias" if step in (0, 2) else ""
        give_gradients(model, step, but)
        before = model.embed.bias.detach().clone()
        optimizer.set_learning_rate(100)
        optimizer.step()
        assert torch.equal(before, model.embed.bias) == bool(but)


def test_a_restored_optimizer_goes_on_to_the_bit() -> None:
    (model, optimizer), (restored, other) = new(), new()
    for step in range(6):
        if step == 3:
            restored.load_state_dict(model.state_dict())
            other.load_state_dict(optimizer.state_dict())
        for each, its in ((model, optimizer), (restored, other)):
            give_gradients(each, step)
            its.set_learning_rate(step)
            its.step()
    assert all(torch.equal(a, b) for a, b in zip(values(model), values(restored), strict=True))
