"""The command line. Heavy imports wait until a command needs them, so that help is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import App, Group, Parameter

from prequential.errors import PrequentialError
from prequential.running.settings import RunSettings, read_settings
from prequential.settings import Settings

app = App(
    name="prequential",
    help="Supervised online continual learning with transformers: predict, be charged, learn.",
    help_format="markdown",
)
app.register_install_completion_command(add_to_startup=False)
RUN = Group("The run", sort_key=1)
LEARNER = Group("The learner", sort_key=2)


@app.command
def run(
    *,
    settings: Annotated[RunSettings, Parameter(name="*", group=RUN)] = RunSettings(),  # noqa: B008 (frozen)
    learner: Annotated[Settings, Parameter(name="*", group=LEARNER)] = Settings(),  # noqa: B008
    config: Annotated[Path | None, Parameter(group=RUN)] = None,
) -> None:
    """Run a learner over a stream: each example is predicted, charged, and only then learnt.

    Without arguments: 100 tasks of 200 handwritten digits, their labels re-assigned at random in every task.

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


def _go(work: Run, *, begin: bool) -> None:  # type: ignore[name-defined]  # noqa: F821
    from rich.console import Console

    from prequential.running.progress import ShowProgress, describe

    console = Console(highlight=False)
    if begin:
        work.begin()
    else:
        work.restore()
    for warning in work.warnings:
        console.print(f"[yellow]{warning}[/]")
    learner = work.learner_settings
    console.print(
        f"{work.title} · {work.length:,} examples, {work.learner.labels.capacity} classes · {learner.model}-transformer, "
        f"{learner.depth} × {learner.width}, window {learner.window_examples} examples, {learner.streams} streams"
    )
    if work.position and not work.finished:
        console.print(f"going on at example {work.position:,}")
    with ShowProgress(console) as progress:
        scores = work.go(progress)
    if not work.finished:
        console.print(f"stopped at example {work.position:,}; go on with: prequential resume {work.directory}")
    for line in describe(scores):
        console.print(line)
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
    """The settings of the file given with --config, checked, as defaults of the flags."""
    for i, argument in enumerate(arguments):
        if argument == "--config" or argument.startswith("--config="):
            path = argument.partition("=")[2] or (arguments[i + 1] if i + 1 < len(arguments) else "")
            on_run, on_learner = read_settings(Path(path))
            flags = {name.replace("_", "-"): value for name, value in {**on_run, **on_learner}.items()}
            return (cyclopts.config.Dict({"run": flags}, source=path),)
    return ()


if __name__ == "__main__":
    main()
