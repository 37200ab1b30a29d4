"""A run: a learner over a stream, in a directory from which it can be resumed to the bit."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import os
import platform
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from prequential.errors import BadCheckpoint, BadInput, ColumnWarning, EngineWarning, PrequentialError
from prequential.evaluation.evaluate import evaluate
from prequential.evaluation.late_labels import LateLabels
from prequential.evaluation.metrics import make_metric
from prequential.evaluation.records import RecordWriter
from prequential.evaluation.scores import Scores
from prequential.learners.charges import Charges
from prequential.learners.transformer.distributed import here
from prequential.learners.transformer.engine import Choice
from prequential.native.library import library
from prequential.plots.curves import draw_run
from prequential.registry import make_learner
from prequential.runs.run_settings import RunSettings, read_stored_settings, write_settings
from prequential.settings import Settings
from prequential.storage.checkpoint import CheckpointFolder, loading, read_checkpoint
from prequential.storage.files import (
    DirectoryLock,
    is_temporary,
    make_directory,
    refuse_links,
    remove_temporaries,
    write_atomically,
)
from prequential.storage.sealed import check_toml, read_json, sealed_toml, write_sealed
from prequential.streams.open import OF_A_RUN, open_stream
from prequential.streams.spec import StreamSpec
from prequential.streams.stream import Chunk, Stream
from prequential.trust import names_from

HINTS = 10  # features that are named

# Called with the run after each piece of the stream.
Progress = Callable[["Run"], None]


class Run:
    """A learner, a stream and scores, kept in a directory.

    The directory holds `settings.toml`, `environment.json`, `records/` (Parquet), `checkpoints/`, `scores.json` and
    the pictures.

    Parameters
    ----------
    directory
        An empty or new directory for a new run, or that of an earlier one.
    run, learner
        The settings of a new run; None resumes with those stored in the directory.
    trust
        Whether the settings kept in the directory may ask for what `prequential.trust` does not allow by itself.
    engine
        What computes from here on, if something else than the settings say.
    """

    def __init__(
        self,
        directory: Path,
        run: RunSettings | None = None,
        learner: Settings | None = None,
        *,
        trust: bool = False,
        engine: str | None = None,
    ) -> None:
        self.directory = directory
        stored = directory if run is None or learner is None else None
        self.ranks = here()  # of several processes, the first one writes, and the others help it to learn
        if run is None or learner is None:
            check_toml(directory / "settings.toml")
            given, learning = read_stored_settings(directory / "settings.toml")
            run, learner = RunSettings(**given), Settings(**learning)
        elif self.ranks.first and directory.exists() and any(not _left_over(path) for path in directory.iterdir()):
            raise BadInput(f"{directory} is not empty; prequential resume {directory} resumes a run that is there")
        learner = learner if engine is None else learner.changed(engine=engine)
        self.settings, self.learner_settings = run, learner
        spec = StreamSpec.parse(run.stream)
        examples = run.examples or spec.options.get(OF_A_RUN)
        with names_from(stored, trust=trust), warnings.catch_warnings():
            warnings.simplefilter("ignore", ColumnWarning)  # `describe` and `hints` say it
            self.stream = open_run_stream(run, seed=learner.seed)
        self._absolute = spec.absolute()  # stored, so that the run can be resumed from any directory
        self.length = min(examples or len(self.stream), len(self.stream))
        if not self.length:
            raise BadInput(f"the stream {run.stream} has 0 examples, expected at least 1")
        if run.threads is not None:
            torch.set_num_threads(run.threads)
        with names_from(stored, trust=trust):
            self.learner = make_learner(
                run.learner,
                run.classes or self.stream.classes or (None if stored is None else _stored_classes(stored)),
                settings=learner,
                device=run.device if self.ranks.count == 1 else str(self.ranks.device),
                missing=self.stream.missing,
            )
            metrics = [make_metric(spec) for spec in run.metric or ()]
        self.late = LateLabels(delay=run.delay or 0, batch=run.label_batches or 1)
        how = {"delay": self.late.delay, "label_batches": self.late.batch}
        self.scores = Scores(self.learner.labels.classes, self.stream.task_starts(), metrics=metrics, **how)
        self.records = RecordWriter(directory / "records")
        self.position = 0
        self.seconds = 0.0  # spent so far, over all sessions
        self.stopped = False  # whether a signal asked it to end early
        self._is_new = False  # whether its directory was made by `begin`
        self.warnings: list[str] = []
        self._checkpoints = CheckpointFolder(directory / "checkpoints")
        self._lock = DirectoryLock(directory)
        self._fingerprint = self.stream.fingerprint()

    @property
    def skipped(self) -> int:
        """Rows or images of the data that were left out because they cannot be used."""
        return int(getattr(self.stream, "skipped", 0))

    @property
    def finished(self) -> bool:
        return self.position >= self.length

    @property
    def engine(self) -> str | None:
        """What computes and why, where the learner is one that has a choice."""
        choice = getattr(self.learner, "engine", None)
        return choice.describe() if isinstance(choice, Choice) else None

    def hints(self) -> list[str]:
        """What looks broken in the data, and how many steps could not be taken."""
        sentences = self.learner.hints(getattr(self.stream, "feature_names", None))
        if len(sentences) > HINTS:
            sentences = [*sentences[:HINTS], f"{len(sentences) - HINTS:,} more features have such values"]
        if getattr(self.stream, "left_out", None):
            sentences.append(self.stream.about_ids())  # type: ignore[attr-defined]
        if self.learner.skipped_steps:
            sentences.append(f"{self.learner.skipped_steps:,} gradient steps were not finite and were not taken")
        return sentences

    def begin(self) -> None:
        """Writes what a new run starts with."""
        if not self.ranks.first:
            return
        self._is_new = not self.directory.exists()
        make_directory(self.directory)
        self._take_directory()
        write_atomically(self.directory / "settings.toml", sealed_toml(self._settings_text()))
        self._write_environment()

    def _settings_text(self) -> str:
        return write_settings(replace(self.settings, out=None, stream=self._absolute), self.learner_settings)

    def _take_directory(self) -> None:
        """Locks the directory, and makes sure that everything in it is the run's own."""
        self._lock.take()
        refuse_links(self.directory, self.directory / "records", self.directory / "checkpoints")
        remove_temporaries(self.directory, shared=True)  # a comparison writes here, too

    def _write_environment(self) -> None:
        write_sealed(self.directory / "environment.json", _environment(self))

    def _foreign(self, state: dict[str, Any]) -> str | None:
        """Why a checkpoint is not one of this run, if it is not."""
        kind, config = type(self.learner).__name__, json.loads(json.dumps(self.learner.config()))
        if state.get("kind") != kind:
            return f"it was made by a {state.get('kind')}, expected a {kind}"
        if state["fingerprint"] != self._fingerprint:
            return (
                f"the stream {self.settings.stream} has changed: its fingerprint is {self._fingerprint}, "
                f"but the run was made on {state['fingerprint']}"
            )
        was = {**_defaults(type(self.learner)), **state["config"]}  # an older version did not know all of them
        names = [name for name in {**config, **state["config"]} if name != "engine"]  # `_load` says it
        differing = [name for name in names if was.get(name) != config.get(name)]
        if not differing:
            return None
        return "it was made with " + ", ".join(
            f"{name} {was.get(name)!r}, expected {config.get(name)!r}" for name in differing
        )

    def restore(self, *, set_aside: bool = False) -> None:
        """Goes back to the newest good checkpoint; where there never was one, to the beginning.

        The records up to there are verified. Damaged ones are named and nothing is changed, unless `set_aside` is true.
        """
        try:
            self._restore(set_aside)
        except BaseException:
            self._lock.free()
            raise

    def _restore(self, set_aside: bool) -> None:
        if self.ranks.first:
            self._take_directory()  # first of all: what another process is writing must not be touched
        if self.ranks.first and not _is_whole(self.directory / "environment.json"):  # killed before it was written
            self._write_environment()
        state, refused = self._checkpoints.newest(self._foreign)
        if state is None and refused:  # to begin anew would write over what was found so far
            raise BadCheckpoint(f"{refused[0]}; there is no other to resume from, and nothing was changed")
        self.warnings += [f"{sentence}; using the one before it" for sentence in refused]
        if state is None:
            if self.ranks.first:
                if any((self.directory / "records").glob("*.parquet")):
                    self.warnings.append(f"there is no checkpoint in {self.directory}: the run begins anew")
                self.records.clear()
            return
        assert self._checkpoints.used is not None
        with loading(self._checkpoints.used):
            self._load(state, set_aside)

    def _load(self, state: dict[str, Any], set_aside: bool) -> None:
        positions = {name: state[name][key] for name, key in (("scores", "count"), ("records", "position"))}
        position = int(state["position"])
        if not 0 <= position <= self.length or {*positions.values(), state["learner"]["position"]} != {position}:
            raise ValueError(f"the run is at example {position}, its parts at {positions}, of {self.length} examples")
        for name, now in _numerics(self).items():
            if state["numerics"].get(name) != now:
                self.warnings.append(
                    f"{name} is {now} now and was {state['numerics'].get(name)} before: results will agree, but not "
                    "to the last bit"
                )
        self.learner.replay_from(self.stream)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EngineWarning)  # said here
            self.learner.load_state_dict(state["learner"])
        if note := getattr(self.learner, "engine_note", None):
            self.warnings.append(note)
        if "late" in state:  # a run of an earlier version has none
            self.late.load_state_dict(state["late"], self.stream, position)
        self.scores.load_state_dict(state["scores"])
        if self.ranks.first:
            self.warnings += self.records.load_state_dict(state["records"], set_aside=set_aside)
        self.warnings += self.scores.complete_from_records(self.directory / "records", self.learner.labels.known)
        self.position = position
        self.seconds = float(state["seconds"])

    def execute(self, progress: Progress | None = None) -> Scores:
        """Runs to the end, or until a signal asks to stop; either way everything is saved.

        Where the very first examples are refused, nothing is left of a new run.
        """
        try:
            return self._execute(progress)
        except PrequentialError:
            if self._is_new and not self.position:
                self._discard()
            raise

    def _discard(self) -> None:
        """Takes back what `begin` has written."""
        for name in ("settings.toml", "environment.json", ".lock"):
            (self.directory / name).unlink(missing_ok=True)
        with suppress(OSError):  # something else is in it
            self.directory.rmdir()

    def _execute(self, progress: Progress | None) -> Scores:
        if self.ranks.first:
            self._take_directory()
        with self._lock if self.ranks.first else nullcontext(), _Signals(self):
            saved = begun = time.monotonic()
            before = self.seconds
            starts = self.stream.task_starts()

            def after(position: int, chunk: Chunk, charges: Charges) -> bool:
                nonlocal saved
                tasks = None
                if starts is not None:
                    tasks = np.searchsorted(starts, np.arange(self.position, position), side="right") - 1
                if self.ranks.first:
                    self.records.append(self.position, chunk.y, charges, self.learner.labels.known, tasks)
                self.position = position
                self.seconds = before + time.monotonic() - begun
                if progress is not None:
                    progress(self)
                due = time.monotonic() - saved >= self.settings.checkpoint_seconds
                self.stopped, due = self.ranks.agree(self.stopped, due)
                if self.stopped or due:
                    if not self.finished:  # the end is saved below, after the last steps
                        self.checkpoint()
                    saved = time.monotonic()
                return self.stopped and not self.finished

            if not self.finished:
                evaluate(
                    self.stream,
                    self.learner,
                    start=self.position,
                    stop=self.length,
                    scores=self.scores,
                    after=after,
                    late=self.late,
                )
                if self.finished:
                    self.checkpoint()
            self.finish()
        return self.scores

    def checkpoint(self) -> None:
        """Saves everything that what comes next depends on."""
        learner = self.learner.state_dict()  # all processes have a part in it
        if not self.ranks.first:
            return
        self._checkpoints.write(
            self.position,
            {
                "fingerprint": self._fingerprint,
                "settings": self._settings_text(),
                "numerics": _numerics(self),
                "kind": type(self.learner).__name__,
                "config": self.learner.config(),
                "position": self.position,
                "seconds": self.seconds,
                "learner": learner,
                "late": self.late.state_dict(),
                "scores": self.scores.state_dict(),
                "records": self.records.state_dict(),
            },
        )

    def finish(self) -> None:
        """Writes the records, the scores and the pictures as they are now."""
        if not self.ranks.first:
            return
        self.records.close()
        summary = {
            "finished": self.finished,
            "seconds": self.seconds,
            "macs_per_example": self.learner.macs_per_example(),
            "skipped_steps": self.learner.skipped_steps,
            "engine": self.engine,
            "hints": self.hints(),
            **self.scores.to_dict(),
        }
        for suffix in ("png", "svg"):
            draw_run({self.name: self.scores}, self.directory / f"curves.{suffix}", title=self.title)
        write_sealed(self.directory / "scores.json", summary)  # last: a run that has it has everything

    @property
    def name(self) -> str:
        if self.settings.learner != "transformer":
            return self.settings.learner
        return f"{self.learner_settings.model}-transformer"

    @property
    def title(self) -> str:
        starts = self.stream.task_starts()
        made = "" if starts is None else f": {len(starts)} tasks, labels re-assigned in each"
        return f"{Path(self.settings.stream).name}{made}{self.late.describe()}"


