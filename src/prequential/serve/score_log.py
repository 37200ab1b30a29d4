"""What the scoreboard of a tenant has counted since its last save, so that a killed process takes nothing back.

A line of JSON for each prediction and each score: a number that only grows, "predicted" or "scored", and the arguments
of that method of `Scoreboard`. A line is written when the learner has written the example, and before the request is
answered. It is not synced: it outlives the process, but after a power cut some of the latest may be missing. Labels
that were learned and have no line count as unscored.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prequential.serve.scoreboard import Scoreboard
from prequential.storage.files import opened, write_all

MOST_BYTES = 1 << 20  # that are kept while the disk takes nothing


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

    def replay(self, scores: Scoreboard, position: int) -> None:
        """Counts again what came after the save, for a learner that has learned so many examples."""
        for number, kind, given in self._lines():
            if number <= self.number:
                continue
            if kind == "scored" and given["position"] > position:  # a power cut took the example
                break
            self.number = number
            with contextlib.suppress(TypeError, ValueError):
                scores.predicted(**given) if kind == "predicted" else scores.scored(**given)
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
        """Writes down one prediction or score. Where the disk is full, it goes with the next one that can be written."""
        self.number += 1
        self._waiting += json.dumps([self.number, kind, given], separators=(",", ":")).encode() + b"\n"
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
