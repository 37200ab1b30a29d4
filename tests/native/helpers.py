"""Models to compare the native core with torch on, and ways to train both."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from prequential.learners.transformer.batch import Batch
from prequential.learners.transformer.distributed import Ranks
from prequential.learners.transformer.optimizer import Optimizer
from prequential.learners.transformer.trainer import Trainer
from prequential.models.kv_cache import Context
from prequential.models.make import MODELS
from prequential.native.streams import ChunkInput, StreamInput
from prequential.native.transformer import NativeTransformer
from prequential.settings import Settings

SMALL: dict[str, Any] = {"width": 32, "num_query_heads": 2, "depth": 2, "window": 20, "chunk_size": 33}
SHAPES: dict[str, dict[str, Any]] = {
    "mixed": {},
    "paper": {"method": "paper"},
    "copy": {"method": "copy"},
    "no_window": {"window": 0},
    "no_positions": {"positions": "none"},
    "no_input": {"use_input": False},
    "one_block": {"depth": 1, "window": 1},
    "odd_widths": {"width": 30, "num_query_heads": 3, "mlp_width": 6, "S": 17, "F": 9},
    "one_head": {"width": 24, "num_query_heads": 1, "mlp_width": 40, "S": 16, "F": 2},
    "tiny": {"width": 4, "num_query_heads": 2, "mlp_width": 2, "S": 5, "F": 1},
    "one_class": {"K": 1, "S": 4},
    "many_classes": {"K": 300, "S": 33},
    "unseen": {"K": 300, "S": 33, "seen": 7},
    "none_seen": {"K": 9, "seen": 0},
    "late": {"lags": 9},
    "later_than_the_window": {"lags": 60, "seen": 2},
    "labels_in_batches": {"label_batches": 7},
    "labels_in_large_batches": {"label_batches": 29, "method": "paper", "window": 4},
    "wide": {"width": 128, "num_query_heads": 4, "depth": 4, "window": 70, "F": 16},
}
TWO_TOKEN_SHAPES: dict[str, dict[str, Any]] = {
    f"two_token_{name}": {"model": "two-token", **changes}
    for name, changes in {
        **{
            name: changes
            for name, changes in SHAPES.items()
            if "lags" not in changes and "label_batches" not in changes
        },
        "copy": {"window": 21},  # without blocks, as with method copy, torch computes
        # with a constant embedding all keys of the copy head are equal: the gradient of its temperature is rounding
        "no_input": {"method": "paper", "use_input": False},
        "long_window": {"method": "paper", "window": 150, "S": 8},
        "one_token_window": {"method": "paper", "window": 1},
        "one_example": {"S": 1, "weight_decay": 0.3},
        "nine_examples": {"S": 9, "positions": "none", "method": "paper"},
        "weight_decay": {"weight_decay": 0.3, "K": 40, "method": "paper"},
    }.items()
}


class Case:
    """A model, and a stream of random examples for it."""

    def __init__(
        self,
        *,
        K: int = 5,
        F: int = 3,
        S: int = 32,
        seen: int | None = None,
        lags: int = 0,
        label_batches: int = 0,
        **changes: Any,
    ) -> None:
        torch.manual_seed(0)
        settings = Settings(**{**SMALL, **changes})
        self.model = MODELS[settings.model](settings, features=F, num_classes=K)
        if "softmax" in self.model.output_heads:
            head: Any = self.model.output_heads["softmax"]
            torch.nn.init.normal_(head.readout.weight, std=0.1)
        self.K, self.F, self.S, self.lags, self.label_batches = K, F, S, lags, label_batches
        self.seen = K if seen is None else seen
        self.rng = np.random.default_rng(1)

    def batch(self, S: int | None = None) -> Batch:
        S = self.S if S is None else S
        x = self.rng.normal(size=(S, self.F)).astype(np.float32)
        y = self.rng.integers(max(self.seen, 1), size=S)
        lags = self.rng.integers(0, self.lags, S) if self.lags else None
        if self.label_batches:  # so that examples wait for the same labels, and see each other without
            lags = np.arange(S) % self.label_batches
        return Batch(x, y, np.full(S, self.seen), lags)


def stream_input(batch: Batch, context: Context) -> StreamInput:
    """What a step takes of a chunk of one stream."""
    context.reserve(batch.max_lag)
    past = context.committed(beyond=batch.lags is not None)
    return StreamInput(batch.x, batch.class_ids, batch.num_seen, past, batch.lookback)


def chunk_input(batch: Batch, context: Context) -> ChunkInput:
    """The same, where the context gets the chunk."""
    context.reserve(batch.max_lag)
    return ChunkInput(batch.x, batch.class_ids, batch.num_seen, context, batch.lookback)


class Pair:
    """The same model twice, trained by torch's trainer and by the native core."""

    def __init__(self, case: Case, streams: int = 1, threads: int = 1) -> None:
        self.model, self.threads = case.model, threads
        self.trainer = Trainer(case.model, case.model.settings, Ranks())
        self.twin = copy.deepcopy(case.model)
        self.optimizer = Optimizer(self.twin, self.twin.settings)
        self.native = NativeTransformer(self.twin, self.optimizer.adamw)
        self.contexts = [self.twin.new_context() for _ in range(streams)]
        self.gradients: dict[str, torch.Tensor] = {}
        take = self.trainer.optimizer.step

        def step() -> None:
            self.gradients = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
            take()

        self.trainer.optimizer.step = step  # type: ignore[method-assign]

    def step(self, batches: list[Batch], position: int) -> None:
        self.trainer._take(self.trainer._prepare([dict(enumerate(batches))], position))
        self.optimizer.set_learning_rate(position)
        before = {name: self._moment(p).clone() for name, p in self.twin.named_parameters()}
        streams = [stream_input(batch, context) for batch, context in zip(batches, self.contexts, strict=True)]
        result = self.native.step(streams, threads=self.threads)
        assert result.finite
        for passed, context in zip(result.passes, self.contexts, strict=True):
            context.commit(passed.new)
        if self.trainer._shares_context:
            self.trainer.contexts[0].commit(result.passes[0].new)
        beta = self.twin.settings.beta1
        self.found = {
            name: (self._moment(p) - beta * before[name]) / (1 - beta) for name, p in self.twin.named_parameters()
        }

    def check_parameters(self, within: float) -> None:
        for ours, theirs in zip(self.twin.parameters(), self.model.parameters(), strict=True):
            assert float((ours - theirs).detach().abs().max()) <= within

    def align(self) -> None:
        """Gives both the same parameters again: AdamW divides small gradients by their size, and so rounding grows."""
        with torch.no_grad():
            for ours, theirs in zip(self.twin.parameters(), self.model.parameters(), strict=True):
                ours.copy_(theirs)

    def _moment(self, parameter: torch.Tensor) -> torch.Tensor:
        state = self.optimizer.adamw.state
        return state[parameter]["exp_avg"] if parameter in state else torch.zeros_like(parameter.data)

    def check_gradients(self, within: float) -> None:
        largest = max(float(gradient.abs().max()) for gradient in self.gradients.values())
        for name, expected in self.gradients.items():
            scale = max(float(expected.abs().max()), 0.05 * largest, 1e-3)
            assert float((self.found[name] - expected).abs().max()) <= within * scale, name
