"""What the page of a report shows, as JSON values."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prequential.evaluation.class_scores import TOP
from prequential.evaluation.scores import Scores
from prequential.plots.curves import groups_of_tasks, points_within_task
from prequential.plots.style import short_number, short_stream_name
from prequential.reports.class_data import class_data
from prequential.reports.rounding import finite, rounded
from prequential.reports.run_reader import RunReader

POINTS = 65536  # of all curves together, so that a page of many runs stays small
FEWEST_POINTS = 1024  # of a curve; a quarter of it where there are many
MANY = 64  # runs: with more of them, a page leaves out what is inside their tasks
INDEX = 12  # runs: with more of them, a page begins with an index
CELLS = 60_000  # of all heat maps together
CELL = 5  # examples a cell of a heat map stands for at least; single answers are but noise
TASKS = 400  # points of the curve over tasks
SAME_RESULTS = (
    "out",
    "checkpoint_seconds",
    "device",
    "threads",
    "engine",
    "download",
)  # settings that are no reason for another name
NAMED_BY = 3  # a run is named after so many settings at most


def page_data(readers: Sequence[RunReader], *, index: bool = False) -> dict[str, Any]:
    """Everything the page shows of these runs.

    Parameters
    ----------
    readers
        The runs, refreshed.
    index
        Whether the page begins with an index of the runs to pick from, even if they are few.
    """
    differing = _differing(readers)
    streams = list(dict.fromkeys(reader.run_settings.stream for reader in readers))
    groups = group_names(readers)
    names = list(dict.fromkeys(groups))
    many = len(readers) > MANY
    points = max(FEWEST_POINTS // (4 if many else 1), POINTS // max(len(readers), 1))
    rows = max(20, min(100, CELLS // (40 * max(len(readers), 1))))
    runs = []
    for reader, group in zip(readers, groups, strict=True):
        run = _about(reader)
        several = groups.count(group) > 1
        run |= {"group": names.index(group), "stream": streams.index(reader.run_settings.stream)}
        run["name"] = f"{group}, seed {reader.settings.seed}" if several else group
        run["differing"] = [setting_text(reader.all_settings[name]) for name in differing]
        if reader.sums is not None:
            run |= _numbers(reader, reader.sums.scores)
            run["curve"] = _curve(*reader.sums.curve(points))
            run["calibration"] = _calibration(reader.sums.scores)
            if reader.sums.scores.has_classes:
                run["classScores"] = class_data(reader.sums.scores, TOP if len(readers) <= INDEX else TOP // 2)
            if reader.sums.scores.task_count and not many:
                run["inside"] = _inside_tasks(reader.sums.scores, rows)
        runs.append(run)
    return {
        "index": len(readers) > 1 and (index or len(readers) > INDEX),
        "streams": [short_stream_name(stream) for stream in streams],
        "groups": names,
        "differing": [name.replace("_", "-") for name in differing],
        "runs": runs,
    }


def group_names(readers: Sequence[RunReader]) -> list[str]:
    """A short name for each run; runs that differ in nothing but the seed share one."""
    left_out = (*SAME_RESULTS, "learner", "model", "seed", "stream")
    kinds = [(learner_name(reader), _stream(reader)) for reader in readers]
    alike: dict[tuple[str, str], list[RunReader]] = {}
    for reader, kind in zip(readers, kinds, strict=True):
        alike.setdefault(kind, []).append(reader)
    varied = {kind: [name for name in _differing(some) if name not in left_out] for kind, some in alike.items()}
    exact = {  # settings whose rounded values could not be told apart
        (*kind, name)
        for kind, names in varied.items()
        for name in names
        if len({setting_text(v) for v in _values(alike[kind], name)})
        < len({str(v) for v in _values(alike[kind], name)})
    }
    found = []
    for reader, kind in zip(readers, kinds, strict=True):
        if len(varied[kind]) > NAMED_BY:
            found.append(f"{kind[0]} ({_short_path(reader.directory)})")
            continue
        values = reader.all_settings
        texts = [
            f"{name.replace('_', '-')} {setting_text(values[name], exact=(*kind, name) in exact)}"
            for name in varied[kind]
        ]
        found.append(", ".join([kind[0], *texts]))
    # runs that are the same in everything, the seed included, are told apart by where they are
    whole = [(name, _stream(reader), reader.settings.seed) for name, reader in zip(found, readers, strict=True)]
    times = Counter(whole)
    return [
        f"{name} ({_short_path(reader.directory)})" if times[key] > 1 else name
        for name, key, reader in zip(found, whole, readers, strict=True)
    ]


def _values(readers: Sequence[RunReader], setting: str) -> list[Any]:
    return [reader.all_settings[setting] for reader in readers]


def _stream(reader: RunReader) -> str:
    return reader.run_settings.stream


def _short_path(directory: Path) -> str:
    return directory.resolve().name


def learner_name(reader: RunReader) -> str:
    """What learned in a run."""
    learner = reader.run_settings.learner
    return f"{reader.settings.model}-transformer" if learner == "transformer" else learner


def _differing(readers: Sequence[RunReader]) -> list[str]:
    """The settings that are not the same in all runs."""
    every = [reader.all_settings for reader in readers]
    return [name for name in every[0] if any(settings[name] != every[0][name] for settings in every)] if every else []


def _about(reader: RunReader) -> dict[str, Any]:
    """What a run is and how to do it again."""
    environment, summary = reader.environment, reader.summary
    stream, processor = environment.get("stream", {}), environment.get("processor", {})
    given = {name: value for name, value in reader.all_settings.items() if value is not None}
    return {
        "path": str(reader.directory),
        "learner": learner_name(reader),
        "seed": reader.settings.seed,
        "when": _begun(reader.directory),
        "state": "finished" if summary.get("finished") else "unfinished",
        "failure": str(summary.get("why", "")) if summary.get("state") == "failed" else "",
        "length": stream.get("examples"),
        "command": shlex.join(str(word) for word in environment.get("command", [])),
        "fingerprint": str(stream.get("fingerprint", "")),
        "versions": {str(name): str(version) for name, version in environment.get("versions", {}).items()},
        "computed": {
            "device": str(environment.get("device", "")),
            **{str(name): str(value) for name, value in processor.items()},
        },
        "settings": {name.replace("_", "-"): setting_text(value, exact=True) for name, value in given.items()},
    }


def _begun(directory: Path) -> float | None:
    """When a run was begun, in seconds since 1970."""
    try:
        return round((directory / "environment.json").stat().st_mtime)
    except OSError:
        return None


def _numbers(reader: RunReader, scores: Scores) -> dict[str, Any]:
    """The numbers of the headline."""
    macs, classes = reader.summary.get("macs_per_example"), reader.classes
    numbers: dict[str, Any] = {
        "examples": scores.count,
        "classes": classes,
        "accuracy": scores.accuracy,
        "loss": finite(scores.log_loss),
        "bits": finite(scores.bits),
        "compression": finite(scores.compression) if classes else None,
        "calibrationError": finite(scores.calibration_error),
        "balanced": finite(scores.balanced_accuracy),
        "f1": finite(scores.macro_f1),
        "kappa": finite(scores.kappa),
        "kappaM": finite(scores.kappa_m),
        "kappaT": finite(scores.kappa_temporal),
        "majority": finite(scores.majority_accuracy),
        "lastLabel": finite(scores.last_label_accuracy),
        "seconds": reader.summary.get("seconds"),
        "macs": None if macs is None else macs * scores.count,
        "tasks": scores.task_count,
    }
    if scores.task_count:
        last = scores.to_dict()["last_tasks"]
        numbers["last"] = {
            "what": f"last {last['tasks']} tasks" if last["tasks"] > 1 else "last task",
            "accuracy": last["accuracy"],
            "loss": last["log_loss"],
        }
    else:
        latest = scores.curve(window=max(1, scores.count // 10))
        numbers["last"] = {
            "what": "last 10 %",
            "accuracy": float(latest["accuracy"][-1]),
            "loss": finite(float(latest["log_loss"][-1])),
        }
    return numbers


def _curve(position: np.ndarray, correct: np.ndarray, nats: np.ndarray) -> dict[str, list[int]]:
    """The sums up to each position, as differences: short numbers. Nats are in thousandths, and end before infinity."""
    finite_nats = np.isfinite(nats)
    thousandths = np.round(nats[finite_nats] * 1000).astype(np.int64)
    differences = {"x": position, "right": correct, "nats": thousandths}
    return {name: np.diff(column, prepend=0).tolist() for name, column in differences.items()}


def _calibration(scores: Scores) -> dict[str, list[Any]]:
    table = scores.calibration()
    return {
        "confidence": rounded(table["confidence"]),
        "accuracy": rounded(table["accuracy"]),
        "count": table["count"].tolist(),
    }


def _inside_tasks(scores: Scores, rows: int) -> dict[str, Any]:
    """Accuracy and loss by task, by position in early, middle and late tasks, and by both."""
    size, starts = groups_of_tasks(scores.task_count)
    few = []
    for i, start in enumerate(starts):
        table = scores.within_task(start, start + size - 1)
        position, accuracy = points_within_task(table)
        loss = points_within_task({**table, "accuracy": table["log_loss"]})[1]
        when = "last" if i == len(starts) - 1 else ("first", "middle")[i]
        few.append(
            {
                "what": f"{when} {size} tasks" if size > 1 else f"{when} task",
                "when": when,
                "x": rounded(position),
                "accuracy": rounded(accuracy),
                "loss": rounded(loss),
            }
        )
    return {"few": few, "byTask": _by_task(scores), "map": _map(scores, rows)}


def _by_task(scores: Scores) -> dict[str, list[Any]]:
    """The tasks in order, neighbors averaged where there are many."""
    cells = scores.heat_map(TASKS)
    columns = [0]  # all positions together
    return {
        "x": rounded((cells["first_task"] + cells["last_task"]) / 2),
        "accuracy": rounded(_means(cells["accuracy"], cells["count"], columns)[:, 0]),
        "loss": rounded(_means(cells["log_loss"], cells["count"], columns)[:, 0]),
    }


def _map(scores: Scores, rows: int) -> dict[str, Any]:
    """Tasks by positions; neighboring positions share a cell until it stands for a few examples."""
    cells = scores.heat_map(rows)
    typical = np.median(cells["count"], axis=0)
    columns = [0]
    for i in range(1, len(typical)):
        if typical[columns[-1] : i].sum() >= CELL and typical[i:].sum() >= CELL:
            columns.append(i)
    ends = [*columns[1:], len(typical)]
    return {
        "firstTask": cells["first_task"].tolist(),
        "lastTask": cells["last_task"].tolist(),
        "first": cells["first"][columns].tolist(),
        "last": [int(cells["last"][end - 1]) for end in ends],
        "accuracy": [rounded(row, 3) for row in _means(cells["accuracy"], cells["count"], columns)],
        "loss": [rounded(row, 3) for row in _means(cells["log_loss"], cells["count"], columns)],
    }


def _means(values: np.ndarray, count: np.ndarray, columns: list[int]) -> np.ndarray:
    """The means over all examples of columns that are joined; each joint one begins at one of these."""
    total = np.add.reduceat(np.where(count > 0, values, 0.0) * count, columns, axis=1)
    held = np.add.reduceat(count, columns, axis=1)
    means: np.ndarray = np.divide(total, held, out=np.full(total.shape, np.nan), where=held > 0)
    return means


def setting_text(value: Any, *, exact: bool = False) -> str:
    """A setting; numbers are rounded unless they must be exact."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and not exact:
        return short_number(value)
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
