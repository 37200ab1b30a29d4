"""Checks of predictions: they are pure, honest, and the same however the examples arrive."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from typing import Any

import numpy as np

from prequential.evaluation.evaluate import evaluate
from prequential.learners.charges import Charges
from prequential.storage.checkpoint import same_state
from prequential.streams.stream import Chunk
from prequential.testing.examples import TOLERANCE, Make, RecordedStream, make_examples


def check_predict_is_pure(make: Make) -> None:
    """Predicting must not change the learner, before the first example, inside a chunk or after it."""
    learner, (x, y) = make(3), make_examples(37)
    for t in range(len(y)):
        before = learner.state_dict()
        first = learner.predict_proba(x[t])
        learner.predict_log_proba_many(x)
        again = learner.predict_proba(x[t])
        assert same_state(before, learner.state_dict()), f"predicting example {t} changed the learner"
        assert first == again, f"predicting example {t} twice gave {first} and {again}"
        learner.learn(x[t], y[t])


def check_probabilities(make: Make) -> None:
    """Probabilities of all labels, seen and unseen, must sum to one, and none of them may be zero."""
    learner, (x, y) = make(5), make_examples(40)
    for t in range(len(y)):
        p = learner.predict_proba(x[t])
        unseen = 5 - len(p)
        total = sum(p.values()) + unseen * p["a label never seen"]
        assert abs(total - 1) < 1e-4, f"example {t}: the probabilities sum to {total}"
        assert min([*p.values(), *([p.unseen] if unseen else [])]) > 0, f"example {t}: a label has probability 0: {p}"
        learner.learn(x[t], y[t])


def check_one_and_many(make: Make) -> None:
    """An example must get the same prediction alone and among others, under each name that predicts."""
    learner, (x, y) = make(4), make_examples(40)
    for learned in (0, 30):
        if learned:
            learner.learn_many(x[:learned], y[:learned])
        log_p, p = learner.predict_log_proba_many(x[30:]), learner.predict_proba_many(x[30:])
        known = learner.labels.known
        assert log_p.shape == (10, 4), f"10 examples and 4 classes gave log-probabilities of shape {log_p.shape}"
        assert np.allclose(np.exp(log_p), p, atol=1e-6), "predict_proba_many is not exp(predict_log_proba_many)"
        labels = learner.predict_many(x[30:])
        for i, row in enumerate(x[30:]):
            one, log_one = learner.predict_proba_one(row), learner.predict_log_proba_one(row)
            worst = max([abs(one[label] - p[i, k]) for k, label in enumerate(known)], default=0.0)
            assert worst < TOLERANCE, f"alone, a probability of example {30 + i} differs by {worst} from among others"
            assert all(math.isclose(math.exp(log_one[k]), one[k], abs_tol=1e-6) for k in (*known, "a label never seen"))
            assert one == learner.predict_proba(row), "predict_proba and predict_proba_one differ"
            assert learner.predict_one(row) == learner.predict(row), "predict and predict_one differ"
            best = sorted(one.values())[-2:]
            if not known or len(best) == 1 or best[1] - best[0] > TOLERANCE:  # otherwise it may round either way
                assert labels[i] == learner.predict_one(row), (
                    f"alone, example {30 + i} is predicted to be another label"
                )


def check_no_future(make: Make) -> None:
    """Nothing of y_t, nor anything later, may reach the prediction of y_t, however the examples are handed over."""
    x, y = make_examples(60)
    before = make(3).observe(x, y)
    for t in (0, 1, 17, 30, 59):
        other_y = [*y[:t], *((label + 1) % 3 for label in y[t:])]
        other_x = x.copy()
        other_x[t + 1 :] += 1
        after = make(3).observe(other_x, other_y)
        same = np.array_equal(before.predicted[: t + 1], after.predicted[: t + 1])
        same &= np.allclose(before.confidence[: t + 1], after.confidence[: t + 1], atol=1e-7, rtol=0)
        assert same, f"the prediction of example {t} or before changed with what came later"
        assert np.array_equal(before.log_loss[:t], after.log_loss[:t]), f"the loss before example {t} changed"


def check_past_counts(make: Make) -> None:
    """After many examples of one label, this label must be more probable than at the start."""
    learner, (x, _) = make(3), make_examples(200)
    learner.learn_many(x, [0] * 199 + [1])
    p = learner.predict_proba(x[0])
    assert p[0] > 1 / 3, f"after 199 examples of one label its probability is {p[0]}, no more than at the start"


def check_no_future_replay(make: Make) -> None:
    """While it runs over a stream, a learner may read again what it has learned, and nothing else.

    (Inside its first chunk, where there is no past, it may read what it was just handed.)
    """
    learner = make(3)
    stride = learner.stride
    x, y = make_examples(max(150, 4 * stride))
    stream = RecordedStream(x, y)
    stream.present = 0
    learner.replay_from(stream)
    start = 0
    for size in itertools.cycle((stride, 1, max(stride - 1, 1))):  # ends of chunks fall on ends of calls and inside
        piece = slice(start, start + size)
        stream.present = start if start else len(y[piece])
        learner.predict_log_proba_many(x[piece])
        learner.observe(x[piece], y[piece])
        start += size
        if start >= len(y):
            break
    learner.state_dict()  # waits for steps that run in a thread
    assert not stream.violations, (
        f"example {stream.violations[0][0]} was read from the stream when only those before "
        f"{stream.violations[0][1]} had been learned"
    )


def check_one_by_one(make: Make) -> None:
    """Handing examples over one by one, in pieces, or all at once must give the same predictions."""
    x, y = make_examples(90)
    whole = make(3).observe(x, y)
    learner = make(3)
    for t in range(len(y)):
        p = learner.predict_proba(x[t])
        loss = -np.log(p[y[t]])
        assert abs(loss - whole.log_loss[t]) < TOLERANCE * max(1, loss), (
            f"example {t} costs {loss} one by one and {whole.log_loss[t]} in a chunk"
        )
        learner.learn(x[t], y[t])
    learner, pieces, start = make(3), [], 0
    for size in (1, 7, 2, 25, 13, 42):
        pieces.append(learner.observe(x[start : start + size], y[start : start + size]).log_loss)
        start += size
    worst = float(np.abs(np.concatenate(pieces) - whole.log_loss).max())
    assert worst < TOLERANCE, f"in uneven pieces the losses differ by up to {worst}"


def check_new_classes(make: Make) -> None:
    """Labels may be any hashable values, come at any time and in any order; names must not matter."""
    x, y = make_examples(80)
    y = [0] * 20 + [label % 2 for label in y[20:40]] + y[40:]
    names: list[Hashable] = [("a", 1), "b", b"c"]
    plain = make(3).observe(x, y)
    named = make(3).observe(x, [names[label] for label in y])
    assert np.array_equal(plain.log_loss, named.log_loss), "the names of the labels changed the losses"
    assert np.isfinite(plain.log_loss).all(), "a label cost an infinite loss"
    learner = make(3)
    learner.learn_many(x, y)
    before = [learner.predict_proba(row) for row in x[:5]]
    assert all(set(p) == {0, 1, 2} for p in before), "a label that was seen has no probability"
    wide = make(4)
    wide.learn_many(x, y)
    assert 0 < wide.predict_proba(x[0])["new"] < 1, "a label that may still come has no probability"


def check_evaluate(make: Make) -> None:
    """Over a stream, every example must be scored, whatever the length of the last piece."""
    x, y = make_examples(131)
    charged = len(make(3).observe(x, y).log_loss)
    assert charged == 131, f"of 131 examples {charged} were scored"
    scores = evaluate(RecordedStream(x, y), make(3))
    assert scores.count == 131, f"of 131 examples {scores.count} were scored"
    assert np.isfinite(scores.log_loss), f"the mean log-loss is {scores.log_loss}"


def check_late_labels(make: Make) -> None:
    """Where labels come late, none may reach a prediction before its time, and every row is charged when it was asked.

    Two streams that differ from a label on must give the same predictions of all rows asked before that label arrives.
    """
    x, y = make_examples(50)
    other = [*y[:21], *((label + 1) % 3 for label in y[21:])]
    for protocol, asked in (({"delay": 5}, 27), ({"label_batches": 8}, 24), ({"label_batches": 60}, 50)):
        log_p, log_loss = _late_predictions(make, x, y, protocol)
        assert len(log_p) == 50, f"of 50 examples {len(log_p)} were predicted with {protocol}"
        changed = _late_predictions(make, x, other, protocol)[0]
        assert np.array_equal(log_p[:asked], changed[:asked]), (
            f"the label of example 21 changed predictions that were asked before it arrived, with {protocol}"
        )
        later = x.copy()
        later[30:] += 7.0
        moved = _late_predictions(make, later, y, protocol)[0]
        assert np.array_equal(log_p[:30], moved[:30]), f"later inputs changed earlier predictions, with {protocol}"
        assert np.isfinite(log_loss).all(), f"a label cost an infinite loss, with {protocol}"


def _late_predictions(make: Make, x: np.ndarray, y: list[Any], protocol: dict[str, int]) -> tuple[Any, np.ndarray]:
    """The log-probabilities and charges of all rows, under a protocol in which labels come late."""
    rows: list[np.ndarray] = []
    losses: list[np.ndarray] = []

    def after(position: int, chunk: Chunk, charges: Charges) -> None:
        assert charges.log_proba is not None
        rows.append(charges.log_proba)
        losses.append(charges.log_loss)

    evaluate(RecordedStream(x, y), make(3), after=after, **protocol)  # type: ignore[arg-type]
    return np.concatenate(rows), np.concatenate(losses)
