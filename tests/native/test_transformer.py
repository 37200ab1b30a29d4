"""The native core against the torch model: every shape, head and edge; predictions, passes and gradient steps."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from prequential.learners.transformer.batch import Batch
from prequential.learners.transformer.distributed import Ranks
from prequential.learners.transformer.optimizer import Optimizer
from prequential.learners.transformer.passes import head_log_probs
from prequential.learners.transformer.trainer import Trainer
from prequential.models.kv_cache import Context, KVState
from prequential.models.lookback import LookBack
from prequential.models.pi import PiTransformer
from prequential.native.library import library
from prequential.native.transformer import NativeTransformer, StreamInput
from prequential.settings import Settings

pytestmark = pytest.mark.skipif(library().library is None, reason=library().reason)

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
    "wide": {"width": 128, "num_query_heads": 4, "depth": 4, "window": 70, "F": 16},
}


class Case:
    """A model, and a stream of random examples for it."""

    def __init__(
        self, *, K: int = 5, F: int = 3, S: int = 32, seen: int | None = None, lags: int = 0, **changes: Any
    ) -> None:
        torch.manual_seed(0)
        self.model = PiTransformer(Settings(**{**SMALL, **changes}), features=F, num_classes=K)
        if "softmax" in self.model.output_heads:
            torch.nn.init.normal_(self.model.output_heads["softmax"].readout.weight, std=0.1)  # type: ignore[union-attr]
        self.K, self.F, self.S, self.lags = K, F, S, lags
        self.seen = K if seen is None else seen
        self.rng = np.random.default_rng(1)

    def batch(self, S: int | None = None) -> Batch:
        S = self.S if S is None else S
        x = self.rng.normal(size=(S, self.F)).astype(np.float32)
        y = self.rng.integers(max(self.seen, 1), size=S)
        lags = self.rng.integers(0, self.lags, S) if self.lags else None
        return Batch(x, y, np.full(S, self.seen), lags)


def difference(a: KVState, b: KVState) -> float:
    for ours, theirs in zip((*a.tokens, *a.examples), (*b.tokens, *b.examples), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert torch.equal(a.examples[1], b.examples[1])
    pairs = zip((*a.tokens, a.examples[0]), (*b.tokens, b.examples[0]), strict=True)
    return max(float((x - y).abs().max()) if x.numel() else 0.0 for x, y in pairs)


def assert_close(ours: torch.Tensor | None, theirs: list[torch.Tensor], within: float = 3e-5) -> None:
    assert ours is not None
    assert ours.shape == (len(theirs), *theirs[0].shape)
    assert float((ours - torch.stack(theirs)).abs().max()) <= within


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_passes_and_predictions_equal_those_of_the_torch_model(shape: str) -> None:
    case = Case(**SHAPES[shape])
    model, native, context = case.model, NativeTransformer(case.model), case.model.new_context()
    for _ in range(4):
        batch = case.batch()
        context.reserve(batch.max_lag)
        past = context.committed(beyond=batch.lags is not None)
        y = torch.from_numpy(batch.class_ids)[None]
        outs, new = model(torch.from_numpy(batch.x)[None], y, past, batch.lookback)
        ours = native.forward(batch.x, batch.class_ids, batch.num_seen, past, batch.lookback)
        assert_close(ours.log_probs, head_log_probs(model, [out[0] for out in outs], batch.num_seen))
        assert difference(ours.new, new) < 1e-5
        for n in (1, 3, 20):
            queries = case.batch(n)
            outs, new_one = model.predict_next(torch.from_numpy(queries.x), context.current())
            ours = native.predict_next(queries.x, queries.num_seen, context.current())
            assert_close(ours.log_probs, head_log_probs(model, outs, queries.num_seen))
            if n == 1:
                assert difference(ours.new, new_one) < 1e-5
            if model.settings.window:
                look = LookBack.of_queries(case.rng.integers(0, 5, n), np.arange(n))
                late = native.predict_late(queries.x, queries.num_seen, context.current(beyond=True), look)
                outs = model.predict_late(torch.from_numpy(queries.x), context.current(beyond=True), look)
                assert_close(late.log_probs, head_log_probs(model, outs, queries.num_seen))
        context.commit(new)


def states(context: Context) -> list[torch.Tensor]:
    return [tensor for cache in (context.tokens, context.examples) for tensor in cache.current()]


@pytest.mark.parametrize("shape", ["mixed", "paper", "copy", "no_window", "odd_widths", "no_input", "unseen"])
def test_an_example_that_was_predicted_is_appended_with_the_bits_of_a_pass(shape: str) -> None:
    case = Case(**SHAPES[shape])
    native, context, twin = NativeTransformer(case.model), case.model.new_context(), case.model.new_context()
    for length in (5, 1, 30, 33):
        batch = case.batch(length)
        passed = native.forward(batch.x, batch.class_ids, batch.num_seen, context.committed())
        context.commit(passed.new)
        twin.commit(passed.new)
        for _ in range(3):
            one = case.batch(1)
            log_probs, state = native.predict_one(one.x, int(one.num_seen[0]), context)
            passed = native.forward(one.x, one.class_ids, one.num_seen, twin.current())
            assert passed.log_probs is not None
            assert np.array_equal(log_probs, passed.log_probs.numpy())
            native.append_one(state, int(one.class_ids[0]), context)
            twin.extend(passed.new)
            for ours, theirs in zip(states(context), states(twin), strict=True):
                assert torch.equal(ours, theirs)


class Pair:
    """The same model twice, trained by torch's trainer and by the native core."""

    def __init__(self, case: Case, streams: int = 1, threads: int = 1) -> None:
        self.model, self.threads = case.model, threads
        self.trainer = Trainer(case.model, case.model.settings, Ranks())
        self.twin = copy.deepcopy(case.model)
        self.optimizer = Optimizer(self.twin, self.twin.settings)
        self.native = NativeTransformer(self.twin, self.optimizer._adamw)
        self.contexts = [self.twin.new_context() for _ in range(streams)]
        self.gradients: dict[str, torch.Tensor] = {}
        take = self.trainer.optimizer.step

        def step() -> None:
            self.gradients = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
            take()

        self.trainer.optimizer.step = step  # type: ignore[method-assign]

    def step(self, batches: list[Batch], position: int) -> None:
        self.trainer._step(dict(enumerate(batches)), position)
        self.optimizer.set_learning_rate(position)
        before = {name: self._moment(p).clone() for name, p in self.twin.named_parameters()}
        streams = []
        for batch, context in zip(batches, self.contexts, strict=True):
            context.reserve(batch.max_lag)
            past = context.committed(beyond=batch.lags is not None)
            streams.append(StreamInput(batch.x, batch.class_ids, batch.num_seen, past, batch.lookback))
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

    def _moment(self, parameter: torch.Tensor) -> torch.Tensor:
        state = self.optimizer._adamw.state
        return state[parameter]["exp_avg"] if parameter in state else torch.zeros_like(parameter.data)

    def check_gradients(self, within: float) -> None:
        largest = max(float(gradient.abs().max()) for gradient in self.gradients.values())
        for name, expected in self.gradients.items():
            scale = max(float(expected.abs().max()), 0.05 * largest, 1e-3)
            assert float((self.found[name] - expected).abs().max()) <= within * scale, name


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_and_steps_equal_those_of_the_trainer(shape: str) -> None:
    case = Case(**SHAPES[shape])
    pair = Pair(case)
    for i in range(5):
        pair.step([case.batch()], i * case.S)
        pair.check_gradients(2e-3)
    for ours, theirs in zip(pair.twin.parameters(), pair.model.parameters(), strict=True):
        assert float((ours - theirs).detach().abs().max()) < 1e-3
