"""`prequential experiment`: runs the trials of an experiment, draws its figures, checks the paper's claims."""

from __future__ import annotations

from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from prequential.errors import BadInput, BadSetting
from prequential.experiments import NAMES, find_experiment
from prequential.experiments.experiment import CaptionedFigure, Claim, Outcome, Request, Results, Trial
from prequential.learners.device import find_device, slow_precision
from prequential.plots.style import save
from prequential.runs.job import Job, check_same_settings, read_result, write_job_settings
from prequential.runs.jobs_display import JobsDisplay
from prequential.runs.pool import available_cores, run_jobs
from prequential.runs.run_settings import RunSettings
from prequential.settings import Settings
from prequential.storage.files import DirectoryLock, make_directory, refuse_links, remove_temporaries, write_atomically
from prequential.storage.sealed import is_damaged, read_json, write_sealed
from prequential.streams.open import check_spec
from prequential.streams.spec import StreamSpec

DATA = {  # what a stream by default needs, and what else the experiment can run on
    "emnist": "EMNIST: --stream emnist:PATH or --download",
    "cifar100": "CIFAR-100: --stream cifar100:PATH or --download",
    "photos": "none, generated; or features of CLOC: --stream FOLDER",
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
    console: Console | None = None,
) -> Results | None:
    """Runs what is not finished yet, then draws and concludes; None when it was stopped.

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
    console
        Where to show progress.
    """
    console = console or Console(quiet=True)
    experiment = find_experiment(name)
    trials = [_changed(trial, options or {}) for trial in experiment.trials(request)]
    for option in request.reading:
        values = {repr(trial.run.get(option)) for trial in trials}
        if len(values) > 1:
            raise BadSetting(f"{option} is what {name} varies ({', '.join(sorted(values))}); leave it out")
    jobs = available_cores() if jobs is None else jobs
    if jobs < 0:
        raise BadSetting(f"jobs ({jobs}) must be at least 0")
    threads = max(1, available_cores() // min(jobs, len(trials))) if jobs else available_cores()
    for run in (trial.run_settings(request) for trial in trials):
        check_spec(run.stream, whole=not run.download)
    all_jobs = [_job(trial, request, directory) for trial in trials]
    make_directory(directory)
    with DirectoryLock(directory):
        remove_temporaries(directory)
        for trial, job in zip(trials, all_jobs, strict=True):
            refuse_links(directory, job.directory)
            check_same_settings(job, *_settings(trial, request, threads))
        todo = [job for job in all_jobs if read_result(job.directory)["state"] != "finished"]
        for trial, job in zip(trials, all_jobs, strict=True):
            if job in todo or is_damaged(job.settings):
                write_job_settings(job, *_settings(trial, request, threads))
        console.print(
            f"{name}, {request.scale}: {len(all_jobs)} runs, {len(todo)} to do, on {request.data}", markup=False
        )
        slow = slow_precision((options or {}).get("precision", "float32"), find_device("auto"))
        if slow:
            console.print(slow)
        with JobsDisplay(all_jobs, console) as display:
            if not run_jobs(todo, jobs, display, threads=threads, trust=True):  # they were written just now
                return None
        results, failures = _collect(trials, all_jobs, request)
        if not results:
            raise BadInput(
                f"none of the {len(all_jobs)} runs of {name} finished; the first failed because {failures[0]}"
            )
        figures: dict[str, CaptionedFigure] = experiment.figures(results)
        claims: list[Claim] = experiment.claims(results)
        for figure, captioned in figures.items():
            for suffix in ("png", "svg"):
                save(captioned.figure, directory / f"{figure}.{suffix}")
        _write(name, experiment, results, figures, claims, failures, options or {}, directory)
    show(directory, console)
    return results


def show(directory: Path, console: Console) -> None:
    """Prints the results and the claims of an experiment that was run."""
    saved = read_results(directory)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in _headings(saved):
        table.add_column(heading, justify="right")
    for row in _rows(saved):
        table.add_row(*row)
    console.print(table)
    for claim in saved["claims"]:
        console.print(f"{_verdict(claim['holds'])}: {claim['says']} {claim['found']}", markup=False, soft_wrap=True)
    for failure in saved["failures"]:
        console.print(f"failed: {failure}", markup=False, soft_wrap=True)
    names = ", ".join(f"{name}.png" for name in saved["figures"])
    console.print(f"results in {directory}: result.md, results.json, {names}", markup=False, soft_wrap=True)


def read_results(directory: Path) -> dict[str, Any]:
    """What an experiment has left behind as `results.json`."""
    path = directory / "results.json"
    if not path.is_file():
        raise BadInput(f"{directory} holds no results of an experiment: there is no results.json in it")
    saved = read_json(path)
    missing = [
        name for name in ("experiment", "outcomes", "claims", "figures", "failures", "command") if name not in saved
    ]
    if missing:
        raise BadInput(f"{path} is damaged: it holds no {missing[0]}")
    return saved


# The runs.


def _changed(trial: Trial, options: dict[str, Any]) -> Trial:
    given = {field: getattr(trial, field) for field in ("tags", "learner", "run")}
    return Trial(**given, settings=trial.settings.changed(**options))


def _job(trial: Trial, request: Request, directory: Path) -> Job:
    run = trial.run_settings(request)
    tags = {tag: value for tag, value in trial.tags.items() if tag != "seed"}
    title = ", ".join(f"{tag} {value}" for tag, value in tags.items()) or trial.learner
    return Job(run.stream, title, trial.settings.seed, directory / "runs" / trial.name)


def _settings(trial: Trial, request: Request, threads: int) -> tuple[RunSettings, Settings]:
    run = trial.run_settings(request)
    return replace(run, threads=threads, stream=StreamSpec.parse(run.stream).absolute()), trial.settings


def _collect(trials: list[Trial], all_jobs: list[Job], request: Request) -> tuple[Results, list[str]]:
    outcomes, failures = [], []
    for trial, job in zip(trials, all_jobs, strict=True):
        result = read_result(job.directory)
        if result["state"] != "finished":
            failures.append(f"{trial.name}: {result.get('why', 'not finished')}")
            continue
        numbers = {name: result[name] for name in ("accuracy", "bits", "seconds", "macs")}
        loss = float("nan") if result["log_loss"] is None else result["log_loss"]
        outcomes.append(Outcome(tags=trial.tags, log_loss=loss, **numbers, summary=result, directory=job.directory))
    return Results(tuple(outcomes), request), failures


# What is left behind.


def _write(
    name: str,
    experiment: ModuleType,
    results: Results,
    figures: dict[str, CaptionedFigure],
    claims: list[Claim],
    failures: list[str],
    options: dict[str, Any],
    directory: Path,
) -> None:
    request = results.request
    # only the last part of a path: results are published
    kind, colon, place = request.stream.rpartition(":")
    stream = f"{kind}{colon}{Path(place).name}" if "/" in place else request.stream
    saved = {
        "experiment": name,
        "scale": request.scale,
        "stream": stream,
        "seeds": request.seeds,
        "options": options,
        "command": _command(name, request, stream, options),
        "versions": {package: version(package) for package in ("prequential", "torch")},
        "cores": available_cores(),
        "seconds": sum(o.seconds for o in results.outcomes),
        "outcomes": [_numbers(o) for o in results.outcomes],
        "figures": {figure: captioned.caption for figure, captioned in figures.items()},
        "claims": [asdict(claim) for claim in claims],
        "failures": failures,
    }
    write_sealed(directory / "results.json", saved)
    write_atomically(directory / "result.md", _page(str(experiment.__doc__), saved, request).encode())


def _numbers(outcome: Outcome) -> dict[str, Any]:
    kept = {name: getattr(outcome, name) for name in ("tags", "accuracy", "log_loss", "bits", "seconds", "macs")}
    tasks: dict[str, Any] = {n: outcome.summary[n] for n in ("first_tasks", "last_tasks") if n in outcome.summary}
    numbers: dict[str, Any] = {**kept, "examples": outcome.summary["count"], **tasks}
    # JSON has no NaN: learners that give no probabilities have no loss
    return {key: None if value != value else value for key, value in numbers.items()}


def _command(name: str, request: Request, stream: str, options: dict[str, Any]) -> str:
    parts = ["prequential experiment", name, f"--scale {request.scale}", f"--seeds {request.seeds}"]
    parts += [_flag(option, value) for option, value in request.reading.items()]
    if stream != find_experiment(name).STREAM:
        parts.append(f"--stream {stream}")
    parts += [f"--{option.replace('_', '-')} {value}" for option, value in options.items()]
    return " ".join(parts)


def _flag(option: str, value: Any) -> str:
    """An option of a stream as it is written on the command line.

    >>> _flag("label_batches", 100), _flag("features", ["a", "b"]), _flag("download", True)
    ('--label-batches 100', '--features a b', '--download')
    """
    values = value if isinstance(value, list) else [] if value is True else [value]
    return " ".join([f"--{option.replace('_', '-')}", *map(str, values)])


def _page(about: str, saved: dict[str, Any], request: Request) -> str:
    title, _, rest = about.strip().partition("\n")
    minutes = saved["seconds"] / 60
    data = request.data if "photos" in saved["stream"] else f"`{saved['stream']}`"
    cores = f"{saved['cores']} core{'s' * (saved['cores'] != 1)}"
    lines = [
        f"# {title}",
        "",
        rest.strip(),
        "",
        f"Run on {data}, scale {saved['scale']}:",
        "",
        "```text",
        saved["command"],
        "```",
        "",
        f"{len(saved['outcomes'])} runs, {minutes:.0f} minutes of runs in sum, {cores}.",
        "",
    ]
    for figure, says in saved["figures"].items():
        lines += [f"![{says}]({figure}.png)", "", says, ""]
    if saved["claims"]:
        lines += ["## What the paper says, and what was found", "", *claims_table([saved]), ""]
    headings = _headings(saved)
    lines += ["## All runs", "", f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(saved)]
    lines += [f"\nFailed: {failure}" for failure in saved["failures"]]
    return "\n".join(lines) + "\n"


def claims_table(many: list[dict[str, Any]]) -> list[str]:
    """The claims of some experiments as lines of a Markdown table."""
    lines = ["| the paper says | found here | holds? |", "|---|---|---|"]
    for saved in many:
        lines += [f"| {c['says']} | {c['found']} | {_verdict(c['holds'])} |" for c in saved["claims"]]
    return lines


def _verdict(holds: bool | None) -> str:
    return {True: "holds", False: "does not hold", None: "cannot be decided"}[holds]


def _tags(saved: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(tag for outcome in saved["outcomes"] for tag in outcome["tags"]))


def _headings(saved: dict[str, Any]) -> list[str]:
    tasks = ["first ten tasks", "last ten"] if any("first_tasks" in o for o in saved["outcomes"]) else []
    return [*_tags(saved), "examples", "accuracy", "nats", *tasks, "MACs", "seconds"]


def _rows(saved: dict[str, Any]) -> list[list[str]]:
    rows = []
    for outcome in saved["outcomes"]:
        loss, macs = outcome["log_loss"], outcome["macs"]
        row = [str(outcome["tags"].get(tag, "")) for tag in _tags(saved)]
        row += [f"{outcome['examples']:,}", f"{outcome['accuracy']:.3f}", "" if loss is None else f"{loss:.3f}"]
        if "first ten tasks" in _headings(saved):
            parts = [outcome.get(part) for part in ("first_tasks", "last_tasks")]
            row += ["" if part is None else f"{part['accuracy']:.3f}" for part in parts]
        rows.append([*row, "" if macs is None else f"{macs:.1e}", f"{outcome['seconds']:.0f}"])
    return rows
