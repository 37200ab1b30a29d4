"""The command line. Heavy imports wait until a command needs them, so that help is quick."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import App, Group, Parameter

from prequential.cli import commands, live_commands, look_commands
from prequential.cli.old_flags import current_flags, shown_once
from prequential.cli.serve_command import serve_app
from prequential.exits import one_sentence
from prequential.renames import one_warning
from prequential.runs.run_settings import RunSettings, read_settings, read_stored_settings
from prequential.settings import Settings, for_digits

app = App(
    name="prequential",
    help="Supervised online continual learning with transformers: predict, be charged, learn.",
    help_format="markdown",
)
app.register_install_completion_command(add_to_startup=False)
RUN = Group("The run", sort_key=1)
LEARNER = Group("The learner", sort_key=3)
SINK = Parameter(group=RUN, negative=())


@app.command
def run(
    *,
    settings: Annotated[RunSettings, Parameter(name="*", group=RUN)] = RunSettings(),  # noqa: B008 (frozen)
    learner: Annotated[Settings, Parameter(name="*", group=LEARNER)] = Settings(),  # noqa: B008
    config: Annotated[Path | None, Parameter(group=RUN)] = None,
    tensorboard: Annotated[bool, SINK] = False,
    mlflow: Annotated[bool, SINK] = False,
    wandb: Annotated[bool, SINK] = False,
) -> None:
    """Run a learner over a stream: each example is predicted, charged, and only then learned.

    Without arguments: 100 tasks of 200 handwritten digits, their labels re-assigned at random in every task. For these
    the learner's settings are --depth 2 --window 256 --chunk-size 25 --num-streams 8 --learning-rate 0.064
    --recent-window 0 --num-neighbors 0 --change-half-life 0 --num-trees 0, unless you say otherwise.

    Parameters
    ----------
    config
        TOML file with any of these settings; flags win over it.
    tensorboard
        Log to TensorBoard, in the folder `tensorboard` of the run.
    mlflow
        Log to MLflow: to the server that MLFLOW_TRACKING_URI names, else to MLflow's own local store.
    wandb
        Log to Weights & Biases: to files in the run's directory, or to their server if WANDB_MODE is online.
    """
    from prequential.runs.run import Run, new_directory

    directory = settings.out or new_directory(settings.stream)
    with _processes(settings.device) as ranks:
        directory = Path(ranks.text_from_first(str(directory)))
        sinks = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
        _execute(Run(directory, settings, learner), begin=True, sinks=sinks)


@app.command
def resume(
    directory: Path,
    /,
    *,
    set_aside: Annotated[bool, Parameter(negative=())] = False,
    engine: Literal["auto", "native", "torch"] | None = None,
    trust: Annotated[bool, Parameter(negative=())] = False,
    tensorboard: Annotated[bool, SINK] = False,
    mlflow: Annotated[bool, SINK] = False,
    wandb: Annotated[bool, SINK] = False,
) -> None:
    """Go on with a run that was stopped or killed; the result is the same as if it had not been.

    Parameters
    ----------
    directory
        The directory of the run.
    set_aside
        Go on although parts of the records are damaged or missing: they are moved to records/_damaged, and the records
        lack their rows. Scores do not depend on them.
    engine
        What computes from here on, if something else than before: the native core or torch.
    trust
        Do what its settings ask for even if that is more than to read data and to learn, such as to fetch data.
    tensorboard, mlflow, wandb
        As for `run`; logs go on where they ended.
    """
    from prequential.runs.run import Run, restore_settings

    restore_settings(directory)
    with _processes(str(read_stored_settings(directory / "settings.toml")[0].get("device", "auto"))):
        sinks = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
        _execute(Run(directory, trust=trust, engine=engine), begin=False, set_aside=set_aside, sinks=sinks)


@app.command
def features(
    source: str,
    out: Path,
    /,
    *,
    network: str = "resnet50",
    size: int | None = None,
    images: Path | None = None,
    label: str | None = None,
    time: str | None = None,
    image: str | None = None,
    batch: int = 64,
    dtype: Literal["float16", "float32"] = "float16",
    device: str = "auto",
) -> None:
    """Extract the features of all images of a stream once, with a frozen pretrained network; resumable.

    Images that are missing or cannot be decoded are skipped, counted, and listed with the reason in OUT/skipped.jsonl.

    Parameters
    ----------
    source
        The images: images:FOLDER with a folder for each class; a manifest, which is a CSV, Parquet or Arrow file that
        lists paths and labels; a Parquet or Arrow table (or a saved Hugging Face data set) with the images inside;
        cloc:METADATA with --images; or arrays such as "digits(images=true)". Options of the source can stand behind it
        in parentheses, in quotes for the shell: "list.csv(delimiter=';', order=shuffled)".
    out
        The folder for the features; `prequential run --stream FOLDER` reads them.
    network
        efficientnet-lite0 (its weights come with prequential[pretrained]), resnet50, mae-vit-b, mae-vit-l, dinov2-b, any
        vision model of the Hugging Face hub as owner/name, timm:NAME, or a local folder of weights.
    size
        Height and width of the images that the network gets; by default those it was trained with. Less is faster.
    images
        For cloc: the folder that the paths in the metadata start from.
    label
        For manifests and tables: the column of the labels; by default one called label, y, target or class, else the
        last.
    time
        For manifests and tables: the column to order by.
    image
        For manifests and tables: the column of the images or of their paths; by default the first that holds such.
    batch
        How many images the network gets at once.
    dtype
        The numbers the features are kept in.
    device
        Where to compute: auto, cpu, cuda, ...
    """
    from rich.console import Console

    from prequential.features.command import extract_features

    extract_features(
        source,
        out,
        network=network,
        size=size,
        images=images,
        columns={"label": label, "time": time, "image": image},
        batch=batch,
        dtype=dtype,
        device=device,
        console=Console(highlight=False),
    )


@contextmanager
def _processes(device: str) -> Iterator[Ranks]:  # type: ignore[name-defined]  # noqa: F821
    """Works together with the other processes that torchrun has started, if there are any."""
    from prequential.learners.transformer import distributed as ranks

    yield ranks.join(device)
    ranks.leave()


def _execute(
    work: Run,  # type: ignore[name-defined]  # noqa: F821
    *,
    begin: bool,
    set_aside: bool = False,
    sinks: dict[str, bool],
) -> None:
    from rich.console import Console

    from prequential.learners.device import slow_precision
    from prequential.learners.transformer.learner import Learner
    from prequential.runs.progress import ShowProgress, describe
    from prequential.runs.sinks import Sinks, check_sinks, together

    console = Console(highlight=False, quiet=not work.ranks.first)
    names = [name for name, wanted in sinks.items() if wanted]
    check_sinks(names)  # before anything is written
    if begin:
        work.begin()
    else:
        work.restore(set_aside=set_aside)
    for warning in work.warnings:
        console.print(warning, style="yellow", markup=False, soft_wrap=True)
    learner = work.name
    if isinstance(work.learner, Learner):
        made = work.learner.settings
        if slow := slow_precision(made.precision, work.learner.device):
            console.print(f"[yellow]{slow}[/]")
        learner = (
            f"{made.model}-transformer, {made.depth} × {made.width}, "
            f"window {made.window_examples} examples, {made.num_streams} replay streams"
        )
    console.print(f"{work.title} · {work.length:,} examples, {_classes(work)} · {learner}", markup=False)
    how = getattr(work.stream, "describe", None)  # tables say how they are read
    if begin and how is not None:
        console.print(how(), markup=False, soft_wrap=True)
    if work.position and not work.finished:
        console.print(f"resuming at example {work.position:,}")
    logs = Sinks(names, work, lambda text: console.print(text, style="yellow", markup=False, soft_wrap=True))
    with ShowProgress(console) as progress:
        scores = work.execute(together(progress, logs))
    logs.finish(work)
    if not work.finished:
        console.print(f"stopped at example {work.position:,}; resume with: prequential resume {work.directory}")
    for line in describe(scores):
        console.print(line)
    if work.skipped:
        console.print(f"{work.skipped:,} bad rows or images were left out")
    if work.engine:
        console.print(work.engine, markup=False, soft_wrap=True)
    for hint in work.hints():
        console.print(hint, markup=False, soft_wrap=True)
    console.print(f"results in {work.directory}, picture {work.directory / 'curves.png'}", soft_wrap=True)


for command in (commands.compare, commands.experiment, commands.sweep, commands.pareto):
    app.command(command)
app.command(look_commands.show)
app.command(look_commands.runs)
app.command(look_commands.report)
app.command(live_commands.predict)
app.command(live_commands.learn)
app.command(serve_app)


def main(arguments: list[str] | None = None) -> None:
    """The `prequential` command: runs it, and turns every error into one sentence and an exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    with one_sentence(), shown_once():
        with one_warning():
            arguments = current_flags(arguments)
            app.config = _config(arguments)
        app(arguments, result_action="return_value", print_error=False, exit_on_error=False)


def _classes(work: Run) -> str:  # type: ignore[name-defined]  # noqa: F821
    """How many classes a run has, in words."""
    labels = work.learner.labels
    if labels.classes is not None:
        return f"{labels.classes} classes"
    return f"{len(labels)} classes so far" if len(labels) else "any number of classes"


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