def new_directory(stream: str, base: Path = Path("runs")) -> Path:
    """A directory that does not exist yet, named after the stream and the time."""
    stamp = f"{Path(stream.partition(':')[0]).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        path = base / (stamp if number == 1 else f"{stamp}-{number}")
        if not path.exists():
            return path
    raise BadInput(f"{base / stamp} and 999 more like it exist already")


def open_run_stream(run: RunSettings, seed: int) -> Stream:
    """The stream of a run. The seed of the learner also makes the stream, where that is drawn at random."""
    spec = StreamSpec.parse(run.stream)
    examples = run.examples or spec.options.get(OF_A_RUN)
    is_longer = spec.source == "photos" and (examples or 0) > len(open_stream(spec.source))
    return open_stream(
        spec.without(OF_A_RUN, "seed"),
        label=run.label,
        features=run.features,
        time=run.time,
        group=run.group,
        on_bad_row=run.on_bad_row,
        reading=run.reading,
        seed=spec.options.get("seed", seed),
        tasks=run.tasks,
        task_length=run.task_length,
        ways=run.ways,
        images=run.images,
        download=run.download or None,
        length=examples if is_longer else None,  # made on the fly, so as long as necessary
    )


def _numerics(run: Run) -> dict[str, Any]:
    """What results depend on in their last bits."""
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "device": _device(run),
        "processes": run.ranks.count,
    }


