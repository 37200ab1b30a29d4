"""The learner that is kept somewhere: in the directory of a run, in a home, or in a saved file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from prequential.errors import BadCheckpoint, BadInput, PrequentialError
from prequential.imports import is_object_name
from prequential.learners.base import OnlineLearner
from prequential.learners.home import holds_learner
from prequential.learners.transformer.learner import Learner
from prequential.registry import is_transformer, learner_class
from prequential.runs.run import open_run_stream
from prequential.runs.run_settings import RunSettings, read_stored_settings, stored_settings
from prequential.settings import Settings
from prequential.specs import parse_call
from prequential.storage.checkpoint import CheckpointFolder, loading, read_checkpoint
from prequential.streams.stream import Chunk, Stream
from prequential.trust import names_from, stored_arguments

EXPECTED = "expected the directory of a run, a home, or a file that save(path) wrote"


def open_learner(path: str | Path, *, device: str = "auto", trust: bool = False) -> OnlineLearner:
    """The learner of a run that is finished or was stopped, of a home, or of a saved file; also `prequential.open`.

    The learner of a run is as it was at the newest checkpoint, and nothing in the run's directory is ever changed. It
    predicts at once. A learner that replays its past reads it from the run's stream, which is opened when it learns for
    the first time: it must still be there and hold the same examples.

    Parameters
    ----------
    path
        A directory or a file.
    device
        Where to compute: auto, cpu, cuda, cuda:1, ...
    trust
        Whether what is kept there may name code of one's own to import, or data to fetch; see SECURITY.md.

    Examples
    --------
    >>> import tempfile
    >>> from prequential import Majority
    >>> learner = Majority(classes=2)
    >>> learner.learn([0.5], "spam")
    >>> path = tempfile.mkdtemp() + "/learner"
    >>> learner.save(path)
    >>> open_learner(path).predict([0.1])
    'spam'
    """
    place = Path(path)
    if place.is_file():
        return _of_file(place, device, trust)
    if not place.is_dir():
        raise BadInput(f"{place} does not exist; {EXPECTED}")
    if (place / "settings.toml").exists() or any(CheckpointFolder(place / "checkpoints").paths()):
        return _of_run(place, device, trust)
    if holds_learner(place):
        return Learner.open(place, device=device, trust=trust)
    raise BadInput(f"{place} holds no learner; {EXPECTED}")


open = open_learner  # what users call: prequential.open(path)


def _of_file(path: Path, device: str, trust: bool) -> OnlineLearner:
    saved = read_checkpoint(path, ["kind", "module", "config", "fingerprint", "home"])
    for key, what in (("fingerprint", "checkpoint of a run"), ("home", "save of a home")):
        if key in saved:
            raise BadInput(f"{path} is a {what}; open the directory {path.parent.parent} instead")
    name, module = saved.get("kind"), saved.get("module")
    if not isinstance(name, str) or not isinstance(module, str | None):
        raise BadCheckpoint(f"{path} does not say what kind of learner it holds")
    with names_from(path, trust=trust):
        kind = learner_class(name, module)
        if issubclass(kind, Learner):
            return kind.load(path, device=device, trust=trust)
        return kind.load(path)


def _of_run(directory: Path, device: str, trust: bool) -> OnlineLearner:
    folder = CheckpointFolder(directory / "checkpoints")
    state, refused = folder.newest()
    if state is None and folder.paths():  # a run that goes on may have replaced them while they were looked at
        state, refused = folder.newest()
    if state is None:
        raise BadInput(refused[0] if refused else f"the run in {directory} has saved no checkpoint yet")
    assert folder.used is not None
    run, settings = _settings(directory, state)
    with loading(folder.used), names_from(directory, trust=trust):
        spec = parse_call(run.learner)[0]
        kind = _class_of(spec, str(state["kind"]))
        more: dict[str, Any] = {"device": device} if issubclass(kind, Learner) else {}
        learner = kind(**stored_arguments(kind, state["config"], folder.used), **more)
        stream = RunStream(directory, run, settings, str(state["fingerprint"]), learner.missing, trust=trust)
        learner.replay_from(stream)
        learner.load_state_dict(state["learner"])
    learner.replay_from(None)  # what it learns from here on is not from there
    return learner


def stream_of_run(directory: Path, *, trust: bool = False) -> Stream:
    """The stream of a run, if it is still there and holds the same examples."""
    state, _ = CheckpointFolder(directory / "checkpoints").newest()
    if state is None:
        raise BadInput(f"the run in {directory} has saved no checkpoint yet")
    return RunStream(directory, *_settings(directory, state), str(state["fingerprint"]), False, trust=trust).stream


def _class_of(spec: str, name: str) -> type[OnlineLearner]:
    """The class of a run's learner: one of one's own is where the settings say it is."""
    if is_object_name(spec) and not is_transformer(spec):
        module, _, found = spec.partition(":")
        if found == name:
            return learner_class(name, module)
    return learner_class(name)


def _settings(directory: Path, state: dict[str, Any]) -> tuple[RunSettings, Settings]:
    """The settings of a run; where their file is gone, as a checkpoint has them."""
    path = directory / "settings.toml"
    if path.exists():
        run, learner = read_stored_settings(path)
    else:
        run, learner = stored_settings(tomllib.loads(str(state["settings"])), path)
    return RunSettings(**run), Settings(**learner)


class RunStream(Stream):
    """The stream of a run, opened when it is first read; it must be the one that the run was made on.

    Parameters
    ----------
    directory
        That of the run.
    run, learner
        Its settings.
    fingerprint
        Of the stream that the run was made on.
    missing
        Whether features may be NaN.
    trust
        Whether the settings may ask for what `prequential.trust` does not allow by itself.
    """

    def __init__(
        self,
        directory: Path,
        run: RunSettings,
        learner: Settings,
        fingerprint: str,
        missing: bool,
        *,
        trust: bool = False,
    ) -> None:
        self.directory, self.missing = directory, missing
        self._run, self._learner, self._fingerprint, self._trust = run, learner, fingerprint, trust
        self._stream: Stream | None = None

    @property
    def stream(self) -> Stream:
        """The stream itself."""
        if self._stream is None:
            try:
                with names_from(self.directory, trust=self._trust):
                    stream = open_run_stream(self._run, seed=self._learner.seed)
                found = stream.fingerprint()
            except PrequentialError as error:
                raise BadInput(self._sentence(f"which cannot be read: {error}")) from None
            if found != self._fingerprint:
                raise BadInput(self._sentence(f"which has changed: {found}, expected {self._fingerprint}"))
            self._stream = stream
        return self._stream

    def _sentence(self, why: str) -> str:
        return f"to learn on, the learner of {self.directory} reads its past from {self._run.stream}, {why}"[:300]

    def __len__(self) -> int:
        return len(self.stream)

    def _read(self, start: int, stop: int) -> Chunk:
        return self.stream.read(start, stop)

    def fingerprint(self) -> str:
        return self._fingerprint
