"""What the scoreboard of a tenant has counted since its last save, so that a killed process takes nothing back.

A line of JSON for each prediction and each score: a number that only grows, "predicted" or "scored", and the arguments
of that method of `Scoreboard`. A line is written when the learner has written the example, and before the request is
answered. It is not synced: it outlives the process, but after a power cut some of the latest may be missing. Examples
that were in the journal and have no line are predicted and scored once more when the learner learns them again
(`Rescored`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prequential.learners.transformer.learner import Learner
from prequential.serve.clock import STEADY
from prequential.serve.scoreboard import Scoreboard
from prequential.storage.files import opened, write_all
from prequential.streams.journal.journal import Journal

MOST_BYTES = 1 << 20  # that are kept while the disk takes nothing


class Rescored:
    """Scores that were not written down, made again while a learner that is opened learns its latest examples again.

    What was asked by id is scored by the prediction that was given then. Other examples are predicted anew, before they
    are learned; the rows of one chunk do not know each other's labels then, and their scores may differ a little from
    those that were lost.

    Parameters
    ----------
    after
        The last example of which there is a score.
    """

    def __init__(self, after: int) -> None:
        self.after = after
        self.found: list[dict[str, Any]] = []  # arguments of `Scoreboard.scored`, without the name of the label

    def __call__(self, learner: Learner, journal: Journal, start: int, stop: int) -> None:
        start = max(start, self.after)
        if start >= stop:
            return
        rows, (asked_at, ids) = journal.read(start, stop), journal.arrivals(start, stop)
        for i, y in enumerate(rows.y):
            made = learner.asked.answered_by(ids[i], start + i, int(asked_at[i])) if ids[i] else None
            if made is None:
                p = learner.predict_proba_one(rows.x[i])
            else:
                p = learner._probabilities(made.log_proba, made.num_seen)
            label, _ = max(p.items(), key=lambda item: item[1], default=(None, 0.0))
            self.found.append(
                {
                    "id": ids[i] or None, "y": y, "predicted": label, "nats": -math.log(max(p[y], 1e-300)),
                    "correct": label == y, "delay": None, "position": start + i + 1, "time": STEADY.now(),
                }
            )  # fmt: skip


class ScoreLog:
    """A file of lines beside the saved figures.

    Parameters
    ----------
    path
        The file; made with the first line.
    number
        Of the last line that the saved figures have.
    """

    def __init__(self, path: Path, number: int = 0) -> None:
        self.path, self.number = path, number
        self._waiting = b""  # what the disk did not take

    def last_position(self) -> int:
        """The last example that has a line; 0: none has."""
        return max((int(given["position"]) for _, kind, given in self._lines() if kind == "scored"), default=0)

    def replay(self, scores: Scoreboard, position: int) -> None:
        """Counts again what came after the save, for a learner that has learned so many examples."""
        for number, kind, given in self._lines():
            if number <= self.number:
                continue
            if kind == "scored" and given["position"] > position:  # a power cut took the example
                break
            self.number = number
            with contextlib.suppress(TypeError, ValueError):
                if kind == "predicted":
                    scores.predicted(**given)
                else:
                    scores.scored(**given)
        if self.path.exists():
            with contextlib.suppress(OSError):
                self._write(b"\n")  # a line that was cut off ends here

    def _lines(self) -> Iterator[tuple[int, str, dict[str, Any]]]:
        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            for line in file:
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    number, kind, given = json.loads(line)
                    if kind == "predicted" or (kind == "scored" and isinstance(given["position"], int)):
                        yield int(number), kind, dict(given)

    def add(self, kind: str, given: dict[str, Any]) -> None:
        """Takes one prediction or score, which `flush` writes down."""
        self.number += 1
        self._waiting += json.dumps([self.number, kind, given], separators=(",", ":")).encode() + b"\n"

    def flush(self) -> None:
        """Writes down what was taken. Where the disk is full, it goes with the next that can be written."""
        if not self._waiting:
            return
        try:
            self._write(self._waiting)
            self._waiting = b""
        except OSError:
            self._waiting = b"\n" + self._waiting[-MOST_BYTES:].lstrip(b"\n")

    def _write(self, data: bytes) -> None:
        with opened(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as handle:
            write_all(handle, data)

    def clear(self) -> None:
        """Everything so far is saved elsewhere, with its number."""
        self._waiting = b""
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self.path, 0)
