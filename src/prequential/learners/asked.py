"""What a live learner was asked and has no label for yet, by id; and the labels that came before their prediction.

Everything that happens is an event. An event is planned, written down where the learner has a home, and then applied;
when a home is opened again, its events are applied once more.
"""

from __future__ import annotations

import hashlib
import math
import time
import uuid
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice, takewhile
from typing import Any, NamedTuple

import numpy as np

from prequential.errors import BadCheckpoint, BadInput, BadSetting, short
from prequential.labels import decode, encode
from prequential.learners.charges import Charges

Event = dict[str, Any]  # "event" says what happened; the other values are JSON or arrays

LONGEST_ID = 256  # bytes
REMEMBERED = 100_000  # ids of which is remembered that they were answered, and as many that have expired
SEEN = 1024  # of the latest that wait, so many inputs count in the next prediction
_TIME: ContextVar[float | None] = ContextVar("time", default=None)  # where it is not that of the clock


class Ask(NamedTuple):
    """A prediction that waits for its label."""

    x: np.ndarray  # one example
    asked_at: int  # how many labels had arrived
    num_seen: int  # how many different ones
    log_proba: np.ndarray  # (capacity,) the prediction
    time: float  # in seconds since 1970

    @property
    def nbytes(self) -> int:
        return self.x.nbytes + self.log_proba.nbytes


class Early(NamedTuple):
    """A label that waits for its prediction."""

    label: Hashable
    at: int  # how many labels had arrived
    time: float


