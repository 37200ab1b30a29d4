"""AdamW with the parameter groups of the method, and the learning rate at each position."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from prequential.models.transformer import Transformer
from prequential.settings import Settings


class Optimiser:
    """AdamW on a transformer: step size rate / width, another one for the extractor, decay on matrices only."""

    def __init__(self, model: Transformer, settings: Settings) -> None:
        self._settings = settings
        no_decay = {
            id(parameter)
            for module in model.modules()
            if isinstance(module, nn.Embedding)
            for parameter in module.parameters()
        }
        groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
        self._names: list[str] = []
        self._parameters: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            decays = parameter.ndim >= 2 and id(parameter) not in no_decay
            groups.setdefault((name.startswith("extractor."), decays), []).append(parameter)
            self._names.append(name)
            self._parameters.append(parameter)
        self._base = [settings.extractor_rate if extractor else settings.step_size for extractor, _ in groups]
        self._adamw = torch.optim.AdamW(
            [
                {"params": members, "weight_decay": settings.weight_decay if decays else 0.0}
                for (_, decays), members in groups.items()
            ],
            betas=(settings.beta1, settings.beta2),
            eps=1e-8,
            fused=True,
        )

    def step(self, position: int) -> None:
        """Takes a step with the gradients that are there, at the learning rate of this position, and clears them."""
        factor = rate_factor(self._settings, position)
        for group, base in zip(self._adamw.param_groups, self._base, strict=True):
            group["lr"] = base * factor
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Any]:
        return {
            name: {key: value.clone() for key, value in self._adamw.state[parameter].items()}
            for name, parameter in zip(self._names, self._parameters, strict=True)
            if parameter in self._adamw.state
        }

    def load_state(self, state: dict[str, Any]) -> None:
        for name, parameter in zip(self._names, self._parameters, strict=True):
            if name in state:
                saved = {key: torch.tensor(value) for key, value in state[name].items()}
                self._adamw.state[parameter] = {key: value.to(parameter.device) for key, value in saved.items()}


def rate_factor(settings: Settings, position: int) -> float:
    """What the learning rate is multiplied by at a position of the stream."""
    t = position + 1
    factor = min(1.0, t / settings.warmup) if settings.warmup else 1.0
    if settings.decay == "inverse-sqrt":
        factor *= min(1.0, math.sqrt(settings.decay_examples / t))
    elif settings.decay == "cosine":
        done = min(1.0, t / settings.decay_examples)
        factor *= 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))
    return factor
