"""`prequential experiment`: runs the trials of an experiment, draws its figures, checks the paper's claims."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from prequential.errors import BadInput, BadSetting
from prequential.experiments import NAMES, find_experiment
from prequential.experiments.budget import estimate_seconds
from prequential.experiments.experiment import CaptionedFigure, Claim, Outcome, Request, Results, Trial
from prequential.experiments.published import PublishedRuns
from prequential.experiments.result_pages import read_results, show, write_results
from prequential.experiments.shared_runs import finished_runs, key_of
from prequential.learners.device import find_device, slow_precision
from prequential.plots.style import save
from prequential.runs.job import Job, check_same_settings, read_result, write_job_settings
from prequential.runs.jobs_display import JobsDisplay
from prequential.runs.pool import available_cores, run_jobs, threads_each
from prequential.runs.run_settings import RunSettings, read_stored_settings
from prequential.settings import Settings
from prequential.storage.files import DirectoryLock, make_directory, refuse_links, remove_temporaries
from prequential.storage.sealed import is_damaged
from prequential.streams.open import check_spec
from prequential.streams.spec import StreamSpec

__all__ = ["list_experiments", "read_results", "run_experiment", "show", "time_of"]
DATA = {  # what a stream by default needs, and what else the experiment can run on
    "emnist": "EMNIST: --stream emnist:PATH or --download",
    "cifar100": "CIFAR-100: --stream cifar100:PATH or --download",
    "geo-images": "images and photo records: --stream 'geo-images:IMAGES(records=FILE)'",
    "photos": "none, generated; or features of CLOC or of images on photo records: --stream",
    "digits": "none, digits come with the package",
}


def list_experiments(console: Console) -> None:
    """Prints the experiments, each with what it shows, the data it needs and how long it takes."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading, options in (("experiment", {"no_wrap": True}), ("shows", {}), ("data", {}), ("time", {})):
        table.add_column(heading, **options)  # type: ignore[arg-type]
    for name in NAMES:
        experiment = find_experiment(name)
        shown = str(experiment.__doc__).splitlines()[0]
        table.add_row(f"[bold]{name}[/]", shown, DATA[experiment.STREAM], time_of(experiment))
    console.print(table)


def time_of(experiment: ModuleType) -> str:
    """How long an experiment takes, as its docstring says.

    >>> time_of(find_experiment("cloc-oracle"))
    '2 cores; a minute'
    """
    paragraphs = str(experiment.__doc__).split("\n\n")
    said = next(" ".join(part.split()) for part in paragraphs if part.startswith("Hardware and time:"))
    return said.removeprefix("Hardware and time:").strip().removesuffix(".")


