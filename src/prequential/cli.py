"""The command line. Heavy imports wait until a command needs them, so that help is quick."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import App, Group, Parameter

from prequential.errors import PrequentialError
from prequential.running.settings import RunSettings, read_settings
from prequential.settings import Settings, for_digits

app = App(
    name="prequential",
    help="Supervised online continual learning with transformers: predict, be charged, learn.",
    help_format="markdown",
)
app.register_install_completion_command(add_to_startup=False)
RUN = Group("The run", sort_key=1)
LEARNER = Group("The learner", sort_key=2)
COMPARISON = Group("The comparison", sort_key=1)
TRANSFORMERS = Group("The transformers in it", sort_key=2)
MANY = Parameter(consume_multiple=True, negative=(), group=COMPARISON)


@app.command
def run(
    *,
    settings: Annotated[RunSettings, Parameter(name="*", group=RUN)] = RunSettings(),  # noqa: B008 (frozen)
    learner: Annotated[Settings, Parameter(name="*", group=LEARNER)] = Settings(),  # noqa: B008
    config: Annotated[Path | None, Parameter(group=RUN)] = None,
) -> None:
    """Run a learner over a stream: each example is predicted, charged, and only then learnt.

    Without arguments: 100 tasks of 200 handwritten digits, their labels re-assigned at random in every task. For these the
    learner's settings are --depth 2 --window 256 --chunk 50 --streams 8 --rate 0.064 --recent 0, unless you say otherwise.

    Parameters
    ----------
    config
        TOML file with any of these settings; flags win over it.
    """
    from prequential.running.run import Run, new_directory

    directory = settings.out or new_directory(settings.stream)
    _go(Run(directory, settings, learner), begin=True)


@app.command
def resume(directory: Path, /) -> None:
    """Go on with a run that was stopped or killed; the result is the same as if it had not been.

    Parameters
    ----------
    directory
        The directory of the run.
    """
    from prequential.running.run import Run

    if not (directory / "settings.toml").is_file():
        raise PrequentialError(f"{directory} holds no run: there is no settings.toml in it")
    _go(Run(directory), begin=False)


@app.command
def show(directory: Path, /) -> None:
    """Say what came out of a run so far, and draw its pictures again.

    Parameters
    ----------
    directory
        The directory of the run.
    """
    from rich.console import Console

    from prequential.running.show import show_run

    show_run(directory, Console())


@app.command
def features(
    source: str,
    out: Path,
    /,
    *,
    network: str = "resnet50",
    images: Path | None = None,
    batch: int = 64,
    dtype: Literal["float16", "float32"] = "float16",
    device: str = "auto",
) -> None:
    """Extract the features of all images of a stream once, with a frozen pretrained network; resumable.

    Parameters
    ----------
    source
        The images: images:FOLDER, a manifest, or cloc:METADATA with --images.
    out
        The folder for the features; `prequential run --stream FOLDER` reads them.
    network
        resnet50, mae-vit-b, mae-vit-l, dinov2-b, any vision model of the Hugging Face hub as owner/name, timm:NAME, or a
        local folder of weights.
    images
        For cloc: the folder that the paths in the metadata start from.
    batch
        How many images the network gets at once.
    dtype
        The numbers the features are kept in.
    device
        Where to compute: auto, cpu, cuda, ...
    """
    from rich.console import Console

    from prequential.running.extraction import extract_features

    extract_features(
        source,
        out,
        network=network,
        images=images,
        batch=batch,
        dtype=dtype,
        device=device,
        console=Console(highlight=False),
    )


@app.command
def compare(
    preset: Literal["table1"] | None = None,
    /,
    *,
    learners: Annotated[list[str] | None, MANY] = None,
    on: Annotated[list[str] | None, Parameter(name=("--on", "--stream")), MANY] = None,
    seeds: Annotated[list[int] | None, MANY] = None,
    examples: Annotated[int | None, Parameter(group=COMPARISON)] = None,
    jobs: Annotated[int | None, Parameter(group=COMPARISON)] = None,
    device: Annotated[str, Parameter(group=COMPARISON)] = "auto",
    checkpoint_seconds: Annotated[float, Parameter(group=COMPARISON)] = 20.0,
    out: Annotated[Path | None, Parameter(group=COMPARISON)] = None,
    settings: Annotated[Settings, Parameter(name="*", group=TRANSFORMERS)] = Settings(),  # noqa: B008 (frozen)
) -> None:
    """Run several learners on the same streams, and put them side by side in tables and pictures.

    Stopped or killed, it goes on with the same command, or with `prequential compare --out DIRECTORY`. Learners,
    streams and seeds given later for the same directory are added to what is there.

    Parameters
    ----------
    preset
        table1: the rows of the paper's Table 1 on the stream photos, and whether their order comes out again.
    learners
        What to compare: transformer, two-token, no-image, no-attention, last-label, majority, oracle, er, er-polrs,
        er-adrep, er-polrs-adrep, acm, replay-streams, kalman, kalman-network, river:CLASS, sklearn:CLASS. Options are
        in brackets: "majority(window=50)".
    on
        What to compare them on: streams as for `run`; digits by default. Options are in brackets: "digits(tasks=20)".
    seeds
        Each is a run; it makes the learner and, where that is drawn at random, the stream. By default --seed.
    examples
        Stop after so many examples of each stream.
    jobs
        How many runs at a time, with one thread each; by default as many as there are cores. 0: in this process.
    device
        Where to compute: auto, cpu, cuda, ...
    checkpoint_seconds
        How often each run is saved.
    out
        Directory for the results; by default a new one in runs/.
    """
    from rich.console import Console

    from prequential.running import table1
    from prequential.running.compare import Plan, read_plan, show
    from prequential.running.compare import compare as run_comparison
    from prequential.running.run import new_directory

    console = Console(highlight=False)
    directory = out or new_directory(preset or "compare")
    before = read_plan(directory)
    if before is not None and (preset, learners, on, seeds, examples, settings) == (
        None,
        None,
        None,
        None,
        None,
        Settings(),
    ):
        plan = before
    else:
        if preset == "table1":
            learners, on = [*table1.PAPER, *(learners or [])], on or [table1.STREAM]
            examples = examples or table1.EXAMPLES
        if learners is None and before is None:
            raise PrequentialError("compare needs learners: --learners transformer kalman last-label, for example")
        plan = Plan(
            learners=tuple(learners or before.learners),  # type: ignore[union-attr]
            streams=tuple(on or (before.streams if before else ["digits"])),
            seeds=tuple(seeds or (before.seeds if before else [settings.seed])),
            table1=preset == "table1",
            run=RunSettings(examples=examples, device=device, checkpoint_seconds=checkpoint_seconds),
            settings=settings,
        )
    result = run_comparison(plan, directory, jobs=jobs, console=console)
    if result is None:
        console.print(f"stopped; go on with: prequential compare --out {directory}", soft_wrap=True)
        return
    show(*result, console)
    console.print(
        f"tables in {directory}: table.md, table.csv, table.tex; pictures: accuracy.png, loss.png, bits.png, cost.png",
        soft_wrap=True,
    )


@app.command
def experiment(
    name: str,
    /,
    *folders: Path,
    scale: Literal["small", "paper"] = "small",
    seeds: int = 1,
    stream: str | None = None,
    jobs: int | None = None,
    precision: Literal["float32", "bfloat16"] | None = None,
    out: Path | None = None,
) -> None:
    """Run one of the paper's experiments, draw its figures, and say whether the paper's claims held.

    Stopped or killed, it goes on with the same command.

    Parameters
    ----------
    name
        Which one; `list` shows all of them, and `claims FOLDER...` makes the page on all claims from the results in folders.
    folders
        For `claims`: where results are.
    scale
        small: minutes on two cores. paper: the paper's sizes.
    seeds
        How many seeds.
    stream
        The data, as for `run`: emnist:PATH, cifar100:PATH, or a folder of features extracted from CLOC. Without it the experiments
        on CLOC run on `photos`, a stand-in.
    jobs
        How many runs at a time; by default as many as there are cores, which they share.
    precision
        Number format of the matrix products, where it is to differ from the experiment's.
    out
        Directory for runs, figures and results; by default runs/experiments/NAME-SCALE. For `claims`: the page.
    """
    from rich.console import Console

    from prequential.experiments import find_experiment
    from prequential.experiments.base import Ask
    from prequential.running.claims import write_claims
    from prequential.running.experiment import list_experiments, run_experiment

    console = Console(highlight=False)
    if name == "list":
        list_experiments(console)
        return
    if name == "claims":
        page = out or Path("claims.md")
        count = write_claims(list(folders) or [Path("runs/experiments")], page)
        console.print(f"{count} claims in {page}")
        return
    if folders:
        raise PrequentialError(f"only `claims` takes folders; {name} was given {folders[0]}")
    if seeds < 1:
        raise PrequentialError(f"seeds ({seeds}) must be at least 1")
    ask = Ask(scale=scale, seeds=seeds, stream=stream or find_experiment(name).STREAM)
    directory = out or Path("runs", "experiments", f"{name}-{scale}")
    options = {} if precision is None else {"precision": precision}
    if run_experiment(name, ask, directory, jobs=jobs, options=options, console=console) is None:
        console.print(f"stopped; the same command goes on in {directory}", soft_wrap=True)


@app.command
def report(
    runs: Annotated[list[Path], Parameter(negative=())],
    /,
    *,
    out: Path | None = None,
    figures: Path | None = None,
    live: bool = False,
    port: int | None = None,
) -> None:
    """Make one page on some runs that opens anywhere: numbers, curves to zoom into, tasks, calibration, settings.

    Parameters
    ----------
    runs
        Directories of runs, or of comparisons, whose finished runs are taken.
    out
        The page; by default report.html in the directory where one is given, else in the current one.
    figures
        A folder for the figures as PNG, SVG and PDF, for a paper.
    live
        Serve the page on this machine while the runs go on; Ctrl-C ends it.
    port
        With --live: the port; by default 8765, or a free one when that is taken.
    """
    from rich.console import Console

    from prequential.drawing.report import serve_report, write_report

    console = Console(highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    if live:
        if out is not None or figures is not None:
            raise PrequentialError("--live serves the page and writes nothing: leave --out and --figures out")
        serve_report(runs, port, say)
        return
    page = write_report(runs, out, figures)
    say(f"report: {page}" + (f", figures in {figures}" if figures else ""))


def _go(work: Run, *, begin: bool) -> None:  # type: ignore[name-defined]  # noqa: F821
    from rich.console import Console

    from prequential.learners.transformer import Learner
    from prequential.running.progress import ShowProgress, describe

    console = Console(highlight=False)
    if begin:
        work.begin()
    else:
        work.restore()
    for warning in work.warnings:
        console.print(f"[yellow]{warning}[/]")
    learner = work.name
    if isinstance(work.learner, Learner):
        made = work.learner.settings
        learner = (
            f"{made.model}-transformer, {made.depth} × {made.width}, "
            f"window {made.window_examples} examples, {made.streams} streams"
        )
    console.print(
        f"{work.title} · {work.length:,} examples, {work.learner.labels.capacity} classes · {learner}", markup=False
    )
    if work.position and not work.finished:
        console.print(f"going on at example {work.position:,}")
    with ShowProgress(console) as progress:
        scores = work.go(progress)
    if not work.finished:
        console.print(f"stopped at example {work.position:,}; go on with: prequential resume {work.directory}")
    for line in describe(scores):
        console.print(line)
    if work.skipped:
        console.print(f"{work.skipped:,} bad rows or images were left out")
    console.print(f"results in {work.directory}, picture {work.directory / 'curves.png'}", soft_wrap=True)


def main(arguments: list[str] | None = None) -> None:
    """The `prequential` command: runs it, and turns every expected error into one sentence and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        app.config = _config(arguments)
        app(arguments, result_action="return_value")
    except PrequentialError as error:
        print(f"prequential: {error}", file=sys.stderr)
        sys.exit(2)


def _config(arguments: list[str]) -> tuple[cyclopts.config.Dict, ...]:
    """What flags default to: the settings of the file given with --config, then those made for the digits."""
    path, stream = _value(arguments, "--config"), _value(arguments, "--stream")
    sources = []
    if path is not None:
        on_run, on_learner = read_settings(Path(path))
        stream = stream or on_run.get("stream")
        sources.append(cyclopts.config.Dict({"run": _flags({**on_run, **on_learner})}, source=path))
    if stream in (None, "digits"):
        preset = {name: value for name, value in asdict(for_digits()).items() if value != getattr(Settings(), name)}
        sources.append(cyclopts.config.Dict({"run": _flags(preset)}, source="the digits' settings"))
    return tuple(sources)


def _value(arguments: list[str], flag: str) -> str | None:
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
    return None


def _flags(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in settings.items()}


if __name__ == "__main__":
    main()
