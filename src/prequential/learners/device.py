"""Devices: by name, and how arrays get there."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from prequential.errors import BadSetting


def find_device(name: str) -> torch.device:
    """The device of this name; auto is the first CUDA device, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadSetting(f"device {name!r} is not one of auto, cpu, cuda, cuda:0, ...") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadSetting(f"device {name!r} was asked for, but this machine offers no CUDA device to PyTorch")
    return device


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """An array as a tensor on a device.

    To a GPU it goes through pinned memory, asynchronously; torch keeps the pinned memory until the copy is done.
    """
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def slow_precision(precision: str, device: torch.device) -> str | None:
    """A sentence where matrix products in this number format are slower here than in float32, else None."""
    if precision == "bfloat16" and device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return (
            "precision bfloat16 will be slow: this processor has no bfloat16 arithmetic; float32 is the fast one here"
        )
    return None
