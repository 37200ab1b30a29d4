"""Tokens that see other new ones without their labels: the native core against attention written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.native.helpers import Case, stream_input
from torch import Tensor
from torch.nn import functional as F

from prequential import Learner
from prequential.learners.transformer.native_engine import NativePasses
from prequential.learners.transformer.optimizer import Optimizer
from prequential.models.attention import apply_rotary
from prequential.models.kv_cache import KVState
from prequential.models.transformer import Transformer
from prequential.native.library import library
from prequential.native.streams import StreamInput
from prequential.native.transformer import NativeTransformer

pytestmark = pytest.mark.skipif(library().library is None, reason=library().reason)


def expected_log_probs(
    model: Transformer, x: np.ndarray, y: np.ndarray | None, past: KVState, visible: np.ndarray
) -> Tensor:
    """The softmax head's log-probabilities (S, K): columns are past tokens, new ones with labels, without, and null."""
    S, P = len(x), past.tokens[0].shape[2]
    H, K = model.settings.effective_num_query_heads, model.settings.key_width
    seen = torch.zeros(S, P + 2 * S + 1, dtype=torch.bool)
    seen[:, -1] = True
    for t, (begin, end, unlabeled_begin, unlabeled_end, _) in enumerate(visible.tolist()):
        seen[t, max(0, P + begin) : max(0, P + end)] = True
        seen[t, P + S + unlabeled_begin : P + S + unlabeled_end] = True
    queries = torch.from_numpy(visible[:, 4].astype(np.int64)) + P
    columns = torch.cat([torch.arange(P), queries, queries, torch.zeros(1, dtype=torch.int64)])
    h = model.embed(torch.from_numpy(x))
    labels = torch.zeros(S, dtype=torch.int64) if y is None else torch.from_numpy(y)
    for i, block in enumerate(model.all_blocks):
        q, k, v, u = block.in_proj(block.norm(h)).split(block.in_sizes, -1)
        assert block.key_labels is not None
        assert block.value_labels is not None
        null = k.new_zeros(1, K)
        keys = torch.cat([past.tokens[0][i, 0], k + block.key_labels(labels), k, null])
        values = torch.cat([past.tokens[1][i, 0], v + block.value_labels(labels), v, null])
        keys = apply_rotary(keys, model.rotary.table[columns])
        q = apply_rotary(q.reshape(S, H, K), model.rotary.table[queries][:, None] * K**-0.5)
        scores = torch.einsum("thk,nk->thn", q, keys).masked_fill(~seen[:, None], -torch.inf)
        found = torch.einsum("thn,nk->thk", scores.softmax(-1), values).flatten(1)
        h = h + block.out_proj(torch.cat([F.gelu(u + block.mlp_bias), found], -1))
    head = model.output_heads["softmax"]
    return torch.log_softmax(head.readout(head.norm(h)), -1)  # type: ignore[operator, union-attr]


@pytest.mark.parametrize("length", [1, 5, 16, 33, 40])
def test_passes_queries_and_gradients(length: int) -> None:
    case = Case(method="paper", window=20, S=length)
    model, context = case.model, case.model.new_context()
    optimizer = Optimizer(model, model.settings)
    native = NativeTransformer(model, optimizer.adamw)
    for _ in range(2):
        before = stream_input(case.batch(30), context)
        assert before.y is not None
        context.commit(native.forward(before.x, before.y, before.num_seen, before.past).new)
    batch, past = case.batch(), context.committed()
    # every example sees the labels that had arrived, and the rows behind those as they are without
    t, lag = np.arange(length), case.rng.integers(0, 12, length)
    late = np.stack([t - lag - 20, t - lag, np.maximum(0, t - lag), t, t], 1)
    expected = expected_log_probs(model, batch.x, batch.class_ids, past, late)
    loss = F.nll_loss(expected, torch.from_numpy(batch.class_ids))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    labeled = StreamInput(batch.x, batch.class_ids, batch.num_seen, past, visible=late)
    ours = native._forward(labeled, state=True)
    assert ours.log_probs is not None
    assert float((ours.log_probs[0] - expected.detach()).abs().max()) < 1e-5
    # of queries, nobody has a label
    asked = np.concatenate([np.minimum(late[:, :2], 0), late[:, 2:]], 1)
    with torch.no_grad():
        expected = expected_log_probs(model, batch.x, None, past, asked)
    ours = native._forward(StreamInput(batch.x, None, batch.num_seen, past, visible=asked), state=False)
    assert ours.log_probs is not None
    assert float((ours.log_probs[0] - expected).abs().max()) < 1e-5
    result = native.step([labeled])
    assert abs(result.loss - float(loss.detach())) < 1e-5
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        found = optimizer.adamw.state[parameter]["exp_avg"] / (1 - model.settings.beta1)
        assert float((found - gradient).abs().max()) <= 1e-4 * max(float(gradient.abs().max()), 1e-2)


def test_ranges_outside_the_pass_are_refused() -> None:
    case = Case(method="paper", S=4)
    native, batch = NativeTransformer(case.model), case.batch()
    past = case.model.new_context().committed()
    fine = np.array([[-20 + t, t, 0, 0, t] for t in range(4)])
    for column, value in ((1, 4), (2, -1), (3, 5), (4, 2**30), (0, -(2**30))):
        wrong = fine.copy()
        wrong[3, column] = value
        stream = StreamInput(batch.x, batch.class_ids, batch.num_seen, past, visible=wrong)
        with pytest.raises(ValueError, match="itself or a later one"):
            native._forward(stream, state=True)
    stream = StreamInput(batch.x, batch.class_ids, batch.num_seen, past, visible=fine[:2])
    with pytest.raises(ValueError, match="2 ranges are given for 4 examples"):
        native._forward(stream, state=True)


def test_labels_of_the_past_are_taken_away(monkeypatch):
    """A late row sees those asked with it without their labels: with and without a pass over them."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(60, 3))

    def predictions(takes_away: bool) -> np.ndarray:
        monkeypatch.setattr(NativePasses, "takes_labels_away", takes_away)
        learner = Learner(2, width=16, depth=2, window=16, chunk_size=16, num_streams=2, engine="native")
        found = []
        for t in range(0, 60, 3):
            for late in range(t, t + 3):
                found.append(learner.predict_log_proba_one(x[late], id=late))
            for late in range(t, t + 3):
                learner.learn(id=late, y=bool(x[late, 0] > 0))
        return np.array([[p[False], p[True]] for p in found])

    assert np.allclose(predictions(True), predictions(False), atol=1e-4)
    monkeypatch.setattr(Learner, "_num_waiting_with", lambda *_: 0)
    assert not np.allclose(predictions(True), predictions(False), atol=1e-4)
