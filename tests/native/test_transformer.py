"""The native core against the torch model: every shape, head and edge; predictions, passes and gradient steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.native.helpers import SHAPES, TWO_TOKEN_SHAPES, Case, Pair

from prequential.learners.transformer.passes import head_log_probs
from prequential.models.kv_cache import Context, KVState
from prequential.models.lookback import LookBack
from prequential.native.library import library
from prequential.native.transformer import NativeTransformer

ALL = {**SHAPES, **TWO_TOKEN_SHAPES}
pytestmark = pytest.mark.skipif(library().library is None, reason=library().reason)


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


@pytest.mark.parametrize("shape", ALL)
@torch.no_grad()
def test_passes_and_predictions_equal_those_of_the_torch_model(shape: str) -> None:
    case = Case(**ALL[shape])
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
            if model.settings.window and native.streams.takes_late_labels:
                look = LookBack.of_queries(case.rng.integers(0, 5, n), np.arange(n))
                late = native.predict_late(queries.x, queries.num_seen, context.current(beyond=True), look)
                outs = model.predict_late(torch.from_numpy(queries.x), context.current(beyond=True), look)
                assert_close(late.log_probs, head_log_probs(model, outs, queries.num_seen))
        context.commit(new)


def states(context: Context) -> list[torch.Tensor]:
    return [tensor for cache in (context.tokens, context.examples) for tensor in cache.current()]


APPENDED = ["mixed", "paper", "copy", "no_window", "odd_widths", "no_input", "unseen"]
OF_TWO_TOKENS = [f"two_token_{name}" for name in (*APPENDED, "no_positions", "one_token_window", "long_window")]


@pytest.mark.parametrize("shape", [*APPENDED, *OF_TWO_TOKENS])
def test_an_example_that_was_predicted_is_appended_with_the_bits_of_a_pass(shape: str) -> None:
    case = Case(**ALL[shape])
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


@pytest.mark.parametrize("shape", ALL)
def test_gradients_and_steps_equal_those_of_the_trainer(shape: str) -> None:
    case = Case(**ALL[shape])
    pair = Pair(case)
    for i in range(5):
        pair.step([case.batch()], i * case.S)
        pair.check_gradients(2e-3)
    pair.check_parameters(1e-3)
