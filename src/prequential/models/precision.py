"""The number format of the matrix products."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from prequential.models.transformer import Transformer


def autocast(model: Transformer) -> AbstractContextManager[Any]:
    """Computes in the precision of the model's settings."""
    if model.settings.precision == "float32":
        return nullcontext()
    return torch.autocast(model.rotary.table.device.type, torch.bfloat16)
