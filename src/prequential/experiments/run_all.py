"""`prequential experiment all`: as much of the paper as fits into a budget of time, what is worth most first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from prequential.errors import BadInput
from prequential.experiments import find_experiment
from prequential.experiments.cloc_common import AS_CLOC, REAL
from prequential.experiments.cloc_scratch import frozen_stream
from prequential.experiments.experiment import Request, Scale
from prequential.experiments.runner import run_experiment
from prequential.streams.spec import StreamSpec, write_spec
from prequential.streams.stream_registry import STREAMS


@dataclass(frozen=True)
class Step:
    """An experiment at a scale, how many seeds, and the kind of data if it is not the experiment's usual one."""

    name: str
    scale: Scale
    seeds: int
    data: str = ""

    @property
    def title(self) -> str:
        """The experiment, and on which data if it is not the usual one.

        >>> Step("cloc-oracle", "medium", 3, "geo-images").title
        'cloc-oracle on geo-images'
        """
        return f"{self.name} on {self.data}" if self.data else self.name


# In the order of value; those at the paper's size where two cores can do it.
PLAN = (
    Step("split-emnist", "paper", 5),
    Step("split-emnist-mixed", "paper", 3),
    Step("cloc-features", "medium", 3),
    Step("cloc-window", "medium", 3),
    Step("cloc-streams", "medium", 3),
    Step("cloc-stopping", "medium", 3),
    Step("cloc-width", "medium", 3),
    Step("cloc-chunk", "medium", 3),
    Step("cloc-table", "medium", 3),
    Step("cloc-two-token", "medium", 3),
    Step("cloc-oracle", "medium", 3),
    Step("cloc-oracle", "medium", 3, REAL),
    Step("cloc-features", "medium", 3, REAL),
    Step("cloc-table", "medium", 3, REAL),
    Step("split-emnist-two-token", "paper", 3),
    Step("split-emnist-lengths", "medium", 3),
    Step("split-emnist-replay", "medium", 3),
    Step("description-length", "paper", 3),
    Step("split-cifar", "medium", 1),
    Step("cloc-scratch", "medium", 3),
    Step("cloc-pareto", "medium", 1),
    Step("cloc-base", "medium", 1),
)
TIERS = (1, 2, 3, 4, 5)


def run_all(
    budget: float,
    directory: Path,
    *,
    streams: Sequence[str] = (),
    plan: Sequence[Step] = PLAN,
    jobs: int | None = None,
    reuse: Sequence[Path] = (),
    console: Console | None = None,
) -> list[str]:
    """Runs what fits, tier by tier and in the order of the plan; the same call resumes it. Returns what was concluded.

    Parameters
    ----------
    budget
        Seconds. No run is started that would not end within them, as far as one can say; one that takes longer is saved
        and stopped.
    directory
        Has a folder for each experiment.
    streams
        The data that is not generated: emnist:PATH, cifar100:PATH, geo-images:PATH(records=FILE, similar_by=FEATURES).
        Experiments whose data is not given are left out.
    plan
        The experiments, in their order.
    jobs, reuse
        How many runs at a time, and published results, as for one experiment.
    console
        Where to show progress.
    """
    console = console or Console(quiet=True)
    end = time.monotonic() + budget
    given = {stream.partition(":")[0]: stream for stream in streams}
    done: list[str] = []
    for tier in TIERS:
        for step in plan:
            left = end - time.monotonic()
            if left <= 0:
                return done
            stream = _stream(step, given)
            if stream is None:
                if tier == 1:
                    console.print(f"{step.title} is left out: give its data as {_needs(step)}", markup=False)
                continue
            request = Request(scale=step.scale, seeds=step.seeds, stream=stream)
            experiment = find_experiment(step.name)
            goes_on = hasattr(experiment, "trials_after")  # those that follow may have any tier
            if tier > 1 and not goes_on and all(trial.tier < tier for trial in experiment.trials(request)):
                continue
            console.print(f"tier {tier}, {step.title}; {left / 3600:.1f} hours left", markup=False)
            folder = directory / request.folder(step.name, experiment.STREAM)
            try:
                results = run_experiment(
                    step.name, request, folder, jobs=jobs, budget=left, tier=tier, reuse=reuse, console=console
                )
            except BadInput as error:  # none of its runs finished
                console.print(str(error), markup=False, soft_wrap=True)
                continue
            if results is None:  # interrupted
                return done
            done += [step.title] if step.title not in done else []
    return done


def _stream(step: Step, given: dict[str, str]) -> str | None:
    """The data of a step; None if it has to be given and is not."""
    kind: str = step.data or find_experiment(step.name).STREAM
    if kind in ("photos", "digits"):
        return kind
    return like_cloc(given[kind]) if step.data and kind in given else given.get(kind)


def like_cloc(stream: str) -> str | None:
    """Real records that are like CLOC's photos, with features of the images; None if no features are named.

    >>> like_cloc("geo-images:cifar100:data(records=r.npz, similar_by=features)")
    'geo-images:features(records=r.npz, length=500000, overlay_days=13, typical_share=0.38)'
    >>> like_cloc("geo-images:features(records=r.npz, overlay_days=91)")
    'geo-images:features(records=r.npz, overlay_days=91, length=500000, typical_share=0.38)'
    >>> like_cloc("geo-images:cifar100:data(records=r.npz)") is None
    True
    """
    spec = StreamSpec.parse(frozen_stream(stream) or stream)
    inner = spec.source.split(":")[1]
    if inner in STREAMS and inner != "features":
        return None
    return write_spec(spec.source, spec.options | AS_CLOC | spec.options)


def _needs(step: Step) -> str:
    """The data of a step as one would write it."""
    kind: str = step.data or find_experiment(step.name).STREAM
    options = [f"{option}=FILE" for option in STREAMS[kind].needs] + (["similar_by=FEATURES"] if step.data else [])
    return f"{kind}:PATH({', '.join(options)})" if options else f"{kind}:PATH"
