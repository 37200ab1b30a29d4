"""How a tenant's learner is doing: the prediction that was made when a row was asked is what its label scores.

Everything is bounded: curves are down-sampled, of many labels the rarest share an entry.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

from prequential.serve.drift import PageHinkley
from prequential.serve.histogram import DELAY, Histogram

MOST_POINTS = 256  # of a curve
MOST_RECENT = 200  # predictions that are shown
MOST_ALARMS = 100
MOST_LABELS = 200  # that have entries of their own
OTHER = "(other labels)"


class Scoreboard:
    """Running figures of one tenant.

    Attributes
    ----------
    count, correct, nats
        Labels that scored a prediction, how many it had right, and the sum of -log p.
    """

    def __init__(self) -> None:
        self.count = self.correct = 0
        self.nats = 0.0
        self.delays = Histogram(DELAY)
        self.labels: dict[str, list[int]] = {}  # by label: how often it came, and was predicted when it did
        self.alarms: deque[dict[str, Any]] = deque(maxlen=MOST_ALARMS)
        self.recent: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.curve: list[dict[str, Any]] = []
        self._width = 8  # labels in a point of the curve
        self._drift = PageHinkley()

    @property
    def position(self) -> int:
        """The last example that was scored; 0: none was."""
        return int(self.curve[-1]["position"]) if self.curve else 0

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.count if self.count else None

    @property
    def average_nats(self) -> float | None:
        return self.nats / self.count if self.count else None

    def predicted(self, *, id: str | None, label: Any, p: float, position: int, time: float) -> dict[str, Any]:
        """A prediction was made; the event of it."""
        entry = {"id": id, "predicted": label, "p": p, "position": position, "time": time, "fate": "waiting"}
        if id is not None:
            self.recent[id] = entry
            self.recent.move_to_end(id)
            if len(self.recent) > MOST_RECENT:
                self.recent.popitem(last=False)
        return {"event": "prediction", **entry}

    def scored(
        self, *, id: str | None, y: Any, text: str, predicted: Any, nats: float, correct: bool, delay: float | None,
        position: int, time: float,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """A label came for a prediction; the events of it."""
        self.count += 1
        self.correct += correct
        self.nats += nats
        seen = self.labels.get(text)
        if seen is None:
            seen = self.labels.setdefault(text if len(self.labels) < MOST_LABELS else OTHER, [0, 0])
        seen[0] += 1
        seen[1] += correct
        if delay is not None:
            self.delays.add(max(delay, 0.0))
        self._add_point(position, time, nats, correct, delay, text)
        fate = {"label": y, "fate": "right" if correct else "wrong", "nats": nats, "delay": delay}
        if id is not None and id in self.recent:
            self.recent[id].update(fate)
        events = [{"event": "label", "id": id, "predicted": predicted, "position": position, **fate}]
        if self._drift.update(0.0 if correct else 1.0):
            alarm = {"position": position, "time": time, "what": "errors have become more frequent"}
            self.alarms.append(alarm)
            events.append({"event": "alarm", **alarm})
        return events

    def _add_point(
        self, position: int, time: float, nats: float, correct: bool, delay: float | None, text: str
    ) -> None:
        curve = self.curve
        if not curve or curve[-1]["count"] >= self._width:
            if len(curve) >= MOST_POINTS:
                self._width *= 2
                curve[:] = [_merged(a, b) for a, b in zip(curve[::2], curve[1::2], strict=True)]
            curve.append(
                {"position": position, "time": time, "count": 0, "correct": 0, "nats": 0.0, "delay": 0.0,
                 "delays": 0, "labels": {}}
            )  # fmt: skip
        point = curve[-1]
        point["position"], point["time"] = position, time
        point["count"] += 1
        point["correct"] += correct
        point["nats"] += nats
        point["delay"] += delay or 0.0
        point["delays"] += delay is not None
        shares = point["labels"]
        name = text if text in shares or len(shares) < 12 else OTHER
        shares[name] = shares.get(name, 0) + 1

    def series(self) -> dict[str, Any]:
        """Curves for a picture: one entry for each point."""
        points = [point for point in self.curve if point["count"]]
        return {
            "position": [point["position"] for point in points],
            "time": [point["time"] for point in points],
            "accuracy": [point["correct"] / point["count"] for point in points],
            "nats": [point["nats"] / point["count"] for point in points],
            "label_delay": [point["delay"] / point["delays"] if point["delays"] else None for point in points],
            "labels": [point["labels"] for point in points],
            "alarms": list(self.alarms),
        }

    def figures(self) -> dict[str, Any]:
        """The running figures."""
        return {
            "scored": self.count,
            "correct": self.correct,
            "accuracy": self.accuracy,
            "nats": self.average_nats,
            "label_delay": self.delays.to_dict(),
            "recall": {text: hits / count for text, (count, hits) in self.labels.items()},
            "counts": {text: count for text, (count, _) in self.labels.items()},
            "alarms": len(self.alarms),
        }

    # Keeping it.

    def state_dict(self) -> dict[str, Any]:
        return {
            "count": self.count, "correct": self.correct, "nats": self.nats,
            "delays": self.delays.to_dict(), "labels": self.labels, "alarms": list(self.alarms),
            "recent": list(self.recent.values()), "curve": self.curve, "width": self._width,
            "drift": self._drift.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.correct = int(state["count"]), int(state["correct"])
        self.nats = float(state["nats"])
        self.delays.load(state["delays"])
        self.labels = {str(text): [int(count), int(hits)] for text, (count, hits) in state["labels"].items()}
        self.alarms.extend(state["alarms"])
        self.recent = OrderedDict((str(entry["id"]), entry) for entry in state["recent"])
        self.curve, self._width = list(state["curve"]), int(state["width"])
        self._drift.load_state_dict(state["drift"])


def _merged(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    sums = {name: a[name] + b[name] for name in ("count", "correct", "nats", "delay", "delays")}
    labels = dict(a["labels"])
    for name, count in b["labels"].items():
        name = name if name in labels or len(labels) < 12 else OTHER
        labels[name] = labels.get(name, 0) + count
    return {"position": b["position"], "time": b["time"], **sums, "labels": labels}
