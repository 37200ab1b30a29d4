"""What a tenant refuses, before anything changes."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput, PrequentialError
from prequential.learners.asked import id_text
from prequential.learners.transformer.learner import Learner
from prequential.serve.failures import Failure, explained
from prequential.serve.idempotency import DoneRequests
from prequential.serve.json_labels import LabelNames
from prequential.serve.quotas import Quotas, check_amounts
from prequential.serve.tenant_log import TenantLog
from prequential.serve.work import Work

SIZE_SECONDS = 5.0  # how often the bytes on disk are counted


class TenantChecks:
    """Checks of requests against the learner, the log and the quotas of a tenant. Each raises a `Failure`.

    Parameters
    ----------
    learner, names, log
        The learner, the names of its labels and its log.
    quotas
        How much the tenant may ask for.
    place
        The directory of the tenant.
    """

    def __init__(self, learner: Learner, names: LabelNames, log: TenantLog, quotas: Quotas, place: Path) -> None:
        self.learner, self.names, self.log = learner, names, log
        self.quotas, self.place = quotas, place
        self._size, self._size_time = 0, -math.inf

    def check_work(self, work: Work, done: DoneRequests) -> None:
        """Refuses a request of which any row could not be learned; else its inputs are ready."""
        several = work.content["several"]
        fields = [f"rows.{i}." if several else "" for i in range(len(work.rows))]
        if work.content.get("key"):
            work.done = done.get(work.content["key"], work.content["print"], self.learner.journal)
        given: dict[str, Any] = {}  # labels of this request, by id
        for row, field in zip(work.rows, fields, strict=True):
            self.names.check(row["y"], f"{field}y")
            if row.get("id") is not None:
                row["id"] = self._check_id(row, given, field)
        inputs = [i for i, row in enumerate(work.rows) if row.get("x") is not None and i not in work.done]
        self.check_quotas(rows=len(work.rows) - len(work.done))
        x = self.check_rows([work.rows[i]["x"] for i in inputs], [work.rows[i]["y"] for i in inputs], several=several)
        by_id = [row["y"] for row in work.rows if row.get("x") is None]
        if by_id:
            try:
                self.learner.check_labels(by_id)
            except PrequentialError as error:
                raise explained(error, "y") from None
        self.check_size(x.nbytes // max(1, len(inputs)))
        self.log.check()
        work.x = {i: x[j : j + 1] for j, i in enumerate(inputs)}

    def _check_id(self, row: dict[str, Any], given: dict[str, Any], field: str) -> str:
        """The id of a label as text, if that label can be taken."""
        try:
            id, y, asked, labels = id_text(row["id"]), row["y"], self.learner.asked, self.learner.labels
        except BadInput as error:
            raise explained(error, f"{field}id") from None
        class_id = asked.class_id(id)
        if id in given or id in asked.labels or class_id is not None:
            early = asked.labels.get(id)
            first = given.get(id, early.label if early is not None else labels[class_id or 0])
            if first != y:
                raise Failure(409, f"{field}id {id!r} already has the label {first!r}, but got {y!r}", f"{field}y")
        elif id not in asked.pending and asked.has_expired(id) and row.get("x") is None:
            raise Failure(410, f"{field}id {id!r} has expired: too many predictions came after it", f"{field}id")
        given[id] = y
        return id

    def check_rows(
        self, xs: list[Any], ys: list[Any] | None = None, *, several: bool = True, keep: bool = True
    ) -> np.ndarray:
        """Inputs as one array. The first with named fields decides the schema, if they are to be kept."""
        if not xs:
            return np.empty((0, 0))
        try:
            named = isinstance(xs[0], dict)
            if ys is not None:
                self.learner.check_labels(ys)
            if named and self.learner.schema is None and keep:
                self.learner.decide_schema(xs)
            return self.learner.check_examples(xs if named else [numbers(x) for x in xs], ys)
        except PrequentialError as error:
            raise explained(error, "rows" if several else "x") from None

    def check_size(self, size: int) -> None:
        """Refuses a row that the log does not take."""
        largest = self.log.largest
        if largest is not None and size + 4096 > largest:
            raise Failure(413, f"a row has {size:,} bytes, but the log takes messages of at most {largest:,}", "x")

    def check_quotas(self, *, rows: int = 0, asks: int = 0) -> None:
        """Refuses more rows or predictions than the tenant may have."""
        failure = self.over_quota(rows=rows, asks=asks)
        if failure is not None:
            raise failure

    def over_quota(self, *, rows: int = 0, asks: int = 0) -> Failure | None:
        """Why so many more rows or predictions are too many, if they are."""
        if self.quotas.bytes is not None and time.monotonic() - self._size_time > SIZE_SECONDS:
            self._size, self._size_time = self.size(), time.monotonic()
        position, pending = self.learner.position, len(self.learner.asked)
        return check_amounts(self.quotas, rows=rows, position=position, asks=asks, pending=pending, size=self._size)

    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.place.rglob("*") if path.is_file())


def numbers(x: Any) -> Any:
    """A list of numbers, in which null says that one is missing."""
    return [math.nan if value is None else value for value in x] if isinstance(x, list) and None in x else x
