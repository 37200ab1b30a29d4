"""What the predictions of a tenant scored: running figures, kept so that no kill and no power cut takes much of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from prequential.errors import BadCheckpoint
from prequential.learners.asked import now
from prequential.serve.json_labels import LabelNames
from prequential.serve.score_log import Rescored, ScoreLog
from prequential.serve.scoreboard import Scoreboard
from prequential.storage.sealed import read_sealed, write_sealed


class TenantScores:
    """A scoreboard on disk, and the events of it.

    Parameters
    ----------
    place
        The directory of the tenant.
    sequence
        Of a log elsewhere: the position of the save that the learner was opened at. None: the log is in the home of the
        learner, and the scores since the last save are in a log of their own.

    Attributes
    ----------
    board
        The figures.
    rescored
        To be given to the learner when it is opened: it scores again what has no line in the log. None: with a log
        elsewhere, whose events are all applied again.
    """

    def __init__(self, place: Path, sequence: int | None = None) -> None:
        self.board = Scoreboard()
        self.rescored: Rescored | None = None
        self._place = place
        self._events: list[dict[str, Any]] = []
        self._log: ScoreLog | None = None
        number = self._load(sequence)
        if sequence is None:
            self._log = ScoreLog(place / "scores.log", number)
            self.rescored = Rescored(max(self.board.position, self._log.last_position()))

    def _load(self, sequence: int | None) -> int:
        """The figures as they were saved; the number of the last line of the log that they have."""
        number = 0
        with suppress(BadCheckpoint, KeyError, TypeError, ValueError):
            kept = read_sealed(self._path(sequence))
            self.board.load_state_dict(kept)
            number = int(kept.get("number", 0))
        return number

    def _path(self, sequence: int | None) -> Path:
        return self._place / ("scores.json" if sequence is None else f"scores-{sequence}.json")

    def replay(self, position: int, names: LabelNames) -> None:
        """Counts again what came after the save, for a learner that has learned so many examples."""
        if self._log is None or self.rescored is None:
            return
        self._log.replay(self.board, position)
        for score in self.rescored.found:
            self.scored(**score, text=names.name(score["y"]))
        self.flush()
        self.take_events()

    def predicted(self, id: str | None, label: Any, p: float, position: int) -> None:
        """Counts a prediction."""
        made: dict[str, Any] = {"id": id, "label": label, "p": p, "position": position, "time": now()}
        self._events.append(self.board.predicted(**made))
        if self._log is not None and id is not None:
            self._log.add("predicted", made)

    def scored(self, **made: Any) -> None:
        """Counts the score of a prediction: the arguments of `Scoreboard.scored`."""
        self._events += self.board.scored(**made)
        if self._log is not None:
            self._log.add("scored", made)

    def take_events(self) -> list[dict[str, Any]]:
        """What happened since the last call, for subscribers."""
        events, self._events = self._events, []
        return events

    def flush(self) -> None:
        """Writes down what was counted; to be called before requests are answered."""
        if self._log is not None:
            self._log.flush()

    def save(self, sequence: int, save_learner: Callable[[], None]) -> None:
        """Writes the figures, together with a save of the learner at this position of its log.

        Whatever is killed in between, the figures and the learner that are there belong together.
        """
        if self._log is None:  # the figures of a save must be there when it is
            path = self._path(sequence)
            write_sealed(path, self.board.state_dict())
            save_learner()
            for other in self._place.glob("scores-*.json"):
                if other != path:
                    other.unlink()
        else:
            self._log.flush()
            save_learner()
            write_sealed(self._path(None), {**self.board.state_dict(), "number": self._log.number})
            self._log.clear()
