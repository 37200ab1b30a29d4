"""AdamW with the parameter groups of the method, and the learning rate at each position."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from prequential.models.transformer import Transformer
from prequential.settings import Settings


class Optimiser:
    """AdamW on a transformer: step size rate / width, another one for the extractor, decay on matrices only.

    With `settings.graphs` a step can be part of a graph: the learning rates are then tensors that are written to, and
    parameters and state stay in the memory where they are for good.
    """

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
        self._base = [settings.extractor_learning_rate if extractor else settings.step_size for extractor, _ in groups]
        self._adamw = torch.optim.AdamW(
            [
                {"params": members, "weight_decay": settings.weight_decay if decays else 0.0}
                for (_, decays), members in groups.items()
            ],
            betas=(settings.beta1, settings.beta2),
            eps=1e-8,
            fused=True,
            capturable=settings.graphs,
        )
        self._parts: list[_Part] | None = None
        device = self._parameters[0].device
        self._broken = torch.zeros((), device=device)  # 1: the gradients are not finite
        self._one = torch.ones((), device=device)
        self._warned = False
        self._skipped = torch.zeros((), device=device, dtype=torch.float64 if device.type == "cpu" else torch.float32)
        # where the host must not wait for the gradients, or a graph is recorded, AdamW itself reads whether to step
        self._looks = device.type == "cpu" and not settings.graphs
        if not self._looks:
            self._adamw.found_inf = self._broken  # type: ignore[attr-defined]
        if settings.graphs:
            # AdamW warns of steps outside of a graph; here they are meant: not every step has the shapes of the graph
            self._adamw._warned_capturable_if_run_uncaptured = True
            # the kernel of GPUs reads float32, the one of processors any: in float64 it rounds as with a plain number
            dtype = torch.float32 if device.type == "cuda" else torch.float64
            for group in self._adamw.param_groups:
                group["lr"] = torch.zeros((), dtype=dtype, device=device)

    def set_rate(self, position: int) -> None:
        """Makes the learning rates of the next step those of this position."""
        factor = rate_factor(self._settings, position)
        for group, base in zip(self._adamw.param_groups, self._base, strict=True):
            if self._settings.graphs:
                group["lr"].fill_(base * factor)
            else:
                group["lr"] = base * factor

    def step(self) -> None:
        """Takes a step with the gradients that are there, and clears them; one that is not finite is not taken.

        Then neither parameters nor AdamW's state change, and the step is counted in `skipped`.
        """
        self._broken.zero_()
        mark_broken(
            [parameter.grad for parameter in self._parameters if parameter.grad is not None], self._broken, self._one
        )
        self._skipped += self._broken
        if self._looks and self._broken.item():
            if not self._warned:
                warnings.warn(
                    "a gradient step is not finite and is not taken; `skipped_steps` counts them", stacklevel=2
                )
            self._warned = True
        elif self._parts is not None and all(parameter.grad is not None for parameter in self._parameters):
            with torch.no_grad():
                for part in self._parts:
                    part.step(None if self._looks else self._broken)
        else:  # of a parameter without a gradient there is no state
            self._adamw.step()
            self._parts = self._to_parts()
        for parameter in self._parameters:
            parameter.grad = None

    def _to_parts(self) -> list[_Part] | None:
        """What AdamW looks up anew in each of its steps; with small networks that shows."""
        groups, state = self._adamw.param_groups, self._adamw.state
        if self._settings.graphs or not all(state.get(parameter) for parameter in self._parameters):
            return None
        return [_Part(group, [state[parameter] for parameter in group["params"]]) for group in groups]

    @property
    def skipped(self) -> int:
        """How many steps were not taken."""
        return int(self._skipped.item())

    @skipped.setter
    def skipped(self, count: int) -> None:
        self._skipped.fill_(count)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Steps taken inside are undone: parameters and state are then what they were, in the memory where they are."""
        skipped = self._skipped.clone()
        before = {parameter: _copies(self._adamw.state.get(parameter, {})) for parameter in self._parameters}
        values = [parameter.detach().clone() for parameter in self._parameters]
        try:
            yield
        finally:
            self._adamw.zero_grad(set_to_none=True)
            with torch.no_grad():
                self._skipped.copy_(skipped)
                for parameter, value in zip(self._parameters, values, strict=True):
                    parameter.copy_(value)
                    for key, tensor in self._adamw.state.get(parameter, {}).items():
                        # all of AdamW's state starts at 0, so one that was made inside goes on as if it were new
                        tensor.copy_(before[parameter][key] if key in before[parameter] else torch.zeros_like(tensor))

    def state_dict(self) -> dict[str, Any]:
        return {
            name: _copies(self._adamw.state[parameter])
            for name, parameter in zip(self._names, self._parameters, strict=True)
            if parameter in self._adamw.state
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._parts = None
        for name, parameter in zip(self._names, self._parameters, strict=True):
            if name in state:
                ours = self._adamw.state[parameter]
                for key, value in state[name].items():
                    saved = torch.as_tensor(value)
                    if key in ours:
                        ours[key].copy_(saved)  # where it is: a graph may work on it
                    else:
                        ours[key] = saved.to(parameter.device, copy=True)


class _Part:
    """A group of AdamW's, whose parameters all have their state."""

    def __init__(self, group: dict[str, Any], states: list[dict[str, Tensor]]) -> None:
        self._group = group  # its learning rate changes
        self._means, self._squares, self._steps = (
            [state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step")
        )

    def step(self, broken: Tensor | None) -> None:
        group = self._group
        beta1, beta2 = group["betas"]
        adamw(
            group["params"],
            [parameter.grad for parameter in group["params"]],
            self._means,
            self._squares,
            [],
            self._steps,
            foreach=group["foreach"],
            fused=group["fused"],
            found_inf=broken,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def mark_broken(gradients: list[Tensor], broken: Tensor, one: Tensor) -> None:
    """Makes `broken` 1 where a gradient is not finite: one pass over all of them, without waiting for a device."""
    if gradients:
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, broken, one)


def all_finite(gradients: list[Tensor]) -> bool:
    """Whether a step may be taken along these gradients."""
    broken = torch.zeros((), device=gradients[0].device)
    mark_broken(gradients, broken, torch.ones_like(broken))
    return not broken.item()


def _copies(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in state.items()}


def rate_factor(settings: Settings, position: int) -> float:
    """What the learning rate is multiplied by at a position of the stream."""
    t = position + 1
    factor = min(1.0, t / settings.warmup_examples) if settings.warmup_examples else 1.0
    if settings.lr_decay == "inverse-sqrt":
        factor *= min(1.0, math.sqrt(settings.lr_decay_examples / t))
    elif settings.lr_decay == "cosine":
        done = min(1.0, t / settings.lr_decay_examples)
        factor *= 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))
    return factor
