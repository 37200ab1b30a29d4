"""Where to compute, and in which numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prequential.errors import BadSetting
from prequential.learners.device import find_device, on_device, slow_precision


def test_devices_by_name():
    assert find_device("cpu") == torch.device("cpu")
    with pytest.raises(BadSetting, match="'abacus' is not one of auto"):
        find_device("abacus")


@pytest.mark.parametrize("there", [True, False])
def test_a_processor_without_bfloat16_is_said_to_be_slow_with_it(there, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: there)
    cpu = torch.device("cpu")
    assert slow_precision("float32", cpu) is None
    assert (slow_precision("bfloat16", cpu) is None) == there
    assert slow_precision("bfloat16", torch.device("cuda")) is None


def test_arrays_go_to_a_gpu_through_pinned_memory_and_nobody_waits(monkeypatch):
    told = []

    def pin_memory(tensor):
        told.append("pinned")
        return tensor

    def to(tensor, device, non_blocking=False):
        told.append((str(device), non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "to", to)
    array = np.arange(3.0)
    assert torch.equal(on_device(array, torch.device("cuda:1")), torch.arange(3.0, dtype=torch.float64))
    assert told == ["pinned", ("cuda:1", True)]
    told.clear()
    on_device(array, torch.device("cpu"))
    assert told == [("cpu", False)]


def test_arrays_on_a_processor_are_not_copied():
    array = np.arange(3.0)
    tensor = on_device(array, torch.device("cpu"))
    array[1] = 7
    assert tensor.tolist() == [0, 7, 2]