class Asked:
    """Predictions by id that wait for their labels, and what became of others; bounded in every way.

    Attributes
    ----------
    max_pending
        How many predictions may wait, and how many labels that came first. Of more, the oldest expire.
    max_seconds
        How long they may wait; None: as long as there is room.
    max_bytes
        How much memory the predictions that wait may take.
    answered, log_loss, correct
        Over all labels that came by id: how many, their average charge in nats, and how many were predicted right.
    expired, refused
        How many predictions or labels have expired, and how many labels came after that.
    """

    def __init__(self) -> None:
        self.max_pending, self.max_bytes = 100_000, 2**28
        self.max_seconds: float | None = None
        self.pending: dict[str, Ask] = {}  # the oldest first
        self.labels: dict[str, Early] = {}
        self.nbytes = 0  # of those pending
        self.answered = self.correct = self.expired = self.refused = 0
        self._total_loss = 0.0
        self._class_ids: dict[int, int] = {}  # of the latest that were answered, by a hash of the id
        self._gone: dict[int, None] = {}  # the latest that have expired

    def __len__(self) -> int:
        """How many predictions wait for their labels."""
        return len(self.pending)

    def __repr__(self) -> str:
        return (
            f"<Asked: {len(self.pending):,} predictions and {len(self.labels):,} labels wait, {self.answered:,} were "
            f"answered, {self.expired:,} have expired, {self.refused:,} labels came too late>"
        )

    @property
    def log_loss(self) -> float:
        return self._total_loss / self.answered if self.answered else math.nan

    @property
    def used(self) -> bool:
        """Whether anything ever happened."""
        return bool(self.answered or self.pending or self.labels or self.expired or self.refused or self._limited)

    @property
    def _limited(self) -> bool:
        return (self.max_pending, self.max_seconds, self.max_bytes) != (100_000, None, 2**28)

    def latest(self, like: np.ndarray) -> np.ndarray | None:
        """The inputs of the latest predictions that wait, the oldest first (n, ...); None where there are none.

        Those that are not like this example (1, ...), before the first is learned, are left out.
        """
        newest = islice(reversed(self.pending.values()), SEEN)
        found = [ask.x for ask in newest if ask.x.shape == like.shape[1:]][::-1]
        return np.stack(found).astype(like.dtype) if found else None

    def count_since(self, asked_at: int) -> int:
        """How many of the latest predictions that wait were asked since so many labels have arrived."""
        newest = islice(reversed(self.pending.values()), SEEN)
        return sum(1 for _ in takewhile(lambda ask: ask.asked_at == asked_at, newest))

    def class_id(self, name: str) -> int | None:
        """The class id with which an id was answered, as far back as that is remembered."""
        return self._class_ids.get(_hash(name))

    def has_expired(self, name: str) -> bool:
        return _hash(name) in self._gone

    # Events, before they are written.

    def plan_ask(self, name: str, ask: Ask) -> list[Event]:
        """A prediction was made; what is older than allowed goes."""
        drop = self._overdue(ask.time)
        count, size = len(self.pending) - len(drop) + 1, self.nbytes + ask.nbytes
        size -= sum(self.pending[old].nbytes for old in drop)
        waiting = iter(self.pending)
        while count > self.max_pending or size > self.max_bytes:
            old = next(waiting, None)
            if old is None:
                break
            if old not in drop:
                drop[old] = None
                count, size = count - 1, size - self.pending[old].nbytes
        asked = {"event": "asked", "id": name, **ask._asdict()}
        return [*_expired(drop, {}), asked]

    def plan_asks(self, names: list[str], asks: list[Ask]) -> list[Event] | None:
        """Predictions were made, for all of which there is room; None: there is not, or what is old may have to go."""
        size = self.nbytes + sum(ask.nbytes for ask in asks)
        if self.max_seconds is not None or len(self.pending) + len(asks) > self.max_pending or size > self.max_bytes:
            return None
        return [{"event": "asked", "id": name, **ask._asdict()} for name, ask in zip(names, asks, strict=True)]

    def plan_label(self, name: str, early: Early) -> list[Event]:
        """A label came before its prediction."""
        drop = self._overdue(early.time, self.labels)
        for old in self.labels:
            if len(self.labels) - len(drop) < self.max_pending:
                break
            drop[old] = None
        return [*_expired({}, drop), {"event": "label", "id": name, **early._asdict(), "label": encode(early.label)}]

    def plan_expiry(self, now: float) -> list[Event]:
        """What is too old, or too much, now."""
        asked, labels = self._overdue(now), self._overdue(now, self.labels)
        for waiting, drop in ((self.pending, asked), (self.labels, labels)):
            too_many = len(waiting) - self.max_pending
            drop.update(dict.fromkeys(islice(waiting, max(too_many, 0))))
        return _expired(asked, labels)

    def _overdue(self, now: float, among: dict[str, Any] | None = None) -> dict[str, None]:
        drop: dict[str, None] = {}
        if self.max_seconds is not None:
            for name, waiting in (self.pending if among is None else among).items():
                if now - waiting.time <= self.max_seconds:
                    break
                drop[name] = None
        return drop

    def plan_limits(self, changes: dict[str, Any]) -> list[Event]:
        """Other limits; None for `max_seconds` means that there is none."""
        limits = {"max_pending": self.max_pending, "max_seconds": self.max_seconds, "max_bytes": self.max_bytes}
        limits |= changes
        for name, value in limits.items():
            good = value is None if name == "max_seconds" and value is None else isinstance(value, (int, float))
            if not good or isinstance(value, bool) or (value is not None and not value > 0):
                raise BadSetting(f"{name} ({short(value)}) must be a number above 0")
        return [{"event": "limits", **limits}]

    # Events, after they were written.

    def apply(self, event: Event) -> None:
        """Takes an event in."""
        match event["event"]:
            case "asked":
                ask = Ask(*(event[name] for name in Ask._fields))
                self.drop(str(event["id"]))
                self.nbytes += ask.nbytes
                self.pending[str(event["id"])] = ask
            case "label":
                self.labels[str(event["id"])] = Early(decode(event["label"]), int(event["at"]), float(event["time"]))
            case "expired":
                for name in event["asked"]:
                    self.drop(name)
                    self._remember(self._gone, name, None)
                    self.expired += 1
                for name in event["labels"]:
                    self.labels.pop(name, None)
                    self._remember(self._gone, name, None)
                    self.expired += 1
            case "withdrawn":
                self.labels.pop(str(event["id"]), None)
            case "refused":
                self.refused += 1
            case "limits":
                self.max_pending, self.max_bytes = int(event["max_pending"]), int(event["max_bytes"])
                self.max_seconds = None if event["max_seconds"] is None else float(event["max_seconds"])
            case "state":
                self.load_state_dict(event["state"])
            case other:
                raise BadCheckpoint(f"unknown event {short(other)} among what the learner was asked")

    def answer(self, name: str, class_id: int, charges: Charges | None = None) -> None:
        """The label of an id was learned, at the charge of the prediction that was made, where one was."""
        self.labels.pop(name, None)
        self.drop(name)
        self._remember(self._class_ids, name, class_id)
        if charges is not None:
            self.answered += 1
            self._total_loss += float(charges.log_loss[0])
            self.correct += int(charges.correct[0])

    def answered_by(self, name: str, position: int, asked_at: int) -> Ask | None:
        """The prediction whose label is the example of the journal at this position, if one waits for it."""
        ask = self.pending.get(name)
        return ask if ask is not None and ask.asked_at == asked_at <= position else None

    def relearned(self, name: str, position: int, class_id: int) -> None:
        """The example of the journal at this position, learned again, has an id for which no prediction waits."""
        early = self.labels.get(name)
        if early is not None and early.at <= position:
            del self.labels[name]
        self._remember(self._class_ids, name, class_id)

    def settle(self) -> None:
        """After all events and examples: what was asked while its label was there, but not learned, was never asked."""
        for name in [name for name in self.labels if name in self.pending]:
            self.drop(name)

    def drop(self, name: str) -> None:
        """A prediction no longer waits."""
        ask = self.pending.pop(name, None)
        self.nbytes -= 0 if ask is None else ask.nbytes

    def _remember(self, where: dict[int, Any], name: str, value: Any) -> None:
        key = _hash(name)
        where.pop(key, None)
        where[key] = value
        if len(where) > REMEMBERED:
            del where[next(iter(where))]
        if where is self._class_ids:
            self._gone.pop(key, None)

    # Keeping it.

    def state_dict(self) -> dict[str, Any]:
        asks = list(self.pending.values())
        return {
            "limits": {"max_pending": self.max_pending, "max_seconds": self.max_seconds, "max_bytes": self.max_bytes},
            "counts": {
                "answered": self.answered,
                "correct": self.correct,
                "expired": self.expired,
                "refused": self.refused,
                "log_loss": self._total_loss,
            },
            "ids": list(self.pending),
            "x": _joined([ask.x for ask in asks]),
            "log_proba": _joined([ask.log_proba for ask in asks]),
            "asked_at": np.array([ask.asked_at for ask in asks], np.int64),
            "num_seen": np.array([ask.num_seen for ask in asks], np.int64),
            "times": np.array([ask.time for ask in asks], np.float64),
            "labels": [[name, encode(early.label), early.at, early.time] for name, early in self.labels.items()],
            "answered_ids": np.array(list(self._class_ids), np.uint64),
            "class_ids": np.array(list(self._class_ids.values()), np.int64),
            "expired_ids": np.array(list(self._gone), np.uint64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.apply({"event": "limits", **state["limits"]})
        counts = state["counts"]
        self.answered, self.correct = int(counts["answered"]), int(counts["correct"])
        self.expired, self.refused = int(counts["expired"]), int(counts["refused"])
        self._total_loss = float(counts["log_loss"])
        rows = zip(
            _split(state["x"]), state["asked_at"].tolist(), state["num_seen"].tolist(), _split(state["log_proba"]),
            state["times"].tolist(), strict=True,
        )  # fmt: skip
        self.pending = {str(name): Ask(*row) for name, row in zip(state["ids"], rows, strict=True)}
        self.nbytes = sum(ask.nbytes for ask in self.pending.values())
        self.labels = {
            str(name): Early(decode(label), int(at), float(when)) for name, label, at, when in state["labels"]
        }
        answered = zip(state["answered_ids"].tolist(), state["class_ids"].tolist(), strict=True)
        self._class_ids = dict(answered)
        self._gone = dict.fromkeys(state["expired_ids"].tolist())

    def whole(self) -> list[Event]:
        """Everything as events: what a log may begin with."""
        return [{"event": "state", "state": self.state_dict()}]


def id_text(given: Any) -> str:
    """An id as text: 7 and "7" are one id.

    >>> id_text(7), id_text("a7")
    ('7', 'a7')
    """
    if isinstance(given, (str, uuid.UUID)) or (isinstance(given, (int, np.integer)) and not isinstance(given, bool)):
        text = str(given)
        try:
            if 0 < len(text.encode()) <= LONGEST_ID:
                return text
        except UnicodeEncodeError:
            pass
    raise BadInput(
        f"id is {short(given)} ({type(given).__name__}), expected a text of 1 to {LONGEST_ID} bytes or a number"
    )


def now() -> float:
    """Seconds since 1970, which go on while no process runs."""
    fixed = _TIME.get()
    return time.time() if fixed is None else fixed


@contextmanager
def at_time(when: float) -> Iterator[None]:
    """Lets it be this time: what is applied again from a log happened then.

    >>> with at_time(12.5):
    ...     now()
    12.5
    """
    token = _TIME.set(when)
    try:
        yield
    finally:
        _TIME.reset(token)


def _expired(asked: dict[str, None], labels: dict[str, None]) -> list[Event]:
    return [{"event": "expired", "asked": list(asked), "labels": list(labels)}] if asked or labels else []


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _joined(arrays: list[np.ndarray]) -> list[dict[str, Any]]:
    """Arrays, each run of one shape and type as one: a state is made of few large ones."""
    runs: list[list[np.ndarray]] = []
    for array in arrays:
        if runs and (runs[-1][0].shape, runs[-1][0].dtype) == (array.shape, array.dtype):
            runs[-1].append(array)
        else:
            runs.append([array])
    return [{"rows": np.stack(run)} for run in runs]


def _split(runs: list[dict[str, Any]]) -> Iterator[np.ndarray]:
    for run in runs:
        yield from run["rows"]
