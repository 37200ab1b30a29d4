"""What an experiment is made of: trials to run, what came out of them, figures, and claims.

An experiment is a module with

* a docstring: what it shows, the settings, the hardware and time, and what the paper leads one to expect;
  `prequential experiment list` shows its first line and its paragraph "Hardware and time: 2 cores; ...";
* `STREAM`, the stream it runs on by default;
* `trials(request)`, the runs it needs;
* if some of its runs depend on what came out of others, `trials_after(request, results)`: those that follow from the
  results so far, with names of their own. It is called when the first ones are done, and again as long as it gives new
  ones; it must give the same trials from the same results, or an experiment that was stopped could not go on;
* `figures(results)`, by name;
* `claims(results)`, what the paper says and whether it held, decided by `verdicts.judge`;
* if claims need more numbers than those of `Outcome`, `measures(scores)`: they are stored with the results, so that
  claims can be decided again without the runs.

Trials may be missing, from `figures` and `claims` too: an experiment can be stopped at any time and say what it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from prequential.evaluation.scores import Scores
from prequential.experiments.published import load_every_example, load_scores
from prequential.experiments.verdicts import BySeed, Claim
from prequential.runs.run_settings import RunSettings
from prequential.settings import Settings
from prequential.streams.spec import StreamSpec
from prequential.streams.stream_registry import STREAMS

__all__ = [
    "ON_IMAGES",
    "PAPER",
    "SEEDS",
    "CaptionedFigure",
    "Claim",
    "Outcome",
    "Request",
    "Results",
    "Scale",
    "Trial",
    "over_seeds",
]

Scale = Literal["small", "medium", "paper"]
SEEDS = {"small": 1, "medium": 3, "paper": 1}  # by default

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

    def of(self, small: Any, medium: Any, paper: Any) -> Any:
        """What belongs to the scale."""
        return {"small": small, "medium": medium, "paper": paper}[self.scale]

    @property
    def small(self) -> bool:
        return self.scale == "small"

    @property
    def kind(self) -> str:
        """The name of the stream, without its path and options: photos, geo-images, emnist, ...

        >>> Request(scale="medium", seeds=3, stream="geo-images:features(records=r.npz)").kind
        'geo-images'
        """
        return StreamSpec.parse(self.stream).name

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
        if self.kind == "geo-images":
            return f"real images on real photo records, which are not CLOC (`{self.stream}`){late}"
        return f"`{self.stream}`{late}"

    def folder(self, name: str, usual: str) -> str:
        """The folder of an experiment's results; on other data than the usual kind it is another one.

        >>> Request(scale="medium", seeds=3, stream="photos").folder("cloc-table", usual="photos")
        'cloc-table-medium'
        >>> Request(scale="medium", seeds=3, stream="geo-images:f(records=r.npz)").folder("cloc-table", usual="photos")
        'cloc-table-medium-geo-images'
        """
        other = self.kind if self.kind != usual and self.kind in STREAMS else ""
        return "-".join(part for part in (name, self.scale, other) if part)


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
    tier: int = 1
    """The lower, the more it is worth: those of tier 1 are run first."""

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
    measures: dict[str, float] = field(default_factory=dict)
    """More numbers: `last_tenth`, the accuracy over the last tenth of the stream, and those of the experiment."""

    def number(self, what: str) -> float | None:
        """One of its numbers by name: accuracy, log_loss, macs, last_tenth, first_tasks, ...; None if there is none."""
        if what in ("first_tasks", "last_tasks"):
            part = self.summary.get(what)
            return None if part is None else part["accuracy"]
        found = getattr(self, what) if hasattr(self, what) else self.measures.get(what, self.summary.get(what))
        return None if found is None or found != found else float(found)

    @property
    def examples(self) -> int:
        return int(self.summary["count"])

    def every_example(self) -> dict[str, np.ndarray] | None:
        """The error (0 or 1) and the log-loss of every example; None if only sums were published."""
        if (found := load_every_example(self.directory)) is None:
            return None
        return {"error": 1.0 - found[0], "log_loss": found[1]}

    def scores(self) -> Scores:
        """Its scores in full, from its records or as they were published."""
        return load_scores(self.directory)


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
        """The mean of a number over the outcomes, see `Outcome.number`; NaN where none of them has it."""
        return _mean(number for o in self.outcomes if (number := o.number(what)) is not None)

    def by_seed(self, what: str = "accuracy") -> BySeed:
        """A number of each outcome by its seed; those that do not have it are left out."""
        return {o.tags["seed"]: number for o in self.outcomes if (number := o.number(what)) is not None}

    @property
    def examples(self) -> int:
        """The examples of the shortest run; 0 if there is none."""
        return min((o.examples for o in self.outcomes), default=0)

    def scores(self) -> list[Scores]:
        return [o.scores() for o in self.outcomes]

    def groups(self, tag: str, say: Callable[[Any], str] = str) -> dict[str, list[Scores]]:
        """The scores of all seeds for each value of a tag, for the figures that have a line for each."""
        return {say(value): self.where(**{tag: value}).scores() for value in self.values(tag)}

    def __len__(self) -> int:
        return len(self.outcomes)


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
    tier: int = 1,
) -> list[Trial]:
    """The same trial with every seed."""
    return [
        Trial(
            tags={**tags, "seed": seed},
            settings=settings.changed(seed=seed),
            learner=learner,
            run=run or {},
            tier=tier,
        )
        for seed in range(request.seeds)
    ]


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else float("nan")
