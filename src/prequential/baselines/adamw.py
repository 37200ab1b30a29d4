"""AdamW on named parameters, with a state of plain arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from prequential.learners.transformer.optimizer import all_finite, copied_moments


class AdamW:
    """PyTorch's AdamW with weight decay on matrices only: never on biases and norms.

    Parameters
    ----------
    parameters
        Names and parameters.
    rate, weight_decay
        Of the optimizer.

    Examples
    --------
    >>> weight = nn.Parameter(torch.ones(1))
    >>> optimizer = AdamW([("weight", weight)], rate=0.1, weight_decay=0.0)
    >>> for _ in range(100):
    ...     optimizer.step((weight**2).sum())
    >>> bool(weight.abs() < 0.1)
    True
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], *, rate: float, weight_decay: float) -> None:
        self._named = dict(parameters)
        self.skipped = 0  # steps not taken
        groups = [
            {"params": [p for p in self._named.values() if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in self._named.values() if p.ndim < 2], "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW([group for group in groups if group["params"]], lr=rate, fused=True)

    def step(self, loss: Tensor) -> None:
        """Takes a step against the gradient of the loss; one that is not finite is not taken, and counted."""
        parameters = list(self._named.values())
        gradients = torch.autograd.grad(loss, parameters)
        if not all_finite(list(gradients)):
            self.skipped += 1
            return
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)

    def grow(self, classes: int, like: int) -> None:
        """Adds moments for outputs that a network has got, copies of those of this output."""
        for name, parameter in self._named.items():
            if name.startswith("readout.") and parameter in self._adamw.state:
                state = self._adamw.state[parameter]
                state.update(copied_moments(state, classes, like))

    def state_dict(self) -> dict[str, Any]:
        return {name: dict(self._adamw.state[p]) for name, p in self._named.items() if p in self._adamw.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, saved in state.items():
            parameter = self._named[name]
            self._adamw.state[parameter] = {
                key: torch.as_tensor(value).clone().to(parameter.device) for key, value in saved.items()
            }
