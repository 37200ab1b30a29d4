"""What a prediction can see, and what it cannot (both models)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from helpers import CLASSES, example, log_p, run, small

from prequential.models.kv_cache import stack_contexts

MODELS = ["pi", "two-token"]
T = 24


def dependence(model: str, *, chunk_size: int, window: int, depth: int, head: str = "softmax") -> torch.Tensor:
    """Whether the prediction of t (row) changes with the label of j (column)."""
    network = small(model, chunk_size=chunk_size, window=window, depth=depth)
    x, y = example(T)
    before = run(network, x, y, chunk_size, head)
    table = torch.zeros(T, T, dtype=torch.bool)
    for j in range(T):
        other = y.clone()
        other[0, j] = (other[0, j] + 1) % CLASSES
        table[:, j] = (run(network, x, other, chunk_size, head) != before).any(1)
    return table


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("chunk", "window"), [(6, 8), (8, 4), (1, 6), (24, 6), (5, 100)])
def test_labels_reach_exactly_the_predictions_after_them_within_the_window(model, depth, chunk, window):
    table = dependence(model, chunk_size=chunk, window=window, depth=depth)
    t, j = torch.arange(T)[:, None], torch.arange(T)[None]
    # each block looks back one window; in the 2-token model the label of t - d is 2 d - 1 tokens before x_t
    distance = t - j if model == "pi" else 2 * (t - j) - 1
    expected = (j < t) & (distance <= depth * window)
    assert torch.equal(table, expected)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("chunk", "window"), [(6, 8), (8, 4), (1, 6), (24, 6), (5, 100)])
def test_labels_are_copied_from_exactly_the_examples_of_the_window(model, chunk, window):
    table = dependence(model, chunk_size=chunk, window=window, depth=2, head="copy")
    t, j = torch.arange(T)[:, None], torch.arange(T)[None]
    examples = window if model == "pi" else window // 2
    assert torch.equal(table, (j < t) & (t - j <= examples))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("head", ["softmax", "copy"])
def test_later_inputs_do_not_reach_a_prediction(model, head):
    network = small(model, chunk_size=6, window=8)
    x, y = example(T)
    before = run(network, x, y, 6, head)
    for j in range(T):
        other = x.clone()
        other[0, j] += 1
        changed = (run(network, other, y, 6, head) != before).any(1)
        assert not changed[:j].any()
        assert changed[j] or (head == "copy" and j == 0)  # there is nothing to copy from


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("window", [2, 8, 100])
@pytest.mark.parametrize("size", [1, 3, 8, 20])
@pytest.mark.parametrize(("positions", "head"), [("rotary", "softmax"), ("none", "softmax"), ("none", "copy")])
def test_chunks_with_a_cache_equal_one_long_pass(model, window, size, positions, head):
    x, y = example(T)
    whole = run(small(model, chunk_size=T, window=window, positions=positions), x, y, T, head)
    pieces = run(small(model, chunk_size=size, window=window, positions=positions), x, y, size, head)
    torch.testing.assert_close(pieces, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_without_a_window_only_the_input_counts(model):
    network = small(model, chunk_size=6, window=0)
    x, y = example(T)
    before = run(network, x, y, 6)
    assert torch.equal(run(network, x, (y + 1) % CLASSES, 6), before)
    other = x.clone()
    other[0, :-1] += 1
    assert torch.equal(run(network, other, y, 6)[-1], before[-1])
    assert not torch.equal(run(network, other, y, 6)[0], before[0])


@pytest.mark.parametrize("model", MODELS)
def test_without_input_only_the_labels_count(model):
    network = small(model, chunk_size=6, window=8, use_input=False)
    x, y = example(T)
    before = run(network, x, y, 6)
    assert torch.equal(run(network, x + 1, y, 6), before)
    assert not torch.equal(run(network, x, (y + 1) % CLASSES, 6), before)


@pytest.mark.parametrize("model", MODELS)
def test_positions_tell_the_order_of_the_past_apart(model):
    x, y = example(8)
    swapped = [1, 0, 2, 3, 4, 5, 6, 7]
    for positions, differs in (("rotary", True), ("none", False)):
        network = small(model, chunk_size=8, window=16, depth=1, positions=positions)
        last = run(network, x, y, 8)[-1]
        other = run(network, x[:, swapped], y[:, swapped], 8)[-1]
        # without positions one block sees a set (of tokens that are told apart by what they hold alone)
        assert torch.allclose(last, other, atol=1e-6) is not differs


@pytest.mark.parametrize("model", MODELS)
def test_permuting_labels_with_their_tables_permutes_the_predictions(model):
    network = small(model, chunk_size=6, window=8)
    x, y = example(T)
    before, copied = run(network, x, y, 6), run(network, x, y, 6, "copy")
    order = torch.tensor([2, 0, 4, 1, 3])  # label k becomes order[k]
    with torch.no_grad():
        tables = list(network.output_heads["softmax"].readout.parameters())
        if model == "pi":
            tables += [t.weight for b in network.blocks for t in (b.key_labels, b.value_labels)]
        else:
            tables.append(network.label_embedding.weight)
        for table in tables:
            table[order] = table.clone()
    after = run(network, x, order[y], 6)
    torch.testing.assert_close(after[:, order], before, atol=1e-5, rtol=1e-5)
    after = run(network, x, order[y], 6, "copy")  # which has no tables: the labels are all it knows of labels
    torch.testing.assert_close(after[:, order], copied, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("head", ["softmax", "copy"])
def test_predicting_many_equals_predicting_each_as_the_next(model, head):
    network = small(model, chunk_size=6, window=8)
    x, y = example(T)
    whole = run(network, x, y, 6, head)
    context = network.new_context()
    with torch.no_grad():
        _, new = network(x[:, :6], y[:, :6], context.committed())
        context.commit(new)
        predicted = log_p(network, network.predict_next(torch.stack([x[0, 6], x[0, 9]]), context.current())[0], head)
    torch.testing.assert_close(predicted[0], whole[6], atol=1e-5, rtol=1e-5)
    alone = run(network, torch.cat([x[:, :6], x[:, 9:10]], 1), y[:, :7], 6, head)
    torch.testing.assert_close(predicted[1], alone[6], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("head", ["softmax", "copy"])
def test_a_batch_of_streams_with_pasts_of_unequal_length_equals_each_alone(model, head):
    network = small(model, chunk_size=6, window=8)
    x, y = example(T)
    whole = run(network, x, y, 6, head)
    contexts = [network.new_context(), network.new_context()]
    with torch.no_grad():
        _, new = network(x[:, :6], y[:, :6], contexts[0].committed())
        contexts[0].commit(new)
        past = stack_contexts(contexts)
        for part in (*past.tokens, past.examples[0]):
            part[:, 1] = 100.0  # the second has an empty context: what lies there is hidden
        both = (torch.cat([x[:, 6:12], x[:, :6]]), torch.cat([y[:, 6:12], y[:, :6]]))
        outs, _ = network(*both, past)
    predicted = log_p(network, outs, head)
    torch.testing.assert_close(predicted[0], whole[6:12], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(predicted[1], whole[:6], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_masks_of_tokens_and_of_examples_are_kept_apart():
    # with one query head, as many tokens and examples have masks of the same number of rows
    network = small("two-token", chunk_size=4, window=8, num_query_heads=1)
    x, y = example(12)
    expected = run(network, x, y, 4)
    context = network.new_context()
    for start in range(0, 12, 4):
        part = slice(start, start + 4)
        outs, _ = network.predict_next(x[0, start : start + 1], context.committed())
        assert torch.allclose(log_p(network, outs, "softmax")[0], expected[start], atol=1e-5)
        network(x[:, start : start + 2], y[:, start : start + 2], context.committed())  # four tokens, as examples above
        context.commit(network(x[:, part], y[:, part], context.committed())[1])
