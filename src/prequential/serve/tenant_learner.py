"""A tenant in a worker: its learner, and what its requests do to it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadCheckpoint, PrequentialError, short
from prequential.learners import by_id
from prequential.learners.asked import Ask, at_time, id_text, now
from prequential.learners.charges import Charges, Probabilities
from prequential.learners.home import holds_learner
from prequential.learners.transformer.learner import Learner
from prequential.serve import cached_home
from prequential.serve.clock import STEADY
from prequential.serve.failures import Failure, busy, explained
from prequential.serve.idempotency import DoneRequests, origin
from prequential.serve.json_labels import LabelNames
from prequential.serve.nats_client import NatsThread, explained_nats
from prequential.serve.nats_log import Behind, NatsLog
from prequential.serve.quotas import Quotas
from prequential.serve.score_log import Rescored
from prequential.serve.scoreboard import Scoreboard
from prequential.serve.tenant_checks import TenantChecks, numbers
from prequential.serve.tenant_log import Event, HomeLog, TenantLog
from prequential.serve.tenant_scores import TenantScores
from prequential.serve.work import Work
from prequential.settings import Settings

TURN_SECONDS = 0.02  # after which a long request lets others go first
SAVE_AFTER = 500  # examples that were learned again from a log: they are not to be learned a third time
LONG_CATCH_UP = 256  # rows
MOST_PROBABILITIES = 1000  # of the most probable labels, in a reply


class TenantLearner:
    """A learner in its home, with running figures.

    Parameters
    ----------
    name
        The tenant.
    place
        Its directory.
    made
        What `tenant.json` says: settings, classes, schema, missing, quotas.
    trust
        Whether settings may name code to import.
    nats
        Where its log is; None: in the home of the learner.
    """

    def __init__(
        self, name: str, place: Path, made: dict[str, Any], *, trust: bool = False, nats: NatsThread | None = None
    ) -> None:
        self.name, self.place = name, place
        quotas = Quotas.from_dict(made["quotas"])
        self.log: TenantLog
        if nats is None:
            self._scores = TenantScores(place)
            self.learner = _open_learner(place / "learner", made, trust, self._scores.rescored)
            self.log = HomeLog(self.learner)
        else:
            nats.connect()
            make = partial(_open_learner, place / "learner", made, trust)
            self.learner, sequence = cached_home.open_at_save(place / "learner", make)
            self.log = NatsLog(nats, name, float(made["created"]), sequence)
            self._scores = TenantScores(place, sequence)
        self._schema_known = self.learner.schema is not None
        self.names = LabelNames(self.learner)
        self.checks = TenantChecks(self.learner, self.names, self.log, quotas, place)
        self.used = time.monotonic()
        self.saved = time.monotonic()
        self.saved_at = self.learner.saved_position
        behind = self.learner.position - self.saved_at  # what was learned again now
        self.changed = behind > 0  # since it was saved
        if behind > LONG_CATCH_UP:
            self.saved = -math.inf  # it is saved soon: the next start shall not learn it again
        self._done = DoneRequests()
        self._scores.replay(self.learner.position, self.names)
        if isinstance(self.log, NatsLog):
            try:
                self._catch_up(self.log)
            except BaseException as error:
                self.learner.close()
                if isinstance(error, Behind):
                    cached_home.clear(place / "learner")
                    raise busy("the log has been made anew, and so is this tenant") from None
                raise explained_nats(error) from None

    @property
    def scores(self) -> Scoreboard:
        """Its running figures."""
        return self._scores.board

    # Predictions.

    def predict(self, content: dict[str, Any]) -> list[dict[str, Any]]:
        """Predicts rows in order; those with an id wait for their labels. All of them, or none."""
        with at_time(STEADY.now()):
            return self._predict(content)

    def predict_together(self, contents: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
        """What `predict` gives for requests with a row each, asked one after another, in one pass; None: not so."""
        learner, names, rows = self.learner, [], []
        if self.log.largest is not None or self.checks.over_quota(asks=len(contents)) is not None:
            return None
        try:
            for content in contents:
                row = content["rows"][0]
                if (
                    len(content["rows"]) > 1
                    or not content["remember"]
                    or (learner.schema is None and dict is type(row["x"]))
                ):
                    return None
                names.append(id_text(row["id"]))
                if not by_id.is_new(learner, names[-1]):
                    return None
                rows.append(learner.check_example(numbers(row["x"])))
            if len(set(names)) < len(names) or len({row.shape for row in rows}) > 1:
                return None
            with at_time(STEADY.now()):
                self.changed = True
                made = by_id.ask_many(learner, np.concatenate(rows), names)
                return [self._asked(name, ask) for name, ask in zip(names, made, strict=True)]
        except PrequentialError:
            return None  # one by one, each gets its own reply

    def _asked(self, id: str, made: Ask) -> dict[str, Any]:
        """The reply to a prediction that was remembered."""
        p = self.learner._probabilities(made.log_proba, made.num_seen)
        self._predicted(id, p, made.asked_at)
        return self._reply(id, p, made.asked_at)

    def _predict(self, content: dict[str, Any]) -> list[dict[str, Any]]:
        rows, remember = content["rows"], content["remember"]
        if remember and self.log.largest is not None:
            try:
                self.log.check()
            except Failure as failure:
                if failure.status != 503:
                    raise
                rows = [{"id": None, "x": row["x"]} for row in rows]  # what is known is enough to predict
                return [
                    {**self._predict_row(row, i, False, len(rows) > 1), "remembered": False}
                    for i, row in enumerate(rows)
                ]
            x = self.checks.check_rows([row["x"] for row in rows], several=len(rows) > 1)
            self.checks.check_size(x.nbytes // len(rows) + 8 * self.learner.labels.capacity)
        if len(rows) > 1:
            self.checks.check_rows([row["x"] for row in rows], keep=remember)
        waiting = self.learner.asked.pending
        new = sum(1 for row in rows if remember and row["id"] not in waiting)
        self.checks.check_quotas(asks=new)
        return [self._predict_row(row, i, remember, len(rows) > 1) for i, row in enumerate(rows)]

    def _predict_row(self, row: dict[str, Any], i: int, remember: bool, several: bool) -> dict[str, Any]:
        learner, asked = self.learner, self.learner.asked
        try:
            id, x = id_text(row["id"]) if remember else None, numbers(row["x"])
            position = learner.position
            if id is None:
                p = learner.predict_proba_one(x)
                self._predicted(None, p, position)
            else:
                self.changed = True
                if id in asked.labels:
                    p = self._ask_with_label(id, x)
                else:
                    new = id not in asked.pending and asked.class_id(id) is None
                    p = learner.predict_proba_one(x, id=id)
                    if new:
                        self._append({"event": "ask", "id": id, **asked.pending[id]._asdict()})
                    if id in asked.pending:
                        position = asked.pending[id].asked_at
                    self._predicted(id, p, position)
        except PrequentialError as error:
            raise explained(error, f"rows.{i}.x" if several else "x") from None
        return self._reply(id, p, position)

    def _reply(self, id: str | None, p: Probabilities, position: int) -> dict[str, Any]:
        label = max(p, key=p.__getitem__, default=None)
        shown = list(p.items())
        if len(shown) > MOST_PROBABILITIES:
            shown = sorted(shown, key=lambda item: -item[1])[:MOST_PROBABILITIES]
        names = self.names.names if len(shown) == len(self.names.names) else None
        named = (
            dict(zip(names, p.values(), strict=True))
            if names is not None
            else {self.names.name(label): value for label, value in shown}
        )
        return {"id": id, "label": label, "probabilities": named, "unseen": min(p.unseen, 1.0), "position": position}

    def _ask_with_label(self, id: str, x: Any) -> Probabilities:
        """Predicts a row whose label was there before, and then learns it."""
        if self.learner.schema is None:
            by_id.decide_schema(self.learner, x, one=True)
        made = by_id.predict(self.learner, x)
        p = self._take_ask(id, made)
        self._append({"event": "ask", "id": id, **made._asdict()})
        return p

    def _take_ask(self, id: str, made: Ask) -> Probabilities:
        """Remembers a prediction, and learns it where its label is there."""
        learner, early = self.learner, self.learner.asked.labels.get(id)
        by_id.remember(learner, id, made)
        p = learner._probabilities(made.log_proba, made.num_seen)
        label = self._predicted(id, p, made.asked_at)
        if early is not None:
            charge = -math.log(max(p[early.label], 1e-300))
            self._score(id, early.label, label, charge, early.label == label, None)
        return p

    def _predicted(self, id: str | None, p: Probabilities, position: int) -> Any:
        label, best = max(p.items(), key=lambda item: item[1], default=(None, 0.0))
        self._scores.predicted(id, label, best, position)
        return label

    # Labels and examples.

    def learn(self, work: Work) -> list[dict[str, Any]] | None:
        """Learns rows in order; None where it has to be called again, to let others go first."""
        if work.begun_by is not self:
            work.restart()
            self.checks.check_work(work, self._done)
            work.begun_by = self
        begun = time.monotonic()
        while work.at < len(work.rows):
            count = self._next(work)
            if self.learner.stepping and self.learner.room <= count:
                return None  # it would wait for gradient steps, and so would all predictions
            with at_time(STEADY.now()):
                self._learn_rows(work, count)
            work.at += count
            if work.at < len(work.rows) and time.monotonic() - begun > TURN_SECONDS:
                return None
        return work.results

    def learn_together(self, works: Iterable[Work]) -> list[list[dict[str, Any]]]:
        """Learns the labels of the first of these requests in one call, where each has one by id; what it gives for each.

        They are learned as if they had come alone, to the bit. An empty list: `learn` has to do it.
        """
        learner = self.learner
        room = learner.room - 1 if learner.stepping else learner.room
        found: dict[str, Any] = {}
        waits: list[Ask] = []
        with at_time(STEADY.now()):
            for work in islice(works, room):
                row = work.rows[0]
                if work.begun_by is not None or len(work.rows) > 1 or row.get("id") is None or row.get("x") is not None:
                    break
                try:
                    self.checks.check_work(work, self._done)
                except Failure:
                    break
                if row["id"] in found or row["id"] not in learner.asked.pending:
                    break
                found[row["id"]] = row["y"]
                waits.append(learner.asked.pending[row["id"]])
            if len(found) < 2:
                return []
            first, self.changed = learner.position, True
            try:
                charges = learner.learn_many(ids=list(found), ys=list(found.values()))
            except PrequentialError:
                return []  # one by one, each gets its own reply
            assert charges is not None
            results = []
            for i, (id, y) in enumerate(found.items()):
                self._score_charge(id, y, charges, i, now() - waits[i].time, first + i + 1)
                self._append({"event": "label", "id": id, "y": y, "time": now()})
                results.append([{"id": id, "position": first + i + 1, "status": "learned"}])
        return results

    def _next(self, work: Work) -> int:
        """How many rows are learned next: a whole chunk in one call, else one by one.

        The current state depends on that in its last bits, and after a restart they are learned again like this.
        """
        learner, rows = self.learner, work.rows
        if learner.room == learner.stride and len(rows) - work.at >= learner.stride:
            part = range(work.at, work.at + learner.stride)
            if all(rows[i].get("id") is None and i not in work.done for i in part) and self._fits(work, part):
                return learner.stride
        return 1

    def _fits(self, work: Work, part: range) -> bool:
        """Whether rows can be one event of the log."""
        return self.log.largest is None or sum(work.x[i].nbytes + 1024 for i in part) < self.log.largest

    def _learn_rows(self, work: Work, count: int) -> None:
        row, i = work.rows[work.at], work.at
        try:
            if i in work.done:
                work.results.append({"id": row.get("id"), "position": work.done[i], "status": "known"})
            elif row.get("id") is None:
                self._observe(work, count)
            else:
                work.results.append(self._label(row, work.x.get(i)))
        except PrequentialError as error:
            failure = explained(error, f"rows.{i}" if work.content["several"] else None)
            if work.results:
                why = failure.message.partition(";")[0]
                rest = "send the request again" if work.content.get("key") else "send the rest"
                said = f"{why}; {len(work.results)} of {len(work.rows)} rows were learned before: {rest}"
                failure = Failure(failure.status, said, failure.field, failure.retry)
            raise failure from None

    def _observe(self, work: Work, count: int) -> None:
        part = range(work.at, work.at + count)
        x, ys = np.concatenate([work.x[i] for i in part]), [work.rows[i]["y"] for i in part]
        key, print = work.content.get("key"), work.content.get("print")
        origins = [origin(key, str(print), i) for i in part] if key else None
        self._take_examples(x, ys, origins)
        self._append({"event": "examples", "x": x, "y": ys, "origins": origins, "time": now()})
        for i, position in zip(part, range(self.learner.position - count + 1, self.learner.position + 1), strict=True):
            if key:
                self._done.add(key, str(print), i, position)
            work.results.append({"id": None, "position": position, "status": "learned"})

    def _take_examples(self, x: np.ndarray, ys: list[Any], origins: list[str] | None) -> None:
        """Learns examples in one call."""
        self.changed = True
        charges = self.learner.observe(x, ys, origins=origins)
        first = self.learner.position - len(ys)
        for j, y in enumerate(ys):
            self._score_charge(None, y, charges, j, None, first + j + 1)

    def _label(self, row: dict[str, Any], x: np.ndarray | None) -> dict[str, Any]:
        asked, id, y, when = self.learner.asked, row["id"], row["y"], now()
        before = self.learner.position
        if x is not None and id not in asked.pending and asked.class_id(id) is None:
            self._take_example(id, x[0], y)
            self._append({"event": "example", "id": id, "x": x[0], "y": y, "time": when})
            return {"id": id, "position": self.learner.position, "status": "learned"}
        new = id not in asked.labels and asked.class_id(id) is None
        self._take_label(id, y, x)
        if new:
            self._append({"event": "label", "id": id, "y": y, "time": when})
        status = "learned" if self.learner.position > before else "waiting" if id in asked.labels else "known"
        return {"id": id, "position": self.learner.position, "status": status}

    def _take_example(self, id: str, x: np.ndarray, y: Any) -> None:
        """Learns an example that was not asked for, but has an id."""
        self.changed = True
        p = self.learner.predict_proba_one(x)
        label, _ = max(p.items(), key=lambda item: item[1], default=(None, 0.0))
        self.learner.learn_one(x, y, id=id)
        self._score(id, y, label, -math.log(max(p[y], 1e-300)), label == y, None)

    def _take_label(self, id: str, y: Any, x: np.ndarray | None = None) -> None:
        """Learns the label of what was asked by an id, or keeps it until that is asked."""
        self.changed = True
        learner, waits = self.learner, self.learner.asked.pending.get(id)
        charges = learner.learn_one(None if x is None else x[0], y, id=id)
        if charges is not None and waits is not None:
            self._score_charge(id, y, charges, 0, now() - waits.time)

    def _score_charge(
        self, id: str | None, y: Any, charges: Charges, i: int, delay: float | None, position: int | None = None
    ) -> None:
        """Counts the score of one example of a call."""
        predicted = int(charges.predicted[i])
        label = None if predicted < 0 else self.learner.labels[predicted]
        self._score(id, y, label, float(charges.log_loss[i]), bool(charges.correct[i]), delay, position)

    def _score(
        self, id: str | None, y: Any, predicted: Any, nats: float, correct: bool, delay: float | None,
        position: int | None = None,
    ) -> None:  # fmt: skip
        self._scores.scored(
            id=id, y=y, text=self.names.name(y), predicted=predicted, nats=nats, correct=correct, delay=delay,
            position=self.learner.position if position is None else position, time=now(),
        )  # fmt: skip

    # The log.

    def _append(self, event: Event) -> None:
        if not self._schema_known and self.learner.schema is not None:
            self._schema_known = True
            self.log.append({"event": "schema", "schema": self.learner.schema.to_dict()})
        self.log.append(event)

    def _catch_up(self, log: NatsLog) -> None:
        """Applies what the log has beyond the save."""
        before = self.learner.position
        for event in log.read():
            with at_time(float(event.get("time") or STEADY.now())):  # it happened then
                self._apply(event)
        self._scores.take_events()
        if self.learner.position - before >= SAVE_AFTER:
            self.save()

    def follow(self) -> None:
        """Applies what another process has written to the log since; nothing of this one may wait."""
        if isinstance(self.log, NatsLog) and not self.log.writing:
            self._catch_up(self.log)

    def _apply(self, event: Event) -> None:
        """Does what was done when the event was written."""
        self.changed = True
        match event["event"]:
            case "ask":
                self._take_ask(event["id"], Ask(*(event[name] for name in Ask._fields)))
            case "label":
                self._take_label(event["id"], event["y"])
            case "example":
                self._take_example(event["id"], event["x"], event["y"])
            case "examples":
                self._take_examples(event["x"], event["y"], event["origins"])
            case "schema":
                from prequential.streams.formats.schema import Schema

                self.learner.schema, self._schema_known = Schema.from_dict(event["schema"]), True
            case other:
                raise BadCheckpoint(f"unknown event {short(other)} in the log")

    # Figures.

    def state(self) -> dict[str, Any]:
        """Where it stands."""
        learner = self.learner
        return {
            "position": learner.position,
            "labels": len(learner.labels),
            "pending": len(learner.asked),
            "labels_waiting": len(learner.asked.labels),
            "expired": learner.asked.expired,
            "stepping": learner.stepping,
            "engine": None if learner.engine is None else learner.engine.name,
            "schema": None if learner.schema is None else learner.schema.to_dict(),
            "notes": learner.notes[-10:],
        }

    def figures(self) -> dict[str, Any]:
        learner = self.learner
        learning = learner.num_pending + (learner.stride if learner.stepping else 0)
        more = {
            "position": learner.position,
            "pending": len(learner.asked),
            "labels_waiting": len(learner.asked.labels),
            "unscored": max(0, learner.position - self.scores.count),
        }
        return {**self.scores.figures(), **more, "learn_lag": learning, "expired": learner.asked.expired}

    # Keeping it.

    def flush(self) -> list[dict[str, Any]]:
        """Writes down the figures of the requests at hand, before they are answered; their events, for subscribers."""
        self._scores.flush()
        return self._scores.take_events()

    def save(self) -> None:
        """Writes the learner and its figures, so that the next start is quick."""
        if self.changed:
            sequence = self.log.flush()
            if sequence is None:  # what was applied may not be in the log
                return
            self._scores.save(sequence, partial(self._save_learner, sequence))
            self.saved_at, self.changed = self.learner.position, False
        self.saved = time.monotonic()

    def _save_learner(self, sequence: int) -> None:
        if isinstance(self.log, NatsLog):
            cached_home.save(self.learner, sequence)
        else:
            self.learner.save()

    def close(self) -> None:
        with suppress(PrequentialError):  # without a save, everything is learned again from the journal
            self.save()
        self.learner.close()


def _open_learner(home: Path, made: dict[str, Any], trust: bool, watch: Rescored | None = None) -> Learner:
    if holds_learner(home):
        return Learner.open(home, durability="save", device="cpu", trust=trust, watch=watch)
    from prequential.streams.formats.schema import Schema

    schema = None if made["schema"] is None else Schema.from_dict(made["schema"])
    settings = Settings().changed(**made["settings"])
    return Learner(
        made["classes"], settings=settings, home=home, durability="save", device="cpu", missing=made["missing"],
        schema=schema,
    )  # fmt: skip
