"""Which engine computes: the native core, or torch, which does everything."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple, get_args

import torch

from prequential.errors import BadSetting
from prequential.native.library import library
from prequential.settings import Settings

EngineName = Literal["native", "torch"]
VARIABLE = "PREQUENTIAL_ENGINE"  # what `engine="auto"` means in this process: auto, native or torch
NATIVE_IS_WIRED = False

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
    settings: Settings, *, device: torch.device, processes: int = 1, vectors: bool = True, only_pi_heads: bool = True
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
    vectors
        Whether x are vectors, as far as one knows.
    only_pi_heads
        Whether all output heads are those of the package.
    """
    wanted = wanted_engine(settings)
    if wanted == "torch":
        return Choice("torch", "engine is torch")
    why = ""
    if settings.model != "pi":
        why = f"model is {settings.model}, and the native core does pi"
    elif settings.precision != "float32":
        why = f"precision is {settings.precision}, and the native core does float32"
    elif device.type != "cpu":
        why = f"device is {device}, and the native core computes on a CPU"
    elif processes > 1:
        why = f"{processes} processes share the streams, and the native core does one"
    elif not vectors:
        why = "x are images, and the native core does vectors"
    elif not only_pi_heads:
        why = "the model has output heads that the native core does not know"
    elif not NATIVE_IS_WIRED:
        why = "the native core was not built when this was installed (docs/native.md says how)"
    else:
        why = library().reason
    if why and wanted == "native":
        raise BadSetting(f"engine (native) cannot be used: {why}")
    return Choice("torch", why) if why else Choice("native")


def changed_engine(before: str, now: EngineName) -> str:
    """The sentence on a learner that goes on with another engine than the one that saved it."""
    was = LONG_NAMES.get(before, before)[:40]
    return f"engine is {LONG_NAMES[now]} now and was {was} before: results will agree, but not to the last bit"
