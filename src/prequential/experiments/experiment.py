"""What an experiment is made of: trials to run, what came out of them, figures, and claims.

An experiment is a module with

* a docstring: what it shows, the settings, the hardware and time, and what the paper leads one to expect;
  `prequential experiment list` shows its first line and its paragraph "Hardware and time: 2 cores; ...";
* `STREAM`, the stream it runs on by default;
* `trials(request)`, the runs it needs;
* `figures(results)`, by name;
* `claims(results)`, what the paper says and whether it held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure

from prequential.evaluation.scores import Scores
from prequential.runs.run_settings import RunSettings
from prequential.runs.stored_scores import label_protocol
from prequential.settings import Settings

Scale = Literal["small", "paper"]

# The learner of the paper on features: a plain pi-transformer, of sizes that the experiments set.
PAPER = Settings(method="paper", recent_window=0)
# Its networks on small images. The step size is 1e-4.
ON_IMAGES = PAPER.changed(
    depth=4, width=256, window=512, chunk_size=50, num_streams=8, learning_rate=256e-4, extractor_learning_rate=1e-4
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What an experiment is run with: its scale, the number of seeds, the stream."""

    scale: Scale
    seeds: int
    stream: str
    reading: dict[str, Any] = field(default_factory=dict)
    """Options of the stream that win over the experiment's own, as for a run: {"label_batches": 100}."""

    @property
    def small(self) -> bool:
        return self.scale == "small"

    @property
    def data(self) -> str:
        """Which data that is, in words."""
        late = ""
        if delay := self.reading.get("delay"):
            late = f", labels {delay:,} rows late"
        elif batch := self.reading.get("label_batches"):
            late = f", labels in batches of {batch:,}"
        if self.stream.startswith("photos"):
            return f"the CLOC-like stream `photos`, which is not CLOC{late}"
        return f"`{self.stream}`{late}"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of an experiment."""

    tags: dict[str, Any]
    """What distinguishes it from the others, `seed` included: {"streams": 4, "rate": 0.06, "seed": 0}."""
    settings: Settings
    """Of the transformer."""
    learner: str = "transformer"
    """What learns, by name."""
    run: dict[str, Any] = field(default_factory=dict)
    """Settings of the run: stream, examples, tasks, ..."""

    @property
    def name(self) -> str:
        """A name for it, and for its folder."""
        return ",".join(f"{tag}={value}" for tag, value in self.tags.items()).replace("/", "-")

    def run_settings(self, request: Request) -> RunSettings:
        return RunSettings(**{"stream": request.stream, "learner": self.learner, **self.run, **request.reading})


@dataclass(frozen=True)
class Outcome:
    """What came out of a trial."""

    tags: dict[str, Any]
    accuracy: float
    log_loss: float
    bits: float
    seconds: float
    macs: float | None
    summary: dict[str, Any]
    """All of `scores.json`."""
    directory: Path
    """Where the run is."""

    def scores(self) -> Scores:
        """Its scores in full, from its records."""
        how = label_protocol(self.directory)
        return Scores.from_records(self.directory / "records", self.summary["classes"], **how)


@dataclass(frozen=True)
class Results:
    """What came out of an experiment."""

    outcomes: tuple[Outcome, ...]
    request: Request

    def where(self, **tags: Any) -> Results:
        """Those of the outcomes with these tags."""
        kept = [o for o in self.outcomes if all(o.tags.get(tag) == value for tag, value in tags.items())]
        return replace(self, outcomes=tuple(kept))

    def values(self, tag: str) -> list[Any]:
        """The values of a tag, in the order of the trials."""
        return list(dict.fromkeys(o.tags[tag] for o in self.outcomes if tag in o.tags))

    def mean(self, what: str = "accuracy") -> float:
        """The mean of a number over the outcomes: accuracy, log_loss, or one of the summary."""
        return _mean(getattr(o, what) if hasattr(o, what) else o.summary[what] for o in self.outcomes)

    def tasks(self, part: Literal["first_tasks", "last_tasks"], what: str = "accuracy") -> float:
        """The mean accuracy (or log_loss) over the first or the last ten tasks."""
        return _mean(o.summary[part][what] for o in self.outcomes)

    def latest(self) -> list[float]:
        """The accuracy of each outcome over the last tenth of its stream."""
        scores = self.scores()
        return [float(of.curve(max(1, of.count // 10))["accuracy"][-1]) for of in scores]

    def scores(self) -> list[Scores]:
        return [o.scores() for o in self.outcomes]

    def best(self, tag: str, over: str, what: str = "accuracy") -> dict[Any, tuple[Any, float]]:
        """For each value of a tag, the value of another with the best mean over the rest, and that mean."""
        chosen = {}
        for value in self.values(tag):
            here = self.where(**{tag: value})
            means = {other: here.where(**{over: other}).mean(what) for other in here.values(over)}
            choose: Callable[..., Any] = max if what == "accuracy" else min
            best = choose(means, key=means.__getitem__)
            chosen[value] = (best, means[best])
        return chosen

    def __len__(self) -> int:
        return len(self.outcomes)


@dataclass(frozen=True)
class Claim:
    """Something the paper says, and what was found."""

    says: str
    found: str
    holds: bool | None  # None: cannot be decided here


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure, and a sentence on what it shows."""

    figure: Figure
    caption: str


def over_seeds(
    request: Request,
    settings: Settings,
    tags: dict[str, Any],
    *,
    learner: str = "transformer",
    run: dict[str, Any] | None = None,
) -> list[Trial]:
    """The same trial with every seed."""
    return [
        Trial(tags={**tags, "seed": seed}, settings=settings.changed(seed=seed), learner=learner, run=run or {})
        for seed in range(request.seeds)
    ]


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else float("nan")
