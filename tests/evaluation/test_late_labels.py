"""The protocols in which labels come late."""

import numpy as np
import pytest

from prequential import ArrayStream, LastLabel, Learner, evaluate, make_learner
from prequential.errors import BadSetting
from prequential.evaluation.late_labels import LateLabels
from prequential.native.library import library
from prequential.testing.examples import make_examples

X, Y = make_examples(90)


def small(**changes):
    return Learner(3, width=16, depth=1, window=16, chunk_size=8, num_streams=2, num_neighbors=32, **changes)


def charged(learner, *, stop=None, **protocol):
    """The log-losses of all rows, in the order of the stream."""
    losses = []
    evaluate(
        ArrayStream(X, Y), learner, stop=stop, after=lambda _, __, charges: losses.append(charges.log_loss), **protocol
    )
    return np.concatenate(losses)


def one_at_a_time(learner, delay):
    """The same protocol in plain words: predict row t, then learn row t - delay."""
    losses, waiting = [], []
    for t in range(len(Y)):
        since = sum(asked_at == learner.position for _, asked_at in waiting)
        rows = X[[row for row, _ in waiting]] if waiting else None
        log_p = learner.predict_log_proba_late(X[t : t + 1], rows, since=since)
        known = learner.labels.known
        label = log_p[0, known.index(Y[t])] if Y[t] in known else None
        if label is None:
            unseen = log_p[0, len(known) :]
            label = np.logaddexp.reduce(unseen) - np.log(len(unseen))
        losses.append(-label)
        waiting.append((t, learner.position))
        if len(waiting) > delay:
            row, asked_at = waiting.pop(0)
            learner.learn_many(X[row : row + 1], [Y[row]], [asked_at])
    return np.array(losses)


def batches_one_at_a_time(learner, batch):
    """Labels in batches in plain words: predict each row of a batch, then learn each of them."""
    losses = []
    for start in range(0, len(Y), batch):
        stop, position = min(start + batch, len(Y)), learner.position
        for t in range(start, stop):
            log_p = learner.predict_log_proba_late(X[t : t + 1], X[start:t], since=t - start)
            known = learner.labels.known
            unseen = log_p[0, len(known) :]
            missing = np.logaddexp.reduce(unseen) - np.log(len(unseen)) if len(unseen) else None
            losses.append(-(log_p[0, known.index(Y[t])] if Y[t] in known else missing))
        for t in range(start, stop):
            learner.learn_many(X[t : t + 1], [Y[t]], [position])
    return np.array(losses)


@pytest.mark.parametrize("batch", [3, 10, 50])
@pytest.mark.parametrize("model", ["pi", "two-token"])
@pytest.mark.parametrize("engine", ["torch", "native"])
def test_the_blocks_of_the_batch_protocol_are_the_loop_in_plain_words(batch, model, engine):
    if engine == "native" and (model != "pi" or library().library is None):
        pytest.skip("not in the native core")

    def make():
        return small(model=model, engine=engine)

    assert np.allclose(charged(make(), label_batches=batch), batches_one_at_a_time(make(), batch), atol=2e-4)


@pytest.mark.parametrize("protocol", [{"delay": 6}, {"label_batches": 10}, {"label_batches": 50}])
def test_both_engines_charge_the_same(protocol):
    if library().library is None:
        pytest.skip(library().reason)
    torch_, native = (charged(small(engine=engine), **protocol) for engine in ("torch", "native"))
    assert np.allclose(torch_, native, atol=2e-3)


@pytest.mark.parametrize("model", ["pi", "two-token"])
def test_rows_that_wait_for_the_same_labels_are_seen_without_theirs(model):
    """Another x before a row changes its prediction, where both wait; another label does not."""
    learner = small(model=model, engine="torch")
    learner.learn_many(X[:40], Y[:40])
    rows = X[40:46].copy()
    before = learner.predict_log_proba_late(rows)
    rows[2] += 1
    after = learner.predict_log_proba_late(rows)
    changed = np.abs(before - after).max(1) > 1e-6
    assert changed[3:].any()
    assert not changed[:2].any()


@pytest.mark.parametrize("delay", [1, 5, 20])
@pytest.mark.parametrize("make", [small, lambda: LastLabel(3), lambda: make_learner("er", 3)], ids=["pi", "last", "er"])
def test_the_blocks_of_the_delay_protocol_are_the_loop_in_plain_words(make, delay):
    assert np.allclose(charged(make(), delay=delay), one_at_a_time(make(), delay), atol=2e-4)


def test_a_batch_of_one_and_no_delay_change_nothing():
    assert np.array_equal(charged(small()), charged(small(), delay=0, label_batches=1))


@pytest.mark.parametrize("protocol", [{"delay": 6}, {"label_batches": 10}])
def test_a_protocol_goes_on_where_it_was_stopped(protocol):
    whole = charged(small(), **protocol)
    learner, late = small(), LateLabels(delay=protocol.get("delay", 0), batch=protocol.get("label_batches", 1))
    stream, parts = ArrayStream(X, Y), []

    def after(position, chunk, charges):
        parts.append(charges.log_loss)
        return position == 40

    evaluate(stream, learner, late=late, after=after)
    state, saved = late.state_dict(), learner.state_dict()
    again, resumed = LateLabels(delay=late.delay, batch=late.batch), small()
    resumed.replay_from(stream)
    resumed.load_state_dict(saved)
    again.load_state_dict(state, stream, 40)
    evaluate(stream, resumed, start=40, late=again, after=lambda _, __, charges: parts.append(charges.log_loss))
    assert np.array_equal(np.concatenate(parts), whole)


def test_a_learner_that_knows_how_late_labels_are_beats_one_that_does_not():
    """Labels that repeat with period 4: with the last 6 out, only their place in the window tells which is next."""
    y = [t % 4 for t in range(800)]
    stream = ArrayStream(np.zeros((800, 1)), y)
    settings = {"width": 32, "depth": 1, "window": 32, "chunk_size": 8, "num_streams": 4, "method": "paper"}
    learner = Learner(4, learning_rate=0.3, **settings)
    scores = evaluate(stream, learner, delay=6)
    naive = Learner(4, learning_rate=0.3, **settings)
    correct = []
    for t, label in enumerate(y):
        correct.append(naive.predict([0.0]) == label)
        if t >= 6:
            naive.learn([0.0], y[t - 6])
    assert scores.accuracy > np.mean(correct) + 0.2


@pytest.mark.parametrize(
    ("protocol", "sentence"),
    [
        ({"delay": -1}, r"delay \(-1\) must be at least 0"),
        ({"label_batches": 0}, r"label_batches \(0\) must be at least 1"),
        ({"delay": 2, "label_batches": 3}, r"delay \(2\) and label_batches \(3\) cannot both be given"),
    ],
)
def test_bad_protocols(protocol, sentence):
    with pytest.raises(BadSetting, match=sentence):
        charged(LastLabel(3), **protocol)


def test_the_prediction_of_a_late_label_is_counted():
    at_once, late = small(), small()
    charged(at_once)
    charged(late, label_batches=8)
    network = late._parts.ensemble.network.macs() + late._parts.ensemble.macs()
    more = late.macs_per_example() - at_once.macs_per_example()
    assert 0.8 * network < more <= network  # the first row of each batch is asked when all labels are there