def _device(run: Run) -> str:
    return str(getattr(run.learner, "device", "cpu"))  # simple learners know of no other place


def _stored_classes(directory: Path) -> int | None:
    """The number of classes in the newest checkpoint of a run: in an earlier version it was 100 where not given."""
    for path in reversed(CheckpointFolder(directory / "checkpoints").paths()):
        with suppress(BadCheckpoint, OSError, KeyError, TypeError):
            classes = read_checkpoint(path, ["config"])["config"]["classes"]
            return classes if isinstance(classes, int) else None
    return None


def _environment(run: Run) -> dict[str, Any]:
    names = ("prequential", "torch", "numpy", "pyarrow", "safetensors")
    return {
        "command": ["prequential", *sys.argv[1:]],
        "versions": {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}},
        "seed": run.learner_settings.seed,
        "stream": {"fingerprint": run.stream.fingerprint(), "examples": run.length},
        "processor": {"threads": torch.get_num_threads(), "cores": os.cpu_count(), "machine": platform.machine()},
        "device": _device(run),
        "native_core": library().describe(),
    }


def _defaults(kind: type) -> dict[str, Any]:
    """The arguments of a learner that have a default, as a checkpoint holds them."""
    given = inspect.signature(kind).parameters.values()
    defaults = {parameter.name: parameter.default for parameter in given if parameter.default is not parameter.empty}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in given):
        defaults = {**asdict(Settings()), **defaults}
    return dict(json.loads(json.dumps(defaults)))


def restore_settings(directory: Path) -> None:
    """Writes the settings of a run again that are missing, from its newest checkpoint that can be read."""
    path = directory / "settings.toml"
    if path.exists() or path.is_symlink():
        return
    for checkpoint in reversed(CheckpointFolder(directory / "checkpoints").paths()):
        try:
            text = read_checkpoint(checkpoint, ["settings"]).get("settings")
        except BadCheckpoint:
            continue
        if isinstance(text, str):
            with DirectoryLock(directory):
                write_atomically(path, sealed_toml(text))
            return
    raise BadInput(f"{directory} holds no run: there is no settings.toml in it")


def _is_whole(path: Path) -> bool:
    try:
        return bool(read_json(path))
    except (FileNotFoundError, BadInput):
        return False


def _left_over(path: Path) -> bool:
    """Whether a file is what a process that was killed while it started may leave."""
    return path.name == ".lock" or is_temporary(path)


class _Signals:
    """Turns Ctrl-C and a request to end into a flag, so that the current chunk is finished and everything saved."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._stop)
            except ValueError:  # not in the main thread: signals are somebody else's
                return

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.run.stopped and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.run.stopped = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
