"""How long one row takes, predicted and learned, over the length of the stream, the window and the number of classes.

    python benchmarks/one_at_a_time.py [--quick] [--out FOLDER]

The default learner gets plain lists: `predict_proba(x)`, then `learn(x, y)`. All sizes take turns, a chunk each.
Times are CPU times of the one thread that computes, of the quietest quarter of the turns. *Outside* is what
predicting and learning one row take together without the network's own passes and steps: checks, journal,
normalization, kNN, mixer, replay, and the share of each row in its chunk. About five minutes on one core. Expected:
all of it flat over the length of the stream, and what is outside flat over the window too; over classes it grows by
what writing so many probabilities takes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from prequential.learners.transformer.learner import Learner
from prequential.plots.style import COLORS, FAINT, save, short, styled
from prequential.settings import Settings

FEATURES = 8
AXES: dict[str, tuple[int, ...]] = {
    "stream length": (2_048, 16_384, 65_536),
    "window": (64, 256, 1_024),
    "classes": (2, 10, 100, 1_000),
}
USUAL = {"stream length": 4_096, "window": 512, "classes": 2}
INPUTS = ("list", "dict", "array", "observe")  # how a row comes


@dataclass
class Turn:
    """The microseconds that the rows of one chunk took."""

    predict: list[float] = field(default_factory=list)
    learn: list[float] = field(default_factory=list)  # of the rows that do not complete the chunk
    due: float = 0.0  # of the one that does
    outside: float = 0.0  # the network, for one row

    @property
    def total(self) -> float:
        return sum(self.predict) + sum(self.learn) + self.due


@dataclass
class Feed:
    """A learner to which rows come one by one, and how long each took."""

    axis: str
    size: int
    learner: Learner
    classes: int
    rows: str = "list"
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    turns: list[Turn] = field(default_factory=list)
    network: float = 0.0  # seconds in it so far
    inside: bool = False  # whether it is at work

    def fill(self, count: int) -> None:
        """Learns so many rows."""
        for start in range(0, count, 1024):
            x, y = self._examples(min(1024, count - start))
            self.learner.learn_many([self._given(row) for row in x] if self.rows == "dict" else x, y)
        self._time_network()

    def run(self) -> None:
        """One chunk, row by row."""
        size = self.learner.settings.chunk_size
        x, y = self._examples(size)
        given = [self._given(row) for row in x]
        turn, clock, network, spent = Turn(), time.thread_time, self.network, 0.0
        for i, (row, label) in enumerate(zip(given, y, strict=True)):
            start = clock()
            if self.rows == "observe":
                self.learner.observe(row, [label])
                predicted = start
            else:
                self.learner.predict_proba(row)
                predicted = clock()
                self.learner.learn(row, label)
            end = clock()
            spent += end - start
            turn.predict.append(1e6 * (predicted - start))
            if i < size - 1:
                turn.learn.append(1e6 * (end - predicted))
            else:
                turn.due = 1e6 * (end - predicted)
        turn.outside = 1e6 * (spent - (self.network - network)) / size
        self.turns.append(turn)

    def quiet(self) -> list[Turn]:
        """The quarter of the turns that took least: in the others, the machine had more to do."""
        return sorted(self.turns, key=lambda turn: turn.total)[: -(-len(self.turns) // 4)]

    def predict(self) -> list[float]:
        """Predicting one row, in quiet turns."""
        return [time for turn in self.quiet() for time in turn.predict]

    def learn(self) -> list[float]:
        """Learning one row with which no step is due, in quiet turns."""
        return [time for turn in self.quiet() for time in turn.learn]

    def outside(self) -> float:
        """What one row takes outside the network."""
        return float(np.median([turn.outside for turn in self.quiet()]))

    def _given(self, row: np.ndarray) -> Any:
        values = row.tolist()
        if self.rows == "dict":
            return dict(zip("abcdefgh", values, strict=True))
        return {"list": values, "array": row, "observe": [values]}[self.rows]

    def _examples(self, n: int) -> tuple[np.ndarray, list[int]]:
        x = self.random.normal(size=(n, FEATURES))
        position = (np.abs(x[:, 0] + 0.3 * x[:, 1]) * 0.4 * self.classes).astype(int) + self.random.integers(0, 2, n)
        labels: list[int] = (position % self.classes).tolist()
        return x, labels

    def _time_network(self) -> None:
        """Adds up what the passes and steps of the network take."""
        parts = self.learner._parts
        assert parts is not None
        network, trainer = parts.ensemble.network, parts.trainer
        for owner, name in ((network, "predict"), (network, "extend"), (network, "forward"), (network, "commit")):
            setattr(owner, name, self._timed(getattr(owner, name)))
        one_row = parts.ensemble.one_row
        if one_row is not None:  # in the native core, all experts and the mixer are in the same call
            core = one_row._functions
            names = ("one_row_normalize", "one_row_mix", "transformer_error")
            timed = {name: self._timed(getattr(core, name)) for name in ("one_row_predict", "one_row_append")}
            one_row._functions = cast(Any, SimpleNamespace(**{name: getattr(core, name) for name in names}, **timed))
        train = trainer.train_chunk

        def train_chunk(batch: Any, replay: Any, position: int, **more: Any) -> Any:
            return self._timed(train)(batch, list(replay), position, **more)  # what is replayed is made before

        setattr(trainer, "train_chunk", train_chunk)  # noqa: B010 (mypy)

    def _timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **more: Any) -> Any:
            if self.inside:  # what calls this is timed as a whole
                return work(*given, **more)
            self.inside, start = True, time.thread_time()
            try:
                return work(*given, **more)
            finally:
                self.inside = False
                self.network += time.thread_time() - start

        return timed


def make(axis: str, size: int, rows: str = "list", *, quick: bool = False) -> Feed:
    """A feed whose learner has this size, and all else as usual."""
    sizes = {**USUAL, axis: size}
    classes = sizes["classes"]
    settings = Settings(window=sizes["window"])
    if quick:
        settings = settings.changed(width=16, depth=1, num_streams=2, window=min(sizes["window"], 64))
    learner = Learner(list(range(classes)), settings=settings)
    feed = Feed(axis, size, learner, classes, rows)
    feed.fill(256 if quick else sizes["stream length"])
    return feed


def measure(quick: bool = False) -> list[Feed]:
    """All sizes, in turns."""
    feeds = [make(axis, size, quick=quick) for axis, sizes in AXES.items() for size in (sizes[:2] if quick else sizes)]
    feeds += [make("x as", USUAL["classes"], rows, quick=quick) for rows in INPUTS]
    for _ in range(2 if quick else 40):
        for feed in feeds:
            feed.run()
    return feeds


def cells(feed: Feed) -> list[str]:
    """A line of the table."""
    predict, learn = (np.percentile(times, (50, 99)) for times in (feed.predict(), feed.learn()))
    name = feed.rows if feed.axis == "x as" else f"{feed.size:,}"
    predicted = ["", ""] if feed.rows == "observe" else [f"{predict[0]:.0f}", f"{predict[1]:.0f}"]
    due, outside = np.median([turn.due for turn in feed.quiet()]), feed.outside()
    return [feed.axis, name, *predicted, f"{learn[0]:.0f}", f"{learn[1]:.0f}", f"{due / 1e3:.1f}", f"{outside:.0f}"]


COLUMNS = ("", "", "predict p50", "p99", "learn p50", "p99", "chunk due, ms", "outside")


@styled
def draw(feeds: Sequence[Feed]) -> Figure:
    """Predict, learn and what is outside the network, over each axis."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    panels = figure.subplots(1, len(AXES), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, AXES, strict=True):
        shown = [feed for feed in feeds if feed.axis == axis]
        sizes = [feed.size for feed in shown]
        for what, times, color in (
            ("predict", [feed.predict() for feed in shown], COLORS[0]),
            ("learn, no step due", [feed.learn() for feed in shown], COLORS[1]),
        ):
            panel.plot(sizes, [np.median(t) for t in times], marker="o", color=color, label=f"{what}: median")
            panel.plot(
                sizes, [np.percentile(t, 99) for t in times], linestyle=":", color=color, label="99th percentile"
            )
        outside = [feed.outside() for feed in shown]
        panel.plot(sizes, outside, marker="s", color=COLORS[2], label="both, outside the network")
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.minorticks_off()
        panel.xaxis.set_major_formatter(short)
        panel.yaxis.set_major_formatter(short)
        panel.grid(True, color=FAINT)
        panel.set_xlabel(axis)
    figure.axes[0].set_ylabel("µs of CPU time")
    figure.axes[-1].legend(fontsize="x-small")
    return figure


def main(arguments: Sequence[str] | None = None) -> list[Feed]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes and few chunks: the figures mean nothing")
    parser.add_argument("--out", type=Path, default=Path("benchmarks-out"), help="folder for the table and the picture")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    feeds = measure(given.quick)
    engine = feeds[0].learner.engine
    title = f"µs of CPU time for one row, engine {'torch' if engine is None else engine.name}"
    table = Table(*COLUMNS, title=title, title_justify="left")
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for feed in feeds:
        table.add_row(*cells(feed))
        lines.append("| " + " | ".join(cells(feed)) + " |")
    Console().print(table)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "one_at_a_time.md").write_text("\n".join(lines) + "\n")
    save(draw(feeds), given.out / "one_at_a_time.png")
    return feeds


if __name__ == "__main__":
    main()
