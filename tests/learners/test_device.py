"""Where to compute, and in which numbers."""

from __future__ import annotations

import pytest
import torch

from prequential.errors import BadSetting
from prequential.learners.device import find_device, slow_precision


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
