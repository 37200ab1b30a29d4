"""The runs that are measured: what learns and what it is fed, as a long stream would have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from prequential.experiments.experiment import ON_IMAGES, PAPER
from prequential.learners.replay import ReplayPositions
from prequential.learners.transformer.learner import Learner
from prequential.settings import Settings, for_digits


@dataclass(frozen=True)
class Workload:
    """A learner and the shape of what it is fed."""

    name: str
    settings: Settings
    shape: tuple[int, ...]
    """Of one input; images are of whole numbers in 0..255."""
    classes: int

    def changed(self, **changes: Any) -> Workload:
        """The same with other settings."""
        return replace(self, settings=self.settings.changed(**changes))

    def chunk(self, seed: int = 0) -> tuple[np.ndarray, list[int]]:
        """A chunk of random examples."""
        random = np.random.default_rng(seed)
        size = (self.settings.chunk_size, *self.shape)
        if len(self.shape) > 1:
            x = random.integers(0, 256, size, dtype=np.uint8)
        else:
            x = random.normal(size=size).astype(np.float32)
        return x, random.integers(0, self.classes, self.settings.chunk_size).tolist()

    def turns(self) -> tuple[Learner, Callable[[], None]]:
        """A learner whose windows are full, and what has it take one turn more: a step in every stream."""
        learner = Learner(list(range(self.classes)), settings=self.settings)
        x, y = self.chunk()

        def turn() -> None:
            learner.learn_many(x, y)

        for _ in range(2 + -(-self.settings.window_examples // self.settings.chunk_size)):
            turn()
        return learner, turn


@contextmanager
def steady() -> Iterator[None]:
    """No replay stream goes back to the start: all turns are the same work, that of a long stream, where few do."""
    with patch.object(ReplayPositions, "advance", lambda *_: False):
        yield


def has_bfloat16() -> bool:
    """Whether the processor computes in bfloat16, and is no slower with it than with float32."""
    from measuring import in_turns

    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    c, d = a.bfloat16(), b.bfloat16()
    seconds = in_turns({"float32": lambda: a @ b, "bfloat16": lambda: c @ d}, 5)
    return min(seconds["bfloat16"]) <= min(seconds["float32"])


DIGITS = Workload("default run (digits)", for_digits(), (64,), 10)
EMNIST = Workload("Split-EMNIST, ConvNet", ON_IMAGES, (28, 28), 10)
CLOC = Workload(
    "CLOC base model, 4 x 1024",
    PAPER.changed(width=1024, depth=4, num_query_heads=8, window=512, chunk_size=256, num_streams=1),
    (2048,),
    713,
)
TWO_TOKEN = Workload(
    "2-token, 8 x 512",
    PAPER.changed(model="two-token", width=512, depth=8, window=512, chunk_size=128, num_streams=1),
    (512,),
    100,
)
CONVNEXT = Workload(
    "ConvNeXt-T, 160 x 160",
    PAPER.changed(extractor="convnext", width=256, depth=4, window=64, chunk_size=4, num_streams=1),
    (160, 160, 3),
    100,
)
