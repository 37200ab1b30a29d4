"""Numbers of a run for TensorBoard, MLflow and Weights & Biases, as far as their packages are installed.

A sink only listens: one that fails is turned off with a sentence, and the run goes on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from prequential.errors import MissingExtra, one_line
from prequential.evaluation.scores import CLASS_NUMBERS, Scores

if TYPE_CHECKING:
    from prequential.runs.run import Progress, Run

POINTS = 200  # how often a run is logged
PROJECT = "prequential"  # what the experiment or project is called
RUNNING = ("accuracy", "log_loss", *CLASS_NUMBERS)  # over all examples so far


class Sink(Protocol):
    """Where numbers go."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Takes the numbers after so many examples."""

    def finish(self, summary: Mapping[str, float], pictures: Sequence[Path]) -> None:
        """Takes the numbers at the end."""


class TensorBoard:
    """Writes event files to the folder `tensorboard` of a run: `tensorboard --logdir runs` shows all of them."""

    def __init__(self, directory: Path, name: str, settings: Mapping[str, Any], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # what was logged after the checkpoint that a run resumes from is logged again
        make: Any = SummaryWriter
        self.writer = make(str(directory / "tensorboard"), purge_step=step or None)
        if not step:
            self.writer.add_text("settings", "\n".join(f"    {key} = {value}" for key, value in settings.items()))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for key, value in numbers.items():
            self.writer.add_scalar(key, value, step)
        self.writer.flush()

    def finish(self, summary: Mapping[str, float], pictures: Sequence[Path]) -> None:
        self.writer.close()


class MLflow:
    """Logs to the server that MLFLOW_TRACKING_URI names, else to MLflow's own local store; a resumed run goes on there.

    For a server `mlflow-skinny` is enough; MLflow's local store needs all of `mlflow`.
    """

    def __init__(self, directory: Path, name: str, settings: Mapping[str, Any], step: int) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self.client, self._metric = MlflowClient(), Metric
        found = self.client.get_experiment_by_name(PROJECT)
        experiment = found.experiment_id if found else self.client.create_experiment(PROJECT)
        place = str(directory.resolve())
        known = self.client.search_runs([experiment], f"tags.directory = '{place}'") if "'" not in place else []
        if known:
            self.id = known[0].info.run_id
        else:
            self.id = self.client.create_run(experiment, tags={"directory": place}, run_name=name).info.run_id
            for key, value in settings.items():
                self.client.log_param(self.id, key, str(value)[:500])
        self.client.update_run(self.id, status="RUNNING")

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self.client.log_batch(self.id, [self._metric(key, value, now, step) for key, value in numbers.items()])

    def finish(self, summary: Mapping[str, float], pictures: Sequence[Path]) -> None:
        for picture in pictures:
            self.client.log_artifact(self.id, str(picture))
        self.client.set_terminated(self.id)


class WandB:
    """Logs to Weights & Biases: to files in the run's directory, or to their server if WANDB_MODE is online."""

    def __init__(self, directory: Path, name: str, settings: Mapping[str, Any], step: int) -> None:
        import wandb

        place = str(directory.resolve())
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            id=hashlib.sha256(place.encode()).hexdigest()[:16],  # a resumed run goes on with the same one
            resume="allow",
            dir=place,
            config=dict(settings),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self.run.log(dict(numbers), step=step)

    def finish(self, summary: Mapping[str, float], pictures: Sequence[Path]) -> None:
        self.run.summary.update(dict(summary))
        self.run.finish()


SINKS: dict[str, Callable[[Path, str, Mapping[str, Any], int], Sink]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def check_sinks(names: Sequence[str]) -> None:
    """Raises where the package of a sink is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(f"--{name}", name)


def together(*progress: Progress) -> Progress:
    """Calls all of these with a run."""

    def call(run: Run) -> None:
        for each in progress:
            each(run)

    return call


class Sinks:
    """Logs a run to some sinks while it goes on; called with the run after each piece of the stream.

    Parameters
    ----------
    names
        Those of `SINKS`.
    run
        The run, begun or restored.
    say
        Told what went wrong.
    """

    def __init__(self, names: Sequence[str], run: Run, say: Callable[[str], None]) -> None:
        self._say = say
        self._every = max(1, run.length // POINTS)
        self._next = run.position - run.position % self._every + self._every
        settings = {**asdict(run.settings), **asdict(run.learner_settings)}
        given = {key: value for key, value in settings.items() if value is not None}
        self._sinks: dict[str, Sink] = {}
        for name in names if run.ranks.first else ():
            self._try(name, lambda name=name: self._open(name, run, given))  # type: ignore[misc]

    def _open(self, name: str, run: Run, settings: dict[str, Any]) -> None:
        logging.getLogger(name).setLevel(logging.ERROR)  # the terminal is the run's
        self._sinks[name] = SINKS[name](run.directory, run.directory.name, settings, run.position)

    def __call__(self, run: Run) -> None:
        if run.position < self._next and not run.finished:
            return
        self._next = run.position - run.position % self._every + self._every
        numbers = numbers_of(run.scores) | {"seconds": run.seconds}
        for name, sink in list(self._sinks.items()):
            self._try(name, lambda sink=sink: sink.log(run.position, numbers))  # type: ignore[misc]

    def finish(self, run: Run) -> None:
        """Ends the logs, of a run that is finished or stopped."""
        summary = numbers_of(run.scores)
        pictures = [path for path in [run.directory / "curves.png"] if path.is_file()]
        for name, sink in list(self._sinks.items()):
            self._try(name, lambda sink=sink: sink.finish(summary, pictures))  # type: ignore[misc]

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever goes wrong there must not end the run
            self._sinks.pop(name, None)
            self._say(f"{name} is turned off: {type(error).__name__}: {one_line(error, 200)}")


def numbers_of(scores: Scores) -> dict[str, float]:
    """The numbers that are logged: over all examples so far, and of the latest ones."""
    numbers = {name: getattr(scores, name) for name in RUNNING}
    if scores.count:
        curve = scores.curve()
        numbers |= {f"latest_{name}": float(curve[name][-1]) for name in ("accuracy", "log_loss")}
    numbers |= {name: value for name, value in scores.metrics.values().items() if isinstance(value, float)}
    return {name: value for name, value in numbers.items() if abs(value) < float("inf")}
