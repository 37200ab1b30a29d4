"""How long one prediction and one example learned take, with the steps in between and with asynchronous steps.

    python benchmarks/latency.py [--quick] [--out FOLDER]

Examples arrive at fixed times, so far apart that learning keeps up with them: for each, a prediction is asked for and then
the label is learned. An answer counts from the arrival, so that a prediction that has to wait until a step is over is
charged for it. The two ways take turns, some chunks each. D 256, 4 blocks, C 512, S 64, E 8; about two minutes. Expected:
the 99th percentile of a prediction below 5 times the median while learning goes on behind.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from measuring import Row
from rich.console import Console
from rich.table import Table

from prequential.learners.transformer.learner import Learner
from prequential.plots.style import COLORS, FAINT, GRAY, percent, save, short, styled
from prequential.settings import Settings

FEATURES, CLASSES = 64, 10
BETWEEN, BEHIND = "steps in between", "steps behind"
LOAD = 0.8  # how much of its time the slower way is at work


class Feed:
    """A learner to which examples come one by one, and how long everything took, in seconds."""

    def __init__(self, settings: Settings) -> None:
        self.chunk = settings.chunk_size
        self.learner = Learner(CLASSES, settings=settings)
        self.random = np.random.default_rng(0)
        self.predict: list[float] = []  # one call
        self.answer: list[float] = []  # from the arrival of x to its prediction
        self.learn: list[float] = []  # one call
        self.due: list[bool] = []  # whether a step fell due in it
        self.beside: list[bool] = []  # whether steps were under way when the prediction was asked for

    def fill(self, examples: int) -> None:
        """Learns so many examples, and waits until all steps are taken."""
        x = self._x(examples)
        self.learner.learn_many(x, self._y(x))
        self.learner.state_dict()

    def pace(self) -> float:
        """Seconds an example when they come as fast as they can be taken."""
        begun = time.perf_counter()
        self.run(1, 0.0)
        for kept in (self.predict, self.answer, self.learn, self.due, self.beside):
            kept.clear()
        return (time.perf_counter() - begun) / self.chunk

    def run(self, chunks: int, interval: float) -> None:
        """Some chunks, an example every `interval` seconds."""
        x = self._x(chunks * self.chunk)
        y = self._y(x)
        start = time.perf_counter()
        for t in range(len(y)):
            arrival = start + t * interval
            time.sleep(max(0.0, arrival - time.perf_counter()))
            self.beside.append(self.learner._parts is not None and getattr(self.learner._parts.trainer, "busy", False))
            asked = time.perf_counter()
            self.learner.predict(x[t])
            answered = time.perf_counter()
            self.learner.learn(x[t], y[t])
            self.learn.append(time.perf_counter() - answered)
            self.predict.append(answered - asked)
            self.answer.append(answered - arrival)
            self.due.append((t + 1) % self.chunk == 0)
        self.learner.state_dict()  # the next one to be measured has the machine for itself

    def ordinary(self) -> list[float]:
        """Learning one, where no step fell due."""
        return [seconds for seconds, due in zip(self.learn, self.due, strict=True) if not due]

    def pauses(self) -> list[float]:
        """Learning one, where a step fell due."""
        return [seconds for seconds, due in zip(self.learn, self.due, strict=True) if due]

    def _x(self, n: int) -> np.ndarray:
        return self.random.normal(size=(n, FEATURES)).astype(np.float32)

    def _y(self, x: np.ndarray) -> list[int]:
        labels: list[int] = np.abs(x[:, :CLASSES]).argmax(1).tolist()
        return labels


def measure(quick: bool = False) -> list[Row]:
    """The rows of the suite: ratios of percentiles, and what happened to the pause."""
    settings = Settings(width=256, depth=4, window=512, chunk_size=64, num_streams=8)
    if quick:
        settings = settings.changed(width=32, depth=2, window=64, chunk_size=16, num_streams=2)
    rounds, chunks = (1, 2) if quick else (3, 4)
    feeds = {BETWEEN: Feed(settings), BEHIND: Feed(settings.changed(async_steps=True))}
    for feed in feeds.values():
        feed.fill(-(-settings.window // settings.chunk_size) * settings.chunk_size)
    interval = max(feed.pace() for feed in feeds.values()) / LOAD
    for _ in range(rounds):
        for feed in feeds.values():
            feed.run(chunks, interval)
    return rows_of(feeds, interval)


def rows_of(feeds: dict[str, Feed], interval: float) -> list[Row]:
    rows = []
    for way, feed in feeds.items():
        for name, seconds in (("predict one", feed.predict), ("answer", feed.answer), ("learn one", feed.learn)):
            meaning = "99th percentile over the median" + (", from arrival to prediction" if name == "answer" else "")
            rows.append(spread(f"{name}, {way}", seconds, meaning, f"an example every {1e3 * interval:.1f} ms"))
    feed = feeds[BEHIND]
    beside = [seconds for seconds, busy in zip(feed.predict, feed.beside, strict=True) if busy]
    share = f"{len(beside)} of {len(feed.predict)} predictions"
    rows.append(spread("predict one, beside a step", beside, "the same, asked for while steps ran", share, target=5.0))
    for way, feed in feeds.items():
        ordinary = float(np.median(feed.ordinary()))
        rows.append(
            Row(
                name=f"the pause when a step falls due, {way}",
                ratio=float(np.median(feed.pauses())) / ordinary,
                best=min(feed.pauses()) / ordinary,
                lower_is_better=True,
                meaning="learning one that completes a chunk over learning one that does not",
                note=described(feed.pauses()),
            )
        )
    pauses = [feeds[way].pauses() for way in (BETWEEN, BEHIND)]
    rows.append(
        Row(
            name="the pause, steps in between over steps behind",
            ratio=float(np.median(pauses[0]) / np.median(pauses[1])),
            best=min(pauses[0]) / min(pauses[1]),
            meaning="how many times as long",
        )
    )
    return rows


def spread(name: str, seconds: list[float], meaning: str, note: str, target: float | None = None) -> Row:
    """How far the slowest of a hundred is from the median."""
    ratio = float(np.percentile(seconds, 99) / np.median(seconds)) if seconds else None
    said = f"{described(seconds)}; {note}" if seconds else note
    kept = {name: seconds}
    return Row(name=name, ratio=ratio, target=target, lower_is_better=True, meaning=meaning, seconds=kept, note=said)


def described(seconds: Sequence[float]) -> str:
    """
    >>> described([0.001, 0.002, 0.003])
    'p50 2.0 ms, p99 3.0 ms, longest 3.0 ms'
    """
    p50, p99 = np.percentile(seconds, (50, 99)) * 1e3
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {1e3 * max(seconds):.1f} ms"


@styled
def draw_latencies(rows: Sequence[Row]) -> Figure:
    """The share of calls that took at most so long, for both ways."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    shown = {name: seconds for row in rows for name, seconds in row.seconds.items()}
    titles = {
        "predict one": "Predict one: the call",
        "answer": "Predict one: from its arrival",
        "learn one": "Learn one: the call",
    }
    for axes, (name, title) in zip(figure.subplots(1, 3, sharey=True), titles.items(), strict=True):
        for way, color in ((BETWEEN, COLORS[1]), (BEHIND, COLORS[0])):
            seconds = np.sort(shown[f"{name}, {way}"]) * 1e3
            axes.step(seconds, np.arange(1, len(seconds) + 1) / len(seconds), where="post", color=color, label=way)
        axes.axhline(0.99, color=GRAY, linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=12))
        axes.xaxis.set_major_formatter(short)
        axes.grid(True, color=FAINT)
        axes.set_title(title)
        axes.set_xlabel("ms")
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(percent)
    axes.legend(loc="lower right")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes and few chunks: the figures mean nothing")
    parser.add_argument("--out", type=Path, default=Path("benchmarks-out"), help="folder for the picture")
    given = parser.parse_args()
    rows = measure(given.quick)
    table = Table("", "", "target", "", "what", "remarks", title="latency", title_justify="left")
    for row in rows:
        verdict = {True: "yes", False: "no", None: ""}[row.reached]
        target = "≤ " + row.say(row.target) if row.target is not None else ""
        table.add_row(row.name, row.say(row.ratio), target, verdict, row.meaning, row.note)
    Console().print(table)
    given.out.mkdir(parents=True, exist_ok=True)
    save(draw_latencies(rows), given.out / "latency.png")


if __name__ == "__main__":
    main()
