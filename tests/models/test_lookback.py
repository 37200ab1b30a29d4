"""Labels that come late, in the network: who sees whom, and that nothing changes where they come at once."""

import numpy as np
import pytest
import torch
from tests.models.helpers import example, small

from prequential.models.lookback import MAX_LAG, LookBack, visible_columns


def visible_by_definition(lags: np.ndarray, past: int, window: int) -> np.ndarray:
    """(S, P + S): whether example k sees example j, by the definition alone."""
    asked_at = np.arange(len(lags)) - lags
    j = np.arange(-past, len(lags))
    return (j < asked_at[:, None]) & (j >= asked_at[:, None] - window)


@pytest.mark.parametrize("past", [0, 3, 20])
@pytest.mark.parametrize("lags", [[0, 0, 0, 0], [7, 7, 7, 7], [0, 1, 2, 3], [9, 0, 4, 1]])
def test_the_mask_is_the_definition(lags, past):
    lags = np.array(lags)
    columns = visible_columns(LookBack.of_lags(lags[None]), past, window=6)
    kept = [*range(columns.start, columns.stop), *range(past, past + 4)]
    whole = np.zeros((4, past + 4), dtype=bool)
    whole[:, kept] = columns.visible[0].numpy()
    assert np.array_equal(whole, visible_by_definition(lags, past, 6))
    distance = (columns.queries[:, None] - columns.keys).numpy()
    assert np.array_equal(distance, past + np.arange(4)[:, None] - np.array(kept))


# the window of two-token is longer than the stream: at its edge, a y token sees one token more where there are lags
@pytest.mark.parametrize(("model", "window"), [("pi", 8), ("two-token", 40)])
def test_without_lags_a_pass_is_the_same(model, window):
    network, (x, y) = small(model, chunk_size=6, window=window), example(18)
    context = network.new_context()
    with torch.no_grad():
        for start in (0, 6):
            part = slice(start, start + 6)
            context.commit(network(x[:, part], y[:, part], context.committed())[1])
        plain, _ = network(x[:, 12:], y[:, 12:], context.committed())
        looked, _ = network(x[:, 12:], y[:, 12:], context.committed(), LookBack.of_lags(np.zeros((1, 6), int)))
    for one, other in zip(plain, looked, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("model", ["pi", "two-token"])
@pytest.mark.parametrize("lag", [1, 4, 9])
def test_no_label_reaches_an_example_that_was_asked_before_it_arrived(model, lag):
    network, (x, y) = small(model, chunk_size=6, window=8), example(24)

    def outputs(labels):
        context, outs = network.new_context(), []
        context.reserve(lag)
        with torch.no_grad():
            for start in range(0, 24, 6):
                part = slice(start, start + 6)
                look = LookBack.of_lags(np.full((1, 6), lag))
                out, new = network(x[:, part], labels[:, part], context.committed(beyond=True), look)
                context.commit(new)
                outs.append(torch.cat([of_head[0] for of_head in out], -1))
        return torch.cat(outs)

    base = outputs(y)
    changed = y.clone()
    changed[0, 7] = (y[0, 7] + 1) % 5
    differs = (outputs(changed) != base).any(1).nonzero().flatten().tolist()
    assert min(differs) == 7 + lag + 1  # the label of 7 is there from the first example asked after it


@pytest.mark.parametrize("model", ["pi", "two-token"])
def test_a_query_sees_what_an_example_asked_at_that_time_sees(model):
    """Predicting a row with d labels out, and learning it d labels later, is one and the same pass."""
    network, (x, y) = small(model, chunk_size=6, window=8), example(20)
    context = network.new_context()
    context.reserve(5)
    with torch.no_grad():
        _, new = network(x[:, :12], y[:, :12], context.committed(beyond=True), LookBack.of_lags(np.full((1, 12), 5)))
        context.commit(new)
        asked = network.predict_late(
            x[0, 12:15], context.current(beyond=True), LookBack.of_queries(np.array([5, 4, 3]), np.array([0, 1, 2]))
        )
        look = LookBack.of_lags(np.full((1, 3), 5))
        learned, _ = network(x[:, 12:15], y[:, 12:15], context.committed(beyond=True), look)
    for one, other in zip(asked, learned, strict=True):
        assert torch.allclose(one, other[0], atol=1e-5)


def test_what_is_kept_beyond_the_window_is_bounded_and_saved():
    network, (x, y) = small("pi", chunk_size=6, window=8), example(60)
    context = network.new_context()
    context.reserve(4)
    with torch.no_grad():
        for start in range(0, 60, 6):
            part = slice(start, start + 6)
            context.commit(network(x[:, part], y[:, part], context.committed())[1])
    assert context.committed(beyond=True).tokens[0].shape[2] == 12
    assert context.committed().tokens[0].shape[2] == 8
    loaded = network.new_context()
    loaded.load_state_dict(context.state_dict())
    assert torch.equal(loaded.committed(beyond=True).tokens[0], context.committed(beyond=True).tokens[0])
    position = LookBack.of_queries(np.array([0]), np.array([10 * MAX_LAG])).position
    assert position.tolist() == [MAX_LAG]


def test_rows_of_a_chunk_that_wait_for_the_same_labels_see_each_other():
    """Rows 0-2 were asked when 10 labels were out, rows 3-4 when the next ones had arrived, row 5 at once."""
    bound = np.array([[-10, -10, -10, 2, 2, 5]])
    assert LookBack(bound, np.arange(6), True).first_unlabeled.tolist() == [[0, 0, 0, 3, 3, 5]]
    chunk = np.array([7, 7, 8, 8, 8, 8])
    assert LookBack(bound, np.arange(6), False, chunk).first_unlabeled.tolist() == [[0, 0, 2, 3, 3, 5]]
    assert LookBack.of_lags(np.zeros((1, 4), int)).first_unlabeled.tolist() == [[0, 1, 2, 3]]