def run_experiment(
    name: str,
    request: Request,
    directory: Path,
    *,
    jobs: int | None = None,
    options: dict[str, Any] | None = None,
    budget: float | None = None,
    tier: int | None = None,
    only: Mapping[str, Collection[str]] | None = None,
    partial: bool = False,
    reuse: Sequence[Path] = (),
    console: Console | None = None,
) -> Results | None:
    """Runs what is not finished yet, then draws and concludes; None when it was interrupted.

    Runs that an experiment beside this one has finished with the same settings are taken from there.

    Parameters
    ----------
    name
        Which experiment.
    request
        How large, with how many seeds, and on which stream.
    directory
        Where runs, figures and results are kept. What an earlier go has finished there is kept.
    jobs
        How many runs at a time; the cores are shared between them. By default as many as there are cores.
    options
        Settings of all transformers that are to differ from the experiment's: {"precision": "bfloat16"}.
    budget
        Seconds after which it stops, saves the runs under way, and concludes from those that are finished. Runs that
        would take longer than what is left are not started.
    tier
        Runs only trials up to this tier; the others count as not run.
    only
        Runs only trials that have one of these values of each of these tags, as {"window": ["16", "64"]}.
    partial
        Runs nothing: draws and concludes from what is finished.
    reuse
        Folders of published results (`published.py`): runs that are there are not made again.
    console
        Where to show progress.
    """
    console = console or Console(quiet=True)
    experiment = find_experiment(name)
    end = math.inf if budget is None else time.monotonic() + budget
    trials = _with_options(experiment.trials(request), options)
    for option in request.reading:
        values = {repr(trial.run.get(option)) for trial in trials}
        if len(values) > 1:
            raise BadSetting(f"{option} is what {name} varies ({', '.join(sorted(values))}); leave it out")
    for tag in only or {}:
        tags = list(dict.fromkeys(tag for trial in trials for tag in trial.tags))
        if tag not in tags:
            raise BadSetting(f"no run of {name} has a tag {tag}, expected one of {', '.join(tags)}")
    jobs = available_cores() if jobs is None else jobs
    if jobs < 0:
        raise BadSetting(f"jobs ({jobs}) must be at least 0")
    threads = threads_each(min(jobs, len(trials)))
    for run in (trial.run_settings(request) for trial in trials):
        check_spec(run.stream, whole=not run.download)
    published = PublishedRuns(reuse)
    make_directory(directory)
    with DirectoryLock(directory):
        remove_temporaries(directory)
        slow = slow_precision((options or {}).get("precision", "float32"), find_device("auto"))
        if slow and not partial:
            console.print(slow)
        all_jobs: list[TrialJob] = []
        while len(all_jobs) < len(trials):  # once, and again for trials that follow from the results
            stage = _run_trials(
                name,
                trials[len(all_jobs) :],
                request,
                directory,
                console,
                jobs=jobs,
                threads=threads,
                end=end,
                wanted=lambda trial: _is_wanted(trial, tier, only or {}),
                partial=partial,
                published=published,
            )
            if stage is None:
                return None
            all_jobs += stage
            results, failures, missing = _collect(experiment, trials, all_jobs, request)
            known = {trial.name for trial in trials}
            more = experiment.trials_after(request, results) if hasattr(experiment, "trials_after") else []
            trials += _with_options([trial for trial in more if trial.name not in known], options)
        if not results:
            why = f"the first failed because {failures[0]}" if failures else "nothing was run to its end yet"
            raise BadInput(f"none of the {len(all_jobs)} runs of {name} finished; {why}")
        figures: dict[str, CaptionedFigure] = experiment.figures(results)
        claims: list[Claim] = experiment.claims(results)
        for figure, captioned in figures.items():
            for suffix in ("png", "svg"):
                save(captioned.figure, directory / f"{figure}.{suffix}")
        write_results(
            name,
            experiment,
            results,
            figures,
            claims,
            failures=failures,
            missing=missing,
            options=options or {},
            directory=directory,
        )
    show(directory, console)
    return results


# The runs.


@dataclass(frozen=True, order=True)
class TrialJob(Job):
    """The run of a trial; it can be one of another experiment."""

    shared: bool = False


def _is_wanted(trial: Trial, tier: int | None, only: Mapping[str, Collection[str]]) -> bool:
    tags = all(str(trial.tags.get(tag)) in values for tag, values in only.items())
    return tags and (tier is None or trial.tier <= tier)


def _with_options(trials: list[Trial], options: dict[str, Any] | None) -> list[Trial]:
    return [replace(trial, settings=trial.settings.changed(**options or {})) for trial in trials]


def _run_trials(
    name: str,
    trials: list[Trial],
    request: Request,
    directory: Path,
    console: Console,
    *,
    jobs: int,
    threads: int,
    end: float,
    wanted: Callable[[Trial], bool],
    partial: bool,
    published: PublishedRuns,
) -> list[TrialJob] | None:
    """Runs those of the trials that are wanted and not finished; where all of them are, or None when interrupted."""
    all_jobs = _share([_job(trial, request, directory) for trial in trials], trials, request, directory, published)
    for trial, job in zip(trials, all_jobs, strict=True):
        if not job.shared:  # those of others were checked when they were found
            refuse_links(directory, job.directory)
        check_same_settings(job, *_settings(trial, request, threads, job))
    if partial:
        return all_jobs
    todo = [
        (trial, job)
        for trial, job in sorted(zip(trials, all_jobs, strict=True), key=lambda pair: pair[0].tier)
        if read_result(job.directory)["state"] != "finished" and wanted(trial)
    ]
    for trial, job in zip(trials, all_jobs, strict=True):
        if (trial, job) in todo or (is_damaged(job.settings) and not job.shared):
            write_job_settings(job, *_settings(trial, request, threads, job))
    console.print(f"{name}, {request.scale}: {len(all_jobs)} runs, {len(todo)} to do, on {request.data}", markup=False)
    with JobsDisplay(all_jobs, console) as display:
        if not run_jobs(
            [job for _, job in todo],
            jobs,
            display,
            threads=threads,
            trust=True,  # they were written just now
            may_start=_worth_starting(todo, request, directory, end),
            deadline=end,
        ):
            return None
    return _share(all_jobs, trials, request, directory, published)


