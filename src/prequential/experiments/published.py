"""Published results: small enough to lie beside the code, and enough to continue from on another machine.

A published experiment is a folder with `result.md`, `results.json`, its figures, and of each finished run

    runs/TRIAL/settings.toml         with the name of the data's file in place of its path
    runs/TRIAL/environment.json      versions, and the fingerprint of the stream
    runs/TRIAL/scores.json           the summary
    runs/TRIAL/scores.safetensors    the sums that all figures are drawn from, without the records of every example

An experiment that is given such folders (`--reuse`) takes runs with the same settings on the same data from there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput, PrequentialError
from prequential.evaluation.records import read_records
from prequential.evaluation.scores import Scores
from prequential.experiments.shared_runs import key_of
from prequential.runs.job import read_result
from prequential.runs.run import open_run_stream
from prequential.runs.run_settings import RunSettings, read_stored_settings, write_settings
from prequential.runs.stored_scores import label_protocol
from prequential.settings import Settings
from prequential.storage.checkpoint import in_one_order, loading, read_checkpoint, write_checkpoint
from prequential.storage.files import make_directory, refuse_links, write_atomically
from prequential.storage.sealed import read_json, sealed_toml, write_sealed
from prequential.streams.spec import StreamSpec

SCORES = "scores.safetensors"
MOST_EXAMPLES = 500_000  # of a stream of tasks: the error and the log-loss of every example are kept up to this length


def publish(folders: Iterable[Path], out: Path) -> list[Path]:
    """Copies what experiments have left behind, without records and checkpoints; returns the new folders.

    Parameters
    ----------
    folders
        The directories of experiments, or folders that hold them.
    out
        Where the published ones are kept, each under the name of its directory.
    """
    found = sorted({path.parent for folder in folders for path in _results_in(folder)})
    if not found:
        raise BadInput(f"there are no results of experiments in {', '.join(map(str, folders))}")
    for directory in found:
        target = out / directory.name
        if target.resolve() == directory.resolve():
            raise BadInput(f"{directory} cannot be published into itself; give another --out")
        make_directory(target)
        for path in (*directory.glob("*.png"), directory / "result.md", directory / "results.json"):
            refuse_links(directory, path)
            write_atomically(target / path.name, path.read_bytes())
        for run in sorted(directory.glob("runs/*/settings.toml")):
            refuse_links(directory, run)
            if read_result(run.parent)["state"] == "finished":
                _publish_run(run.parent, target / "runs" / run.parent.name)
    return [out / directory.name for directory in found]


def _results_in(folder: Path) -> Iterable[Path]:
    return (path for path in (folder / "results.json", *folder.glob("*/results.json")) if path.is_file())


def _publish_run(directory: Path, target: Path) -> None:
    if (directory / SCORES).is_file():  # it was published before
        shutil.copytree(directory, target, dirs_exist_ok=True)
        return
    make_directory(target)
    stored, learner = read_stored_settings(directory / "settings.toml")
    run = replace(RunSettings(**stored), out=None)
    run = replace(run, stream=without_folders(run.stream))
    summary = read_result(directory)
    write_checkpoint(target / SCORES, _sums(directory, summary["classes"]))
    # so that a run that is published again does not change
    write_atomically(target / SCORES, in_one_order((target / SCORES).read_bytes()))
    write_atomically(target / "settings.toml", sealed_toml(write_settings(run, Settings(**learner))))
    environment = read_json(directory / "environment.json")
    environment.pop("command", None)  # it has the machine's own paths
    write_sealed(target / "environment.json", environment)
    scores = read_json(directory / "scores.json")
    write_sealed(target / "scores.json", scores | {"seconds": summary["seconds"]})  # of all sessions


def without_folders(stream: str) -> str:
    """A stream with the names of files in place of their paths.

    >>> without_folders("emnist:/data/emnist47.npz"), without_folders("photos(seed=3)")
    ('emnist:emnist47.npz', 'photos(seed=3)')
    >>> without_folders("geo-images:/data/photos/(records=/data/yfcc.npz, seed=1)")
    'geo-images:photos(records=yfcc.npz, seed=1)'
    """
    return StreamSpec.parse(stream).with_paths(lambda path: Path(path).name)


# The scores of one run.


def _sums(directory: Path, classes: int | None) -> dict[str, Any]:
    """What figures are drawn from: `scores` without the labels, where tasks start, and every example of a short run."""
    scores = Scores.from_records(directory / "records", classes, **label_protocol(directory))
    state = {name: value for name, value in scores.state_dict().items() if name != "by_class"}
    kept: dict[str, Any] = {"scores": _packed(state), "task_starts": scores.task_starts}
    if scores.task_starts is not None and scores.count <= MOST_EXAMPLES:
        correct, nats = every_example(directory / "records")
        kept["every_example"] = {"correct": np.packbits(correct), "log_loss": nats.astype(np.float16)}
    return kept


def every_example(records: Path) -> tuple[np.ndarray, np.ndarray]:
    """Whether each example of a run was predicted correctly, and its log-loss."""
    parts = [batch.columns for batch in read_records(records, ["correct", "log_loss"])]
    correct, nats = (
        np.concatenate([part[i].to_numpy(zero_copy_only=False) for part in parts] or [np.empty(0)]) for i in range(2)
    )
    return correct.astype(bool), nats.astype(np.float64)


def load_scores(directory: Path) -> Scores:
    """The scores of a run, from its records or as they were published."""
    how = label_protocol(directory)
    path = directory / SCORES
    if not path.is_file():
        return Scores.from_records(directory / "records", read_result(directory)["classes"], **how)
    state = read_checkpoint(path, ["scores", "task_starts"])
    with loading(path):
        scores = Scores(state["scores"]["classes"], state["task_starts"], **how)
        scores.load_state_dict(_unpacked(state["scores"]))
    return scores


def _packed(state: Any) -> Any:
    """The state with the examples and right answers of `BinnedSums` as small whole numbers: half the size."""
    if not isinstance(state, dict):
        return state
    if state.keys() == {"group", "sums"}:
        sums = state["sums"]
        return {"group": state["group"], "counts": _small(sums[:2]), "nats": _small(sums[2])}
    return {name: _packed(value) for name, value in state.items()}


def _unpacked(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    if state.keys() == {"group", "counts", "nats"}:
        return {
            "group": state["group"],
            "sums": np.concatenate([state["counts"], state["nats"][None]], dtype=np.float64),
        }
    return {name: _unpacked(value) for name, value in state.items()}


def _small(values: np.ndarray) -> np.ndarray:
    """The same numbers with fewer bits each, where they are whole and not below 0."""
    if not values.size or not np.isfinite(values).all() or (values < 0).any() or (values % 1).any():
        return values
    return values.astype(np.min_scalar_type(int(values.max())))


def load_every_example(directory: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """As `every_example`, from the records of a run or as it was published; None if only sums were published."""
    path = directory / SCORES
    if not path.is_file():
        return every_example(directory / "records")
    state = read_checkpoint(path, ["every_example"]).get("every_example")
    if state is None:
        return None
    nats = state["log_loss"].astype(np.float64)
    return np.unpackbits(state["correct"], count=len(nats)).astype(bool), nats


# Runs to take instead of making them again.


class PublishedRuns:
    """The runs in folders of published results, by what their results depend on.

    Parameters
    ----------
    folders
        Published experiments, or folders that hold them.
    """

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        self._found: dict[str, Path] = {}
        self._fingerprints: dict[str, str] = {}
        for folder in folders:
            if not folder.is_dir():
                raise BadInput(f"there are no published results in {folder}: it is no folder")
            for path in sorted((*folder.glob("runs/*/" + SCORES), *folder.glob("*/runs/*/" + SCORES))):
                refuse_links(folder, path)
                try:
                    if read_result(path.parent)["state"] == "finished":
                        run, learner = read_stored_settings(path.with_name("settings.toml"))
                        self._found[key_of(RunSettings(**run), Settings(**learner))] = path.parent
                except PrequentialError:  # damaged, or of a version that is not known: it is run again
                    continue

    def get(self, run: RunSettings, learner: Settings) -> Path | None:
        """The folder of a run with these settings, if the data is the same that it was made on."""
        found = self._found.get(key_of(replace(run, stream=without_folders(run.stream)), learner))
        if found is None:
            return None
        was = read_json(found / "environment.json")["stream"]["fingerprint"]
        return found if was == self._fingerprint(run, learner.seed) else None

    def _fingerprint(self, run: RunSettings, seed: int) -> str:
        key = key_of(replace(run, learner="last-label"), Settings(seed=seed))  # of any learner
        if key not in self._fingerprints:
            self._fingerprints[key] = open_run_stream(run, seed).fingerprint()
        return self._fingerprints[key]
