"""Labels that come late, by id: how a learner remembers what it was asked, and learns it when its label comes.

These functions belong to `OnlineLearner`. Everything happens while the learner's state is held, so that a prediction and
the number of labels that had arrived belong together.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from prequential.errors import BadInput, PrequentialError, short
from prequential.learners.asked import Ask, Asked, Early, Event, id_text, now
from prequential.learners.charges import Charges, charge
from prequential.learners.gate import as_labels, check_labels


def ask(learner: Any, x: Any, given: Any) -> tuple[np.ndarray, int]:
    """Predicts one example and remembers it by its id; the log-probabilities, and how many labels had been seen.

    An id that waits for its label gives the prediction that was made. One whose label has come is predicted anew, and
    nothing is remembered. Where the label is there already, the prediction is made first, and then it is learned.
    """
    name = id_text(given)
    if learner._is_snapshot:
        raise BadInput("this learner is a snapshot, which remembers nothing: predict without an id, or ask the learner")
    if learner.schema is None:
        decide_schema(learner, x, one=True)
    with learner._guard.reading():
        row = learner._checked_one(x)
        asked: Asked = learner.asked
        if name not in asked.labels:
            before = asked.pending.get(name)
            if before is not None:
                return _asked_before(before, row, name)
            made = _predict(learner, row)
            if asked.class_id(name) is None:
                _take(learner, asked.plan_ask(name, made))
            return made.log_proba.copy(), made.num_seen
    return _ask_with_label(learner, row, name)


def is_new(learner: Any, name: str) -> bool:
    """Whether nothing is known of an id: neither a prediction nor a label."""
    asked: Asked = learner.asked
    return name not in asked.pending and name not in asked.labels and asked.class_id(name) is None


def ask_many(learner: Any, rows: np.ndarray, names: list[str]) -> list[Ask]:
    """`ask` for several checked examples with new ids, one after another, in one pass."""
    with learner._guard.reading():
        waiting, since = learner.asked.latest(rows[:1]), learner.asked.count_since(learner.position)
        log_proba = learner._predict_late(rows, rows[:0] if waiting is None else waiting, since)
        known, when = len(learner.labels), now()
        made = [Ask(row.copy(), learner.position, known, of, when) for row, of in zip(rows, log_proba, strict=True)]
        events = learner.asked.plan_asks(names, made)
        if events is not None:
            _take(learner, events)
        else:
            for name, one in zip(names, made, strict=True):
                _take(learner, learner.asked.plan_ask(name, one))
    return made


def decide_schema(learner: Any, x: Any, *, one: bool = False) -> None:
    """What is remembered of a row depends on how it is read, so that the first row that is asked decides it for good."""
    with learner._guard.changing(), learner._guard.inside():
        rows = learner._rows.find(x, one=one)
        if rows is not None and learner.schema is None:
            learner._rows.learnable(rows, first=learner.position, shape=learner.shape)
            if learner._rows.adopt():
                learner._rows.given = True
                learner._keep_schema()


def _asked_before(before: Ask, row: np.ndarray, name: str) -> tuple[np.ndarray, int]:
    if before.x.shape != row.shape[1:] or before.x.tobytes() != row[0].astype(before.x.dtype).tobytes():
        raise BadInput(
            f"id {short(name)} waits for its label and was asked with another x; each example needs its own id"
        )
    return before.log_proba.copy(), before.num_seen


def _predict(learner: Any, row: np.ndarray) -> Ask:
    waiting = learner.asked.latest(row)
    since = learner.asked.count_since(learner.position)
    log_proba = learner._predict_late(row, row[:0] if waiting is None else waiting, since)[0]
    return Ask(row[0].copy(), learner.position, len(learner.labels), log_proba, now())


def _ask_with_label(learner: Any, row: np.ndarray, name: str) -> tuple[np.ndarray, int]:
    """Predicts an example whose label came first, and then learns it."""
    with learner._guard.changing():
        learner._check_can_learn()
        with learner._guard.inside():
            early = learner.asked.labels.get(name)
            if early is not None:
                made = _predict(learner, row)
                _take(learner, learner.asked.plan_ask(name, made))
        if early is None:  # another thread was faster
            return ask(learner, row[0], name)
        _learn_early(learner, name, early)
    return made.log_proba.copy(), made.num_seen


def predict(learner: Any, x: Any) -> Ask:
    """The prediction that `ask` would make and remember now. Changes nothing."""
    with learner._guard.reading():
        return _predict(learner, learner._checked_one(x))


def remember(learner: Any, given: Any, made: Ask) -> None:
    """Remembers a prediction that was made before; where its label is there already, it is learned."""
    name = id_text(given)
    with learner._guard.changing():
        learner._check_can_learn()
        with learner._guard.inside():
            early = learner.asked.labels.get(name)
            _take(learner, learner.asked.plan_ask(name, made))
        if early is not None:
            _learn_early(learner, name, early)


def _learn_early(learner: Any, name: str, early: Early) -> None:
    """Learns what was asked just now, with the label that came first."""
    try:
        _learn(learner, [name], [early.label])
    except BaseException:
        with learner._guard.inside(whole=False):
            learner.asked.drop(name)
        raise


def learn(learner: Any, ids: Sequence[Any], ys: Any) -> Charges | None:
    """Learns what was asked by these ids, in the order given; the charges of the predictions that were made then.

    All of it or, where something is raised, nothing. A label whose prediction was not asked yet waits for it. The same
    label again is ignored. None where nothing was learned.
    """
    names = [id_text(given) for given in ids]
    with learner._guard.changing():
        learner._check_can_learn()
        y = as_labels(ys, len(names), learner.position)
        check_labels(learner.labels, y, learner.position)
        with learner._guard.inside():
            _take(learner, learner.asked.plan_expiry(now()))
            todo, early = _sort(learner, names, y)
            for name, label in early.items():
                _take(learner, learner.asked.plan_label(name, Early(label, learner.position, now())))
        try:
            return _learn(learner, list(todo), list(todo.values())) if todo else None
        except BaseException:
            with learner._guard.inside(whole=False), suppress(PrequentialError):
                for name in early:
                    _take(learner, [{"event": "withdrawn", "id": name}])
            raise


def learn_with_x(learner: Any, x: Any, y: Hashable, given: Any) -> Charges | None:
    """Learns an example that comes with its label and an id: as one that was asked, or else at once."""
    name = id_text(given)
    with learner._guard.changing():
        row = learner._one(x)
        with learner._guard.inside():
            waits = learner.asked.pending.get(name)
            known = waits is not None or learner.asked.class_id(name) is not None
            if waits is not None:
                _asked_before(waits, learner._checked(row), name)
        if known:
            return learn(learner, [name], [y])
        learner._take_in(row, [y], learner._learn, ids=[name])
        with learner._guard.inside():
            learner.asked.answer(name, learner.labels.class_id(y))
    return None


def _sort(learner: Any, names: list[str], ys: list[Hashable]) -> tuple[dict[str, Hashable], dict[str, Hashable]]:
    """The labels of predictions that wait, and those that came before theirs; others are ignored or refused."""
    asked: Asked = learner.asked
    todo: dict[str, Hashable] = {}
    early: dict[str, Hashable] = {}
    for name, label in zip(names, ys, strict=True):
        answered = asked.class_id(name)
        if name in todo or name in early or name in asked.labels:
            first = todo.get(name, early.get(name, asked.labels[name].label if name in asked.labels else None))
            if first != label:
                raise _other_label(name, label, first)
        elif name in asked.pending:
            todo[name] = label
        elif answered is not None:
            if learner.labels.class_id(label) != answered:
                raise _other_label(name, label, learner.labels[answered])
        elif asked.has_expired(name):
            _take(learner, [{"event": "refused"}])
            limit = f"{asked.max_pending:,} predictions" + (
                f" and {asked.max_seconds:g} s" if asked.max_seconds else ""
            )
            raise BadInput(f"id {short(name)} has expired: at most {limit} wait for labels (learner.limit_asked)")
        else:
            early[name] = label
    return todo, early


def _other_label(name: str, label: Hashable, first: Hashable) -> BadInput:
    return BadInput(
        f"id {short(name)} already has the label {short(first)}, but got {short(label)}; nothing was learned"
    )


def _learn(learner: Any, names: list[str], ys: list[Hashable]) -> Charges:
    asks = [learner.asked.pending[name] for name in names]
    asked_at = np.array([one.asked_at for one in asks])
    at_once = (asked_at == learner.position + np.arange(len(asks))).all()
    learner._take_in(
        np.stack([one.x for one in asks]), ys, learner._learn, asked_at=None if at_once else asked_at, ids=names
    )
    with learner._guard.inside():
        return joined([_answer(learner, name, one, y) for name, one, y in zip(names, asks, ys, strict=True)])


def _answer(learner: Any, name: str, one: Ask, y: Hashable) -> Charges:
    class_id = learner.labels.class_id(y)
    # the label may be one that was not known then, and has a place behind those that were
    place = class_id if class_id < one.num_seen else min(one.num_seen, len(one.log_proba) - 1)
    charges = charge(
        one.log_proba[None], np.array([place]), np.array([one.num_seen]), open_ended=learner.labels.open_ended
    )
    learner.asked.answer(name, class_id, charges)
    return replace(charges, num_labels=len(learner.labels))


def relearned(learner: Any, start: int, asked_at: np.ndarray, ids: list[str], ys: Sequence[Hashable]) -> None:
    """Examples of the journal from a position on were learned again: those with an id were answered then."""
    for i, name in enumerate(ids):
        if name:
            one = learner.asked.answered_by(name, start + i, int(asked_at[i]))
            if one is not None:
                _answer(learner, name, one, ys[i])
            else:
                learner.asked.relearned(name, start + i, learner.labels.class_id(ys[i]))


def limit(learner: Any, changes: dict[str, Any]) -> None:
    """Sets how much may wait, and lets go what is too much."""
    with learner._guard.changing(), learner._guard.inside():
        _take(learner, learner.asked.plan_limits(changes))
        _take(learner, learner.asked.plan_expiry(now()))


def _take(learner: Any, events: list[Event]) -> None:
    """Writes events down, where the learner has a home, and applies them."""
    if events:
        learner._keep_events(events)
        for event in events:
            learner.asked.apply(event)


def joined(parts: list[Charges]) -> Charges:
    """The charges of several examples as one; each may be of another moment, so that probabilities are left out."""

    def column(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])

    return Charges(
        column("log_loss"),
        column("predicted"),
        column("correct"),
        column("confidence"),
        num_seen=column("num_seen"),
        num_labels=parts[-1].num_labels,
    )
