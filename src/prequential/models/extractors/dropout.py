"""Dropout whose masks depend on a given seed alone, never on torch's global random state."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from prequential.errors import BadSetting


class Dropout(nn.Module):
    """Sets each number to zero with probability p while training, and scales the others by 1/(1-p).

    `seed_dropout` must be called on the whole model before each training pass; in evaluation this is the identity.

    Parameters
    ----------
    p
        The probability of dropping a number, at least 0 and below 1.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise BadSetting(f"dropout ({p}) must be at least 0 and below 1")
        self.p = p
        self.generator: torch.Generator | None = None  # not part of any saved state: it is seeded before each pass

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.generator is None:
            raise RuntimeError(
                "call seed_dropout(model, seed) before a training pass: dropout has no random state of its own"
            )
        keep = torch.empty_like(x).bernoulli_(1 - self.p, generator=self.generator)
        return x * keep.mul_(1 / (1 - self.p))


def has_dropout(model: nn.Module) -> bool:
    """Whether a training pass of the model drops numbers."""
    return any(isinstance(module, Dropout) and module.p > 0 for module in model.modules())


def seed_dropout(model: nn.Module, seed: int) -> None:
    """Makes the masks of the next training pass a function of this seed.

    Called with a number that is derived from the learner's own seed and its step, nothing random has to be saved
    and two learners never share random state.

    Parameters
    ----------
    model
        A module with any number of `Dropout` modules inside, each of which gets its own generator.
    seed
        A whole number, at least 0.

    Examples
    --------
    >>> model = nn.Sequential(Dropout(0.5), Dropout(0.5))
    >>> seed_dropout(model, 7)
    >>> first = model(torch.ones(1000))
    >>> seed_dropout(model, 7)
    >>> torch.equal(model(torch.ones(1000)), first)
    True
    >>> sorted(set(first.tolist()))
    [0.0, 4.0]
    """
    if seed < 0:
        raise BadSetting(f"seed ({seed}) must be at least 0")
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    dropouts = [module for module in model.modules() if isinstance(module, Dropout)]
    for i, module in enumerate(dropouts):
        if module.generator is None or module.generator.device != device:
            module.generator = torch.Generator(device)
        mixed = np.random.SeedSequence((seed, i)).generate_state(1, np.uint64)[0]
        module.generator.manual_seed(int(mixed))
