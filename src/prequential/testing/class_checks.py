"""Checks of labels whose number is not given: they may be any number, and room for more changes nothing by itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable

import numpy as np

from prequential.errors import BadInput
from prequential.learners.base import OnlineLearner
from prequential.storage.checkpoint import same_state
from prequential.testing.examples import TOLERANCE, Make, RecordedStream, make_examples

GROWN = 1e-6  # how much room for more class ids may change a probability, as a share of it: by rounding
ROUNDED = 2e-7  # and apart from that: what is left of 1 in float32


def make_many_labels(n: int) -> tuple[np.ndarray, list[Hashable]]:
    """n vectors with labels 0, 1, 2, to which three more come every ten examples; old ones come back."""
    x, y = make_examples(n)
    return x, [label if t % 3 == 0 else label + 3 * (t // 10) for t, label in enumerate(y)]


def check_classes_left_out(make: Make) -> None:
    """Where classes is None, any number of labels may come, at any time, whatever the sizes in which they come.

    The first label of all costs nothing, as it is certain that a new one comes. Later the probabilities of the labels
    seen and that of any other sum to one, and a label seen for the first time costs -log of the latter.
    """
    x, y = make_many_labels(60)
    whole = make(None).observe(x, y)
    assert np.isfinite(whole.log_loss).all(), "a label cost an infinite loss"
    assert abs(whole.log_loss[0]) < TOLERANCE, f"the first label of all costs {whole.log_loss[0]} nats, expected 0"
    learner, start = make(None), 0
    for size in (1, 6, 13, 1, 24, 15):
        p = learner.predict_proba(x[start])
        total = sum(p.values()) + p["a label never seen"]
        assert abs(total - 1) < 1e-4, f"example {start}: labels seen and any other have probability {total} together"
        losses = learner.observe(x[start : start + size], y[start : start + size]).log_loss
        asked = -math.log(p[y[start]])
        assert abs(asked - losses[0]) < TOLERANCE * max(1, asked), (
            f"example {start} costs {losses[0]} nats and is predicted at {asked}"
        )
        worst = float(np.abs(losses - whole.log_loss[start : start + size]).max())
        assert worst < TOLERANCE, f"in uneven pieces a loss after example {start} differs by {worst}"
        start += size
    seen = len(set(y))
    p = learner.predict_proba(x[0])
    assert len(p) == seen, f"{len(p)} labels have a probability, expected {seen}"
    assert learner.labels.capacity > seen, f"with {seen} labels seen, none of {learner.labels.capacity} is free"


def check_unseen_labels(make: Make) -> None:
    """All labels not seen yet together must weigh about as much as one that was seen, whatever their number."""
    x, y = make_examples(40)
    for classes in (100, None):
        learner = make(classes)
        before = learner.predict_proba_many(x[:1])
        assert abs(before.sum() - 1) < 1e-4, f"before the first label the probabilities sum to {before.sum()}"
        learner.learn_many(x, y)
        unseen = learner.predict_proba_many(x[:8])[:, 3:].sum(1).mean()
        assert unseen < 1 / 3, (
            f"with classes {classes} and 3 labels seen, the others have a probability of {unseen} together, "
            "expected no more than that of one in four"
        )


def check_growth(make: Make) -> None:
    """Room for more class ids must change no probability of a label that was seen, nor that of all others together."""
    x, y = make_examples(37)
    learner = make(None)
    learner.learn_many(x, y)
    log_p = learner.predict_log_proba_many(x[:5])
    capacity = _grow(learner)
    grown = learner.predict_log_proba_many(x[:5])
    assert grown.shape == (5, capacity), f"with {capacity} class ids the log-probabilities have shape {grown.shape}"
    for log_before, log_after in zip(log_p, grown, strict=True):
        before = np.exp([*log_before[:3], np.logaddexp.reduce(log_before[3:])])
        after = np.exp([*log_after[:3], np.logaddexp.reduce(log_after[3:])])
        assert (np.abs(after - before) <= GROWN * before + ROUNDED).all(), (
            f"room for more labels changed the probabilities {before} to {after}"
        )
    learner.learn_many(x[:9], [*range(3, 12)])  # into the middle of a chunk
    assert np.isfinite(learner.predict_log_proba_many(x[:2])).all(), "after growing it predicts no numbers"


def check_grown_state(make: Make) -> None:
    """A state with room for more labels must load into a new learner, an older one again, and a failed call undo it."""
    x, y = make_many_labels(60)
    learner = make(None)
    learner.replay_from(RecordedStream(x, y))
    learner.observe(x[:12], y[:12])
    early = learner.state_dict()
    for call in (learner.learn_many, learner.observe):
        try:
            call(x[12:], [*y[12:-1], object()])
        except BadInput:
            pass
        else:
            raise AssertionError("a label that cannot be kept was taken")
        assert same_state(early, learner.state_dict()), "a refused call left room for more labels behind"
    learner.observe(x[12:52], y[12:52])
    late = learner.state_dict()
    copied = copy.deepcopy(learner)
    assert same_state(late, copied.state_dict()), "the copy of a learner that has grown differs"
    fresh = make(None)
    fresh.replay_from(RecordedStream(x, y))
    fresh.load_state_dict(late)
    assert same_state(late, fresh.state_dict()), "the state of a learner that has grown came back otherwise"
    expected = learner.observe(x[52:], y[52:]).log_loss
    for which, other in (("loaded", fresh), ("copied", copied)):
        losses = other.observe(x[52:], y[52:]).log_loss
        assert np.array_equal(expected, losses), f"a learner that was {which} after growing goes on otherwise"
    fresh.load_state_dict(early)
    assert same_state(early, fresh.state_dict()), "a learner that has grown did not go back to an earlier state"


def _grow(learner: OnlineLearner) -> int:
    """Makes a learner grow as it would for labels that have not come; how many class ids it has then."""
    with learner._alone():
        learner._make_room(np.array([3 * learner.labels.capacity]))
    return learner.labels.capacity
