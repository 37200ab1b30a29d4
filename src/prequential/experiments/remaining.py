"""What of the plan of `prequential experiment all` is not run yet, and what it would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prequential.experiments import find_experiment
from prequential.experiments.budget import FinishedRun, seconds_by
from prequential.experiments.costs import length_of, macs_of
from prequential.experiments.experiment import Outcome, Request, Results, Trial
from prequential.experiments.run_all import PLAN, Step
from prequential.experiments.stored import other_data, read_every, stored_results

LAST_THAT_COUNTS = 3  # trials of higher tiers fill up a grid, or take very long


@dataclass(frozen=True)
class Remaining:
    """What is left of a step of the plan."""

    step: Step
    finished: int
    runs: int
    hours: float
    """Of a core, at the speed of the stored runs."""
    late_runs: int
    """Those of the last tiers."""
    late_hours: float


def remaining(folders: Sequence[Path], plan: Sequence[Step] = PLAN) -> list[Remaining]:
    """The steps of the plan that are not finished, by the results stored in these folders."""
    stored = {
        (saved["experiment"], saved["scale"], other_data(saved)): stored_results(saved) for saved in read_every(folders)
    }
    found = []
    for step in plan:
        experiment = find_experiment(step.name)
        request = Request(scale=step.scale, seeds=step.seeds, stream=step.data or experiment.STREAM)
        results = stored.get((step.name, step.scale, step.data), Results((), request))
        trials: list[Trial] = experiment.trials(request)
        if hasattr(experiment, "trials_after"):
            trials += experiment.trials_after(request, results)
        named = {trial.name: trial for trial in trials}
        done = {Trial(tags=o.tags, settings=trials[0].settings).name for o in results.outcomes}
        left = [trial for name, trial in named.items() if name not in done]
        if not left:
            continue
        alike = _alike(step, stored)
        soon, late = (
            [trial for trial in left if (trial.tier > LAST_THAT_COUNTS) is whether] for whether in (False, True)
        )
        hours = [sum(_seconds(trial, request, results, alike) for trial in some) / 3600 for some in (soon, late)]
        found.append(Remaining(step, len(named) - len(left), len(soon), hours[0], len(late), hours[1]))
    return found


def _alike(step: Step, stored: dict[tuple[str, str, str], Results]) -> list[Outcome]:
    """The runs of the step, or else of its kind (cloc, split) at the larger scales."""
    kind = step.name.partition("-")[0]
    own = stored.get((step.name, step.scale, step.data), Results((), Request(scale=step.scale, seeds=1, stream="")))
    others = [results for (name, scale, _), results in stored.items() if name.startswith(kind) and scale != "small"]
    counted = [o for o in own.outcomes if o.macs]
    return counted or [o for results in others for o in results.outcomes]


def _seconds(trial: Trial, request: Request, results: Results, alike: list[Outcome]) -> float:
    """How long a trial takes: by its multiply-accumulates, or by the runs of its learner where these are not counted."""
    macs = macs_of(trial, request)
    same = [o for o in results.outcomes if o.tags.get("learner") == trial.tags.get("learner")]
    runs = [FinishedRun(o.macs, o.examples, o.seconds) for o in (same if macs is None else alike)]
    return seconds_by(runs, macs, length_of(trial, request))


def remaining_table(folders: Sequence[Path]) -> list[str]:
    """What is left, as a section of a page."""
    found = remaining(folders)
    lines = [
        "## What of the plan is not run yet",
        "",
        "`prequential experiment all` has a plan: every experiment at a scale that two cores can do. This is left of it, "
        "in hours of a core at the speed of the stored runs that are most like each, which were made on several "
        "processors; the last tiers (4 and 5) are trials that fill up a grid or take very long.",
        "",
        "| experiment | scale | seeds | runs finished | left | hours | left in the last tiers | hours |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for of in found:
        lines.append(
            f"| `{of.step.name}`{of.step.title.removeprefix(of.step.name)} | {of.step.scale} | {of.step.seeds} | {of.finished} | {of.runs} | {of.hours:.1f} | "
            f"{of.late_runs} | {of.late_hours:.1f} |"
        )
    total = [sum(of.hours for of in found), sum(of.late_hours for of in found)]
    return [*lines, f"| in all |  |  |  |  | {total[0]:.1f} |  | {total[1]:.1f} |", ""]
