"""The 2-token transformer in the native core: what its tokens see, how it predicts, and what it leaves to torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.native.helpers import Case, chunk_input, stream_input

from prequential.learners.transformer.batch import Batch
from prequential.learners.transformer.learner import Learner
from prequential.learners.transformer.native_engine import NativePasses
from prequential.learners.transformer.optimizer import Optimizer
from prequential.learners.transformer.passes import TorchPasses
from prequential.learners.transformer.steps import TorchSteps
from prequential.models.lookback import LookBack
from prequential.native.library import library
from prequential.native.transformer import NativeTransformer

pytestmark = pytest.mark.skipif(library().library is None, reason=library().reason)
T = 24


def two_token(**changes: Any) -> Case:
    return Case(**{"model": "two-token", "method": "paper", "K": 5, **changes})


def run(case: Case, batch: Batch, size: int) -> np.ndarray:
    """Log-probabilities (M, T, K) of a stream read in pieces of a size, through the context."""
    native, context, found = NativeTransformer(case.model), case.model.new_context(), []
    for start in range(0, len(batch), size):
        part = slice(start, start + size)
        passed = native.forward(batch.x[part], batch.class_ids[part], batch.num_seen[part], context.committed())
        assert passed.log_probs is not None
        context.commit(passed.new)
        found.append(passed.log_probs.numpy())
    return np.concatenate(found, 1)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("chunk", "window"), [(6, 8), (8, 4), (1, 6), (24, 6), (5, 100)])
def test_labels_reach_exactly_the_predictions_after_them_within_the_window(depth: int, chunk: int, window: int) -> None:
    case = two_token(depth=depth, window=window, chunk_size=chunk)
    for parameter in case.model.output_heads.parameters():
        torch.nn.init.normal_(parameter)  # so that whatever reaches the trunk is seen
    batch = case.batch(T)
    before = run(case, batch, chunk)
    t = np.arange(T)
    for j in range(T):
        others = batch.class_ids.copy()
        others[j] = (others[j] + 1) % 5
        changed = (run(case, Batch(batch.x, others, batch.num_seen), chunk) != before).any((0, 2))
        # each block looks back one window; the label of t - d is 2 d - 1 tokens before x_t
        assert np.array_equal(changed, (j < t) & (2 * (t - j) - 1 <= depth * window))


@pytest.mark.parametrize("method", ["paper", "mixed"])
def test_a_label_changes_no_key_before_its_own_token(method: str) -> None:
    case = two_token(method=method)
    native, batch, past = NativeTransformer(case.model), case.batch(9), case.model.new_context().committed()
    others = batch.class_ids.copy()
    others[4] = (others[4] + 1) % 5
    a, b = (native.forward(batch.x, y, batch.num_seen, past).new.tokens for y in (batch.class_ids, others))
    for ours, theirs in zip(a, b, strict=True):
        assert torch.equal(ours[:, :, :9], theirs[:, :, :9])  # up to x_5, the token before that label's
        assert not torch.equal(ours[:, :, 9], theirs[:, :, 9])


@pytest.mark.parametrize("changes", [{}, {"method": "mixed"}, {"window": 3}, {"positions": "none"}])
def test_predictions_of_the_next_example_are_those_of_a_pass(changes: dict[str, Any]) -> None:
    case = two_token(**changes)
    native, context = NativeTransformer(case.model), case.model.new_context()
    for length in (5, 30, 1):
        batch = case.batch(length)
        passed = native.forward(batch.x, batch.class_ids, batch.num_seen, context.committed())
        log_probs, _ = native.predict_one(batch.x[:1], 5, context)
        several = native.predict_next(batch.x, batch.num_seen, context.current()).log_probs
        assert passed.log_probs is not None
        assert several is not None
        np.testing.assert_allclose(log_probs[:, 0], passed.log_probs[:, 0], atol=1e-5)
        np.testing.assert_allclose(several[:, 0], passed.log_probs[:, 0], atol=1e-5)
        context.commit(passed.new)
        assert context.tokens.current()[0].shape[2] <= case.model.settings.window


def test_the_loss_is_the_mean_over_examples() -> None:
    case = two_token(ema_decay=0.0)
    native = NativeTransformer(case.model, Optimizer(case.model, case.model.settings).adamw)
    batch = case.batch()
    result = native.step([stream_input(batch, case.model.new_context())])
    found = result.passes[0].log_probs
    assert found is not None
    assert result.loss == pytest.approx(-float(found[0, np.arange(len(batch)), batch.class_ids].mean()), rel=1e-5)


def test_late_labels_are_refused_by_the_core() -> None:
    case = two_token()
    native = NativeTransformer(case.model, Optimizer(case.model, case.model.settings).adamw)
    batch, context = case.batch(4), case.model.new_context()
    look = LookBack.of_lags(np.ones((1, 4), int))
    with pytest.raises(ValueError, match="only without late labels"):
        native.forward(batch.x, batch.class_ids, batch.num_seen, context.committed(), look)
    with pytest.raises(ValueError, match="only without late labels"):
        native.train([[chunk_input(batch, context)._replace(look=look)]])


def test_torch_computes_what_comes_late_and_the_core_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    by_torch: list[str] = []

    def count(kind: Any, name: str) -> None:
        method = getattr(kind, name)

        def counted(*given: Any, **options: Any) -> Any:
            by_torch.append(name)
            return method(*given, **options)

        monkeypatch.setattr(kind, name, counted)

    for kind, name in ((TorchPasses, "predict"), (TorchPasses, "forward"), (TorchSteps, "prepare")):
        count(kind, name)
    learner = Learner(3, model="two-token", width=16, depth=1, window=12, chunk_size=4, num_streams=2, engine="native")
    x, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 3
    learner.learn_many(x[:10], y[:10])
    learner.predict_proba_many(x[10:14])
    learner.predict_proba_one(x[10])
    learner.learn(x[10], y[10])
    assert isinstance(learner._parts.ensemble.network.passes, NativePasses)  # type: ignore[union-attr]
    assert not by_torch
    learner.learn_many(x[11:20], y[11:20], asked_at=np.full(9, 11))
    assert {"forward", "prepare"} <= set(by_torch)
    learner.learn_many(x[20:24], y[20:24])  # the chunk with late labels ends here
    by_torch.clear()
    learner.learn_many(x[24:], y[24:])
    assert not by_torch
