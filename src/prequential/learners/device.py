"""Where to compute."""

from __future__ import annotations

import torch

from prequential.errors import BadSetting


def find_device(name: str) -> torch.device:
    """The device of this name; auto is the first CUDA device, else the processor."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadSetting(f"device {name!r} is not one of auto, cpu, cuda, cuda:0, ...") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadSetting(f"device {name!r} was asked for, but this machine offers no CUDA device to PyTorch")
    return device
