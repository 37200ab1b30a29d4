"""The settings of a run besides the learner's own, and how all of them are kept in one TOML file."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from cyclopts import Group, Parameter

from prequential.errors import BadSetting, short
from prequential.renames import REMOVED, SETTINGS, warn_of, without_warning
from prequential.settings import LARGEST, Settings, say_number
from prequential.specs import check_kinds, nearest
from prequential.storage.migrations import FORMAT, migrate_settings
from prequential.storage.toml import read_toml

MOST_THREADS = 1024
OF_STREAM = Parameter(group=Group("The stream", sort_key=2))  # where help shows these options
# A resumed run gives the same results with others, to the last bit or to rounding.
MAY_CHANGE = ("checkpoint_seconds", "device", "threads", "out", "engine")


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """How a stream is read and when its labels come: the same for a run, a comparison, a sweep and an experiment."""

    tasks: Annotated[int | None, OF_STREAM] = None
    """Streams made of tasks: how many; 100 by default."""
    task_length: Annotated[int | None, OF_STREAM] = None
    """Streams made of tasks: examples in each; 200 digits by default, 1000 of other images."""
    ways: Annotated[int | None, OF_STREAM] = None
    """Streams made of tasks: classes in each; 10 by default."""
    examples: Annotated[int | None, OF_STREAM] = None
    """Stop after so many examples of the stream."""
    delay: Annotated[int | None, OF_STREAM] = None
    """Labels come late: that of row t is given after the prediction of row t + DELAY."""
    label_batches: Annotated[int | None, OF_STREAM] = None
    """Labels come late: so many rows are predicted, then their labels arrive together."""
    classes: Annotated[int | None, OF_STREAM] = None
    """How many labels there can be; by default what the stream says, else any number."""
    label: Annotated[str | None, OF_STREAM] = None
    """Tables: the column to predict."""
    features: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=()), OF_STREAM] = None
    """Tables: the columns to predict from, apart or with commas; by default all others."""
    time: Annotated[str | None, OF_STREAM] = None
    """Tables: the column that gives the order."""
    group: Annotated[str | None, OF_STREAM] = None
    """Tables: a column that names the user or group of a row."""
    reading: Annotated[Literal[1, 2, 3], OF_STREAM] = 3
    """How streams are read; earlier runs go on with 1 (tables as in version 0.1) or 2 (the first fit of `photos`)."""
    images: Annotated[Path | None, OF_STREAM] = None
    """CLOC: the folder that the paths in the metadata start from."""
    download: Annotated[bool, Parameter(negative=()), OF_STREAM] = False
    """EMNIST and CIFAR-100 without a path: fetch the official files."""
    on_bad_row: Annotated[Literal["stop", "skip"], OF_STREAM] = "stop"
    """Own data: what to do at a row that cannot be used."""
    metric: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=()), OF_STREAM] = None
    """Metrics beside the scores, each as module:name, such as river.metrics:MacroF1 or one of your own."""

    def given_options(self) -> dict[str, Any]:
        """Those that differ from the defaults: what was given, as far as one can see.

        >>> StreamSettings(label="up", delay=3).given_options()
        {'delay': 3, 'label': 'up'}
        """
        found = {field.name: (getattr(self, field.name), field.default) for field in fields(StreamSettings)}
        return {name: value for name, (value, default) in found.items() if value != default}


@dataclass(frozen=True, kw_only=True)
class RunSettings(StreamSettings):
    """What a run reads, where it computes and what it leaves behind."""

    stream: str = "digits"
    """Where the examples come from: digits, or the path of your data, or a name and a path (emnist:PATH, ...). Options in
    brackets: "prices.csv(delimiter=';')"."""
    learner: str = "transformer"
    """What learns: transformer, a baseline by name (last-label, er, kalman, river:CLASS, ...), or a class of your own as
    MODULE:CLASS. Options in parentheses: "majority(window=50)"."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1, ..."""
    threads: int | None = None
    """Threads of the processor to use; by default all."""
    checkpoint_seconds: float = 20.0
    """How often the run is saved."""
    out: Path | None = None
    """Directory for the results; by default a new one in runs/."""

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        check_kinds("the run", given, HINTS["run"])
        for name, value in given.items():
            if not _can_be_kept(value):
                raise BadSetting(f"{name} ({short(value)}) is no text: it has characters that UTF-8 has not")
        for name, low in (
            ("tasks", 1),
            ("task_length", 1),
            ("ways", 1),
            ("examples", 1),
            ("classes", 1),
            ("delay", 0),
            ("label_batches", 1),
            ("threads", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < low:
                raise BadSetting(f"{name} ({say_number(value)}) must be at least {low}")
            if value is not None and value > (most := MOST_THREADS if name == "threads" else LARGEST):
                raise BadSetting(f"{name} ({say_number(value)}) must be at most {most:,}")
        if self.delay and (self.label_batches or 1) > 1:
            raise BadSetting(f"delay ({self.delay}) and label_batches ({self.label_batches}) cannot both be given")
        if not self.checkpoint_seconds >= 0:
            raise BadSetting(f"checkpoint_seconds ({self.checkpoint_seconds}) must be at least 0")


def _can_be_kept(value: Any) -> bool:
    """Whether a setting can be written to a file; names of files and arguments may be any bytes."""
    try:
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, (str, Path)):
                str(text).encode()
    except UnicodeEncodeError:
        return False
    return True


HINTS: dict[str, dict[str, Any]] = {
    "run": typing.get_type_hints(RunSettings),
    "learner": typing.get_type_hints(Settings),
}


def write_settings(run: RunSettings, learner: Settings, **more: dict[str, Any]) -> str:
    """Both kinds of settings as TOML, settings that are not set left out, after other tables."""
    tables = {"run": asdict(run), "learner": asdict(learner)}
    for table in tables.values():
        for name, value in list(table.items()):
            if value is None:
                del table[name]
            elif isinstance(value, Path):
                table[name] = str(value)
    return tomli_w.dumps({"format": FORMAT, **more, **tables})


def read_settings(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The run's and the learner's settings given in a user's TOML file, in [run] and [learner] or at the top level."""
    content = read_toml(path)
    return stored_settings(content, path) if "format" in content else split_settings(content, path)


def read_stored_settings(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The run's and the learner's settings in a file that a run wrote, of this version or an earlier one."""
    return stored_settings(read_toml(path), path)


def stored_settings(content: dict[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The run's and the learner's settings among what the program wrote to a TOML file."""
    version = content.pop("format", 2)  # the first that is not written there
    if not isinstance(version, int) or not 2 <= version <= FORMAT:
        raise BadSetting(f"{path} has format {version!r}, expected up to {FORMAT}: a later version may have made it")
    with without_warning():  # a user may have edited it
        if isinstance(learner := content.get("learner"), dict):
            content = {**content, "learner": migrate_settings(learner, version)}
        run, learning = split_settings(content, path)
        return {"reading": 1, **run}, learning  # a file that does not say it is of version 0.1


def split_settings(content: dict[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The run's and the learner's settings among what a TOML file holds, each checked for its place and its kind."""
    given: dict[str, dict[str, Any]] = {"run": {}, "learner": {}}
    for table, name, value in placed_settings(content, path):
        hint = HINTS[table][name]
        if hint == Path | None and isinstance(value, str):
            value = Path(value)
        check_kinds(str(path), {name: value}, HINTS[table])
        given[table][name] = value
    return given["run"], given["learner"]


def placed_settings(content: dict[str, Any], path: Path | str) -> Iterator[tuple[str, str, Any]]:
    """Table, name and value of each setting; one that is unknown, in the wrong table or given twice is refused."""
    tables = {table: content[table] for table in HINTS if isinstance(content.get(table), dict)}
    flat = {name: value for name, value in content.items() if name not in tables}  # `learner` can be the name of one
    seen: dict[str, tuple[str, str]] = {}
    old: list[str] = []
    for place, values in [("", flat), *tables.items()]:
        for raw, value in values.items():
            written = raw.replace("-", "_")
            if written in REMOVED:
                old += [written] if value != REMOVED[written] else []
                continue
            name = SETTINGS.get(written, written)
            old += [written] if name != written else []
            table = next((table for table, hints in HINTS.items() if name in hints), None)
            if table is None:
                raise BadSetting(f"{path}: unknown setting {raw!r}{nearest(name, [*HINTS['run'], *HINTS['learner']])}")
            if place and place != table:
                raise BadSetting(f"{path}: {name} is under [{place}], expected it under [{table}]")
            if name in seen:
                _refuse_twice(path, name, (seen[name], (written, place)))
            seen[name] = written, place
            yield table, name, value
    warn_of(old, SETTINGS)


def _refuse_twice(path: Path | str, name: str, given: tuple[tuple[str, str], tuple[str, str]]) -> None:
    """Raises the sentence on a setting that is given twice, each time as (what is written, its table)."""
    for written, _ in given:
        if written != name:
            raise BadSetting(f"{path}: {written} is now called {name}, and it is given twice; leave out {written}")
    where = " and ".join(dict.fromkeys(f"under [{place}]" if place else "at the top" for _, place in given))
    raise BadSetting(f"{path}: {name} is given twice, {where}; leave out one of the two")
