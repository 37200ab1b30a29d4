"""Which engine computes: the native core, or torch, which does everything."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple, get_args

import torch

from prequential.errors import BadSetting
from prequential.learners.transformer.distributed import Ranks
from prequential.learners.transformer.native_engine import NativePasses, NativeSteps
from prequential.learners.transformer.optimizer import Optimizer
from prequential.learners.transformer.passes import Passes, TorchPasses
from prequential.learners.transformer.steps import Steps, TorchSteps
from prequential.models.transformer import Transformer
from prequential.native.library import library
from prequential.native.transformer import unsupported
from prequential.settings import Settings

EngineName = Literal["native", "torch"]
VARIABLE = "PREQUENTIAL_ENGINE"  # what `engine="auto"` means in this process: auto, native or torch

WIDEST = 512  # from there on the products are so large that nothing is left to gain beside them
LONG_NAMES: dict[str, str] = {"native": "the native core", "torch": "torch"}


class Choice(NamedTuple):
    """The engine that computes, and why it is not the native core."""

    name: EngineName
    why: str = ""

    def describe(self) -> str:
        """For the summary of a run.

        >>> Choice("torch", "engine is torch").describe()
        'computed by torch: engine is torch'
        """
        return f"computed by {LONG_NAMES[self.name]}{': ' * bool(self.why)}{self.why}"


def wanted_engine(settings: Settings) -> str:
    """What the settings say, or where they say auto, the environment."""
    if settings.engine != "auto":
        return settings.engine
    named = os.environ.get(VARIABLE) or "auto"
    if named not in ("auto", *get_args(EngineName)):
        raise BadSetting(f"{VARIABLE} is {named[:40]!r}, expected one of auto, native, torch")
    return named


def choose_engine(
    settings: Settings, *, device: torch.device, processes: int = 1, model: Transformer | None = None
) -> Choice:
    """The engine for a learner; where the settings ask for the native core and it cannot do the work, they are refused.

    Parameters
    ----------
    settings
        What the learner is made of.
    device
        Where it computes.
    processes
        How many processes share the streams.
    model
        The network, once there is one.
    """
    wanted = wanted_engine(settings)
    if wanted == "torch":
        return Choice("torch", "engine is torch")
    why = _why_not_native(settings, device, processes, model)
    if why and wanted == "native":
        raise BadSetting(f"engine (native) cannot be used: {why}")
    if not why and wanted == "auto" and settings.width > WIDEST:
        why = f"width is {settings.width}, and above {WIDEST} torch is as fast and uses all cores"
    return Choice("torch", why) if why else Choice("native")


def _why_not_native(settings: Settings, device: torch.device, processes: int, model: Transformer | None) -> str:
    """Why the native core cannot do the work; empty where it can, as far as one knows."""
    if settings.model == "two-token" and settings.method == "copy":
        return "method is copy, and the native core does two-token with blocks only"
    if settings.model == "two-token" and settings.label_delay:
        return f"label_delay is {settings.label_delay}, and the native core does two-token without late labels"
    if settings.precision != "float32":
        return f"precision is {settings.precision}, and the native core does float32"
    if device.type != "cpu":
        return f"device is {device}, and the native core computes on a CPU"
    if processes > 1:
        return f"{processes} processes share the streams, and the native core does one"
    if model is None:
        return library().reason
    return unsupported(model) or ""


def make_passes(engine: Choice, model: Transformer) -> Passes:
    """An engine's passes of a model that predicts."""
    return NativePasses(model) if engine.name == "native" else TorchPasses(model)


def make_steps(engine: Choice, model: Transformer, optimizer: Optimizer, ranks: Ranks) -> Steps:
    """An engine's gradient steps on a model."""
    return NativeSteps(model, optimizer) if engine.name == "native" else TorchSteps(model, optimizer, ranks)


def changed_engine(before: str, now: EngineName) -> str:
    """The sentence on a learner that goes on with another engine than the one that saved it."""
    was = LONG_NAMES.get(before, before)[:40]
    return f"engine is {LONG_NAMES[now]} now and was {was} before: results will agree, but not to the last bit"