def _job(trial: Trial, request: Request, directory: Path) -> TrialJob:
    run = trial.run_settings(request)
    tags = {tag: value for tag, value in trial.tags.items() if tag != "seed"}
    title = ", ".join(f"{tag} {value}" for tag, value in tags.items()) or trial.learner
    return TrialJob(run.stream, title, trial.settings.seed, directory / "runs" / trial.name)


def _share(
    all_jobs: list[TrialJob], trials: list[Trial], request: Request, directory: Path, published: PublishedRuns
) -> list[TrialJob]:
    """The jobs, with the folders of other experiments where those have finished the same run, or published it."""
    elsewhere = finished_runs(directory)
    shared = []
    for trial, job in zip(trials, all_jobs, strict=True):
        found = None
        if read_result(job.directory)["state"] != "finished":
            settings = _settings(trial, request, 1, job)
            found = elsewhere.get(key_of(*settings)) or published.get(*settings)
        shared.append(job if found is None else replace(job, directory=found, shared=True))
    return shared


def _worth_starting(
    todo: list[tuple[Trial, TrialJob]], request: Request, directory: Path, end: float
) -> Callable[[Job], bool]:
    """Whether a job is to be started when it is its turn: it fits, and no other experiment has made it meanwhile."""
    trials = {job.directory: (trial, job) for trial, job in todo}

    def may_start(job: Job) -> bool:
        trial, own = trials[job.directory]
        left = end - time.monotonic()
        if math.isfinite(left) and estimate_seconds(trial, request, job.directory) > left:
            return False
        return key_of(*_settings(trial, request, 1, own)) not in finished_runs(directory)

    return may_start


def _settings(trial: Trial, request: Request, threads: int, job: TrialJob) -> tuple[RunSettings, Settings]:
    run = trial.run_settings(request)
    run = replace(run, threads=threads, stream=StreamSpec.parse(run.stream).absolute())
    if job.shared:  # the same learner may be written in another way there, and the data may lie elsewhere
        stored, learner = read_stored_settings(job.settings)
        return replace(run, learner=stored["learner"], stream=stored["stream"]), Settings(**learner)
    return run, trial.settings


def _collect(
    experiment: ModuleType, trials: list[Trial], all_jobs: list[TrialJob], request: Request
) -> tuple[Results, list[str], list[str]]:
    """What came out of the trials; those that failed, with why; and the names of those that are not finished."""
    outcomes, failures, missing = [], [], []
    for trial, job in zip(trials, all_jobs, strict=True):
        result = read_result(job.directory)
        if result["state"] == "failed":
            failures.append(f"{trial.name}: {result.get('why', '')}")
        if result["state"] != "finished":
            missing.append(trial.name)
            continue
        numbers = {name: result[name] for name in ("accuracy", "bits", "seconds", "macs")}
        loss = float("nan") if result["log_loss"] is None else result["log_loss"]
        outcome = Outcome(tags=trial.tags, log_loss=loss, **numbers, summary=result, directory=job.directory)
        outcomes.append(replace(outcome, measures=measures_of(experiment, outcome)))
    return Results(tuple(outcomes), request), failures, missing


def measures_of(experiment: ModuleType, outcome: Outcome) -> dict[str, float]:
    """The numbers of an outcome that are kept beside those of its summary."""
    scores = outcome.scores()
    last = scores.curve(max(1, scores.count // 10))
    own = experiment.measures(scores) if hasattr(experiment, "measures") else {}
    return {"last_tenth": float(last["accuracy"][-1]), **own}
