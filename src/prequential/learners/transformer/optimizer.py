"""AdamW with the parameter groups of the method, and the learning rate at each position."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from prequential.models.grow import copied_rows
from prequential.models.transformer import Transformer
from prequential.settings import Settings


class Optimizer:
    """AdamW on a transformer: step size rate / width, another one for the extractor, weight decay on matrices only.

    Parameters
    ----------
    model
        Whose parameters it changes.
    settings
        The learning rates and their schedule, betas and weight decay.
    """

    def __init__(self, model: Transformer, settings: Settings) -> None:
        self._settings = settings
        embeddings = {
            id(parameter)
            for module in model.modules()
            if isinstance(module, nn.Embedding)
            for parameter in module.parameters()
        }
        groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
        self._parameters = dict(model.named_parameters())
        for name, parameter in self._parameters.items():
            decays = parameter.ndim >= 2 and id(parameter) not in embeddings
            groups.setdefault((name.startswith("extractor."), decays), []).append(parameter)
        self._learning_rates = [
            settings.extractor_learning_rate if extractor else settings.step_size for extractor, _ in groups
        ]
        self._adamw = torch.optim.AdamW(
            [
                {"params": members, "weight_decay": settings.weight_decay if decays else 0.0}
                for (_, decays), members in groups.items()
            ],
            betas=(settings.beta1, settings.beta2),
            eps=1e-8,
            fused=True,
        )
        device = next(iter(self._parameters.values())).device
        self._not_finite = torch.zeros((), device=device)  # 1: the gradients are not finite
        self._one = torch.ones((), device=device)
        self._warned = False
        self._skipped = torch.zeros((), device=device, dtype=torch.float64 if device.type == "cpu" else torch.float32)
        # a GPU must not be waited for in each step: there AdamW's kernel reads whether to take it
        self._waits = device.type == "cpu"
        if not self._waits:
            self._adamw.found_inf = self._not_finite  # type: ignore[attr-defined]

    def set_learning_rate(self, position: int) -> None:
        """Makes the learning rates of the next step those of this position."""
        factor = learning_rate_factor(self._settings, position)
        for group, learning_rate in zip(self._adamw.param_groups, self._learning_rates, strict=True):
            group["lr"] = learning_rate * factor

    def step(self) -> None:
        """Takes a step along the gradients and clears them; where one is not finite, nothing but `skipped` changes."""
        self._not_finite.zero_()
        gradients = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        mark_not_finite(gradients, self._not_finite, self._one)
        self._skipped += self._not_finite
        if not self._waits or not self._not_finite.item():
            self._adamw.step()
        else:
            self._warn()
        self._adamw.zero_grad(set_to_none=True)

    def skip(self) -> None:
        """Counts a step that was not taken."""
        self._skipped += 1
        self._warn()

    def _warn(self) -> None:
        if not self._warned:
            warnings.warn("a gradient step is not finite and is not taken; `skipped_steps` counts them", stacklevel=3)
            self._warned = True

    @property
    def adamw(self) -> torch.optim.AdamW:
        """What holds the moments."""
        return self._adamw

    @property
    def skipped(self) -> int:
        """How many steps were not taken."""
        return int(self._skipped.item())

    @skipped.setter
    def skipped(self, count: int) -> None:
        self._skipped.fill_(count)

    def grown_moments(self, tables: Iterable[str], rows: int, like: int) -> dict[str, dict[str, Tensor]]:
        """The moments of parameters that get this many rows, by name; the new ones are those of row `like`."""
        return {name: copied_moments(self._adamw.state.get(self._parameters[name], {}), rows, like) for name in tables}

    def grow(self, moments: dict[str, dict[str, Tensor]]) -> None:
        """Takes over what `grown_moments` made."""
        for name, grown in moments.items():
            if grown:
                self._adamw.state[self._parameters[name]].update(grown)

    def state_dict(self) -> dict[str, Any]:
        """The moments of every parameter by its name."""
        state = self._adamw.state
        return {
            name: {key: value.clone() for key, value in state[parameter].items()}
            for name, parameter in self._parameters.items()
            if parameter in state
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, parameter in self._parameters.items():
            self._adamw.state.pop(parameter, None)
            if name in state:
                self._adamw.state[parameter] = {
                    key: torch.as_tensor(value).to(parameter.device, copy=True) for key, value in state[name].items()
                }


def copied_moments(state: dict[str, Tensor], rows: int, like: int) -> dict[str, Tensor]:
    """AdamW's moments of a table (K, ...), with this many rows; the new ones are row `like`."""
    return {name: copied_rows(state[name], rows, like) for name in ("exp_avg", "exp_avg_sq") if name in state}


def mark_not_finite(gradients: list[Tensor], mark: Tensor, one: Tensor) -> None:
    """Makes `mark` 1 where a gradient is not finite: one pass over all of them, without waiting for a device."""
    if gradients:
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, mark, one)


def all_finite(gradients: list[Tensor]) -> bool:
    """Whether a step may be taken along these gradients."""
    mark = torch.zeros((), device=gradients[0].device)
    mark_not_finite(gradients, mark, torch.ones_like(mark))
    return not mark.item()


def learning_rate_factor(settings: Settings, position: int) -> float:
    """What the learning rate is multiplied by at a position of the stream."""
    t = position + 1
    factor = min(1.0, t / settings.warmup_examples) if settings.warmup_examples else 1.0
    if settings.lr_decay == "inverse-sqrt":
        factor *= min(1.0, math.sqrt(settings.lr_decay_examples / t))
    elif settings.lr_decay == "cosine":
        done = min(1.0, t / settings.lr_decay_examples)
        factor *= 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))
    return factor
