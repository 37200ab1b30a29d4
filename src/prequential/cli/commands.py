"""Commands for many runs: compare, experiment, sweep, pareto. Heavy imports wait until they are needed."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from prequential.errors import PrequentialError
from prequential.runs.run_settings import RunSettings, StreamSettings
from prequential.settings import Settings

COMPARISON = Group("The comparison", sort_key=1)
TRANSFORMERS = Group("The transformers in it", sort_key=3)
STREAM = Parameter(name="*")  # the options of a stream, which every command that reads one has
MANY = Parameter(consume_multiple=True, negative=(), group=COMPARISON)


def compare(
    preset: Literal["table1"] | None = None,
    /,
    *,
    learners: Annotated[list[str] | None, MANY] = None,
    on: Annotated[list[str] | None, Parameter(name=("--on", "--stream")), MANY] = None,
    seeds: Annotated[list[int] | None, MANY] = None,
    jobs: Annotated[int | None, Parameter(group=COMPARISON)] = None,
    device: Annotated[str | None, Parameter(group=COMPARISON)] = None,
    checkpoint_seconds: Annotated[float | None, Parameter(group=COMPARISON)] = None,
    out: Annotated[Path | None, Parameter(group=COMPARISON)] = None,
    trust: Annotated[bool, Parameter(group=COMPARISON, negative=())] = False,
    reading: Annotated[StreamSettings, STREAM] = StreamSettings(),  # noqa: B008 (frozen)
    settings: Annotated[Settings, Parameter(name="*", group=TRANSFORMERS)] = Settings(),  # noqa: B008 (frozen)
) -> None:
    """Run several learners on the same streams, and put them side by side in tables and pictures.

    Stopped or killed, it resumes with the same command, or with `prequential compare --out DIRECTORY`. Learners,
    streams and seeds given later for the same directory are added to what is there; what is not given stays as it was.
    Where a run fails, its row says why, the others continue, and the exit code is 1.

    Parameters
    ----------
    preset
        table1: the rows of the paper's Table 1 on the stream photos, and whether their order comes out again.
    learners
        Learners by name (docs/baselines.md lists them: transformer, last-label, kalman, ...), river:CLASS,
        sklearn:CLASS, or a class of your own as MODULE:CLASS. Options are in parentheses: "majority(window=50)".
    on
        What to compare them on: streams as for `run`; digits by default. Options are in parentheses:
        "digits(tasks=20)".
    seeds
        Each is a run; it makes the learner and, where that is drawn at random, the stream. By default --seed.
    jobs
        How many runs at a time, with one thread each; by default as many as there are cores. 0: in this process.
    device
        Where to compute: auto (the default), cpu, cuda, ...
    checkpoint_seconds
        How often each run is saved; by default every 20 seconds.
    out
        Directory for the results; by default a new one in runs/.
    trust
        Do what is written in a directory that is there even if that is more than to read data and to learn.
    """
    from rich.console import Console

    from prequential.comparisons import table1
    from prequential.comparisons.compare import Plan, read_plan, show
    from prequential.comparisons.compare import compare as run_comparison
    from prequential.runs.run import new_directory
    from prequential.trust import names_from

    console = Console(highlight=False)
    directory = out or new_directory(preset or "compare")
    before = read_plan(directory)
    if preset == "table1":
        learners, on = [*table1.PAPER, *(learners or [])], on or [table1.STREAM]
        reading = replace(
            reading, examples=reading.examples or (before.run.examples if before else None) or table1.EXAMPLES
        )
    if not learners and before is None:
        raise PrequentialError("compare needs learners: --learners transformer kalman last-label, for example")
    given: dict[str, Any] = {"device": device, "checkpoint_seconds": checkpoint_seconds}
    given = {**{name: value for name, value in given.items() if value is not None}, **reading.given_options()}
    with names_from(directory if before else None, trust=trust):
        plan = Plan(
            learners=tuple(learners or before.learners),  # type: ignore[union-attr]
            streams=tuple(on or (before.streams if before else ["digits"])),
            seeds=tuple(seeds or (before.seeds if before else [settings.seed])),
            table1=preset == "table1",
            run=replace(before.run if before else RunSettings(), **given),
            settings=before.settings.changed(**_not_default(settings)) if before else settings,
        )
    result = run_comparison(plan, directory, jobs=jobs, console=console, trust=trust)
    if result is None:
        console.print(f"stopped; resume with: prequential compare --out {directory}", soft_wrap=True)
        return
    show(*result, console)
    console.print(
        f"tables in {directory}: table.md, table.csv, table.tex; pictures: accuracy.png, loss.png, bits.png, cost.png",
        soft_wrap=True,
    )
    if any(row.failures for row in result[0]):
        raise SystemExit(1)


def _not_default(settings: Settings) -> dict[str, Any]:
    """The settings that differ from the defaults: those that were given, as far as one can see."""
    default = Settings()
    names = [field.name for field in fields(Settings)]
    return {name: getattr(settings, name) for name in names if getattr(settings, name) != getattr(default, name)}


def experiment(
    name: str,
    /,
    *folders: Path,
    scale: Literal["small", "medium", "paper"] = "small",
    seeds: int | None = None,
    stream: str | None = None,
    jobs: int | None = None,
    budget: str | None = None,
    tier: int | None = None,
    only: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
    partial: Annotated[bool, Parameter(negative=())] = False,
    reuse: Annotated[list[Path] | None, Parameter(consume_multiple=True, negative=())] = None,
    precision: Literal["float32", "bfloat16"] | None = None,
    out: Path | None = None,
    reading: Annotated[StreamSettings, STREAM] = StreamSettings(),  # noqa: B008 (frozen)
) -> None:
    """Run one of the paper's experiments, draw its figures, and say whether the paper's claims held.

    Stopped or killed, it resumes with the same command. Options of the stream win over the experiment's own; those that
    it varies are refused.

    Parameters
    ----------
    name
        Which one; `list` shows all of them, with the data and the time that each takes. `all` runs as much as fits into
        --budget, what is worth most first. `claims FOLDER...` writes the page on all claims from the results in folders,
        `record FOLDER...` the paper's figures with ours beside them, and all numbers as all.json. `publish FOLDER...`
        copies results to --out without records and checkpoints; --reuse takes runs from there.
    folders
        For `claims`, `record` and `publish`: where results are. For `all`: the data that is not generated, as
        emnist:PATH, cifar100:PATH and "geo-images:PATH(records=FILE)".
    scale
        small: minutes on two cores. medium: hours, half a million examples of `photos`. paper: the paper's sizes.
    seeds
        How many seeds; by default 3 at medium scale and 1 otherwise.
    stream
        The data, as for `run`: emnist:PATH, cifar100:PATH, or a folder of features extracted from CLOC. Without it the
        experiments on CLOC run on `photos`, a stand-in.
    jobs
        How many runs at a time; by default as many as there are cores, which they share.
    budget
        Stop after this time, such as 90m or 10h: the runs under way are saved, and the results are of those that are
        finished.
    tier
        Run only the trials up to this tier; those of tier 1 are worth most.
    only
        Run only the trials with such a value, as `--only window=16 window=64 seed=0`; several machines can share an
        experiment so, and --reuse brings their published runs together.
    partial
        Run nothing; draw and conclude from what is finished.
    reuse
        Folders of published results: runs that are there, with the same settings on the same data, are not made again.
    precision
        Number format of the matrix products, where it is to differ from the experiment's.
    out
        Directory for runs, figures and results; by default runs/experiments/NAME-SCALE, with the kind of data where it
        is not the usual one. For `claims` and `record`: the
        page. For `all`: a folder with one for each experiment, by default runs/experiments. For `publish`: where the
        published ones are kept, by default results.
    """
    from rich.console import Console

    from prequential.experiments import find_experiment
    from prequential.experiments.budget import parse_duration
    from prequential.experiments.claims import write_claims
    from prequential.experiments.experiment import SEEDS, Request
    from prequential.experiments.published import publish
    from prequential.experiments.record import write_record
    from prequential.experiments.run_all import run_all
    from prequential.experiments.runner import list_experiments, run_experiment

    console = Console(highlight=False)
    if name == "list":
        list_experiments(console)
        return
    if name == "claims":
        page = out or Path("claims.md")
        count = write_claims(list(folders) or [Path("runs/experiments")], page)
        console.print(f"{count} claims in {page}")
        return
    if name == "record":
        page = out or Path("reproduction.md")
        numbers = write_record(list(folders) or [Path("runs/experiments")], page)
        console.print(f"the record is in {page}, all numbers in {numbers}", soft_wrap=True)
        return
    if name == "publish":
        made = publish(list(folders) or [Path("runs/experiments")], out or Path("results"))
        console.print(f"published: {', '.join(map(str, made))}", soft_wrap=True)
        return
    if name == "all":
        if budget is None:
            raise PrequentialError("`all` takes days: say how long it may run, such as --budget 10h")
        done = run_all(
            parse_duration(budget),
            out or Path("runs/experiments"),
            streams=[str(folder) for folder in folders],
            jobs=jobs,
            reuse=reuse or (),
            console=console,
        )
        console.print(f"results of {', '.join(done) or 'no experiment'}; the same command goes on", soft_wrap=True)
        return
    if folders:
        raise PrequentialError(
            f"only `claims`, `record`, `publish` and `all` take folders; {name} was given {folders[0]}"
        )
    seeds = SEEDS[scale] if seeds is None else seeds
    if seeds < 1:
        raise PrequentialError(f"seeds ({seeds}) must be at least 1")
    usual = find_experiment(name).STREAM
    request = Request(scale=scale, seeds=seeds, stream=stream or usual, reading=reading.given_options())
    directory = out or Path("runs", "experiments", request.folder(name, usual))
    options = {} if precision is None else {"precision": precision}
    seconds = None if budget is None else parse_duration(budget)
    how: dict[str, Any] = {
        "jobs": jobs,
        "options": options,
        "budget": seconds,
        "tier": tier,
        "only": _values_by_tag(only or []),
        "partial": partial,
        "reuse": reuse or (),
    }
    if run_experiment(name, request, directory, **how, console=console) is None:
        console.print(f"stopped; the same command resumes it in {directory}", soft_wrap=True)


def _values_by_tag(given: list[str]) -> dict[str, list[str]]:
    """{"window": ["16", "64"]} of ["window=16", "window=64"]."""
    found: dict[str, list[str]] = {}
    for text in given:
        tag, equals, value = text.partition("=")
        if not (tag and equals and value):
            raise PrequentialError(f"--only takes TAG=VALUE, such as window=16, but got {text}")
        found.setdefault(tag, []).append(value)
    return found


def sweep(
    file: Path,
    /,
    *,
    trials: int | None = None,
    jobs: int | None = None,
    storage: str | None = None,
    out: Path | None = None,
    trust: Annotated[bool, Parameter(negative=())] = False,
    stream: str | None = None,
    learner: str | None = None,
    reading: Annotated[StreamSettings, STREAM] = StreamSettings(),  # noqa: B008 (frozen)
) -> None:
    """Try many settings of a run, and say which are best; stopped or killed, it resumes with the same command.

    Parameters
    ----------
    file
        TOML file that says what to vary: [sweep], [run], [learner] and [vary], as in docs/sweeps.md.
    trials
        The number of trials; wins over the file.
    jobs
        How many runs at a time, with one thread each; by default as many as there are cores. 0: in this process.
    storage
        Where the trials are kept: a database URL or journal:PATH, which many machines can share; by default SQLite in
        the directory.
    out
        Directory for the results; by default runs/ and the name of the sweep.
    trust
        Where FILE lies in the directory of a sweep: do what it asks for even if that is a database elsewhere, another
        directory, or data to fetch.
    stream, learner
        As for `run`; they win over the file, and so do the options of the stream.
    """
    from rich.console import Console

    from prequential.runs.formatting import format_metric
    from prequential.sweeps.sweep import sweep as run_sweep
    from prequential.sweeps.sweep_display import say_point
    from prequential.sweeps.trial_tables import best_first

    console = Console(highlight=False)
    named = {"stream": stream, "learner": learner}
    given = {**{name: value for name, value in named.items() if value is not None}, **reading.given_options()}
    result = run_sweep(
        file, trials=trials, jobs=jobs, storage=storage, out=out, run=given, console=console, trust=trust
    )
    if result is None:
        console.print("stopped; the same command resumes it", soft_wrap=True)
        return
    plan, rows, directory = result
    done = best_first(plan, rows)
    failed = sum(row.state == "failed" for row in rows)
    console.print(f"{len(done)} trials done" + (f", {failed} failed: table.md says why" if failed else ""))
    for row in done[: 5 if len(plan.objectives) == 1 else 0]:
        text = f"{format_metric(plan.objectives[0], row.values[0]):>10}  {say_point(row.point)}"
        console.print(text, soft_wrap=True, markup=False)
    if len(plan.objectives) > 1 and done:
        from prequential.sweeps.pareto_front import show_pareto

        show_pareto([str(directory)], objectives=plan.objectives, console=console)
    console.print(f"tables, pictures and all runs in {directory}", soft_wrap=True)


def pareto(
    studies: Annotated[list[str], Parameter(negative=())],
    /,
    *,
    objectives: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
    out: Path | None = None,
) -> None:
    """Print and draw the Pareto front of sweeps and comparisons, one color for each method.

    Parameters
    ----------
    studies
        Directories of sweeps or comparisons, or studies as URL#NAME, in any number.
    objectives
        What the front is of; by default what the sweep was for, else accuracy and macs.
    out
        The picture (.png, .svg or .pdf); by default pareto.png in the first directory.
    """
    from rich.console import Console

    from prequential.sweeps.pareto_front import show_pareto

    show_pareto(studies, objectives=objectives, out=out, console=Console(highlight=False))
