"""The settings of a run besides the learner's own, and how all of them are kept in one TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from cyclopts import Parameter

from prequential.errors import BadInput, BadSetting
from prequential.settings import Settings


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run reads, where it computes and what it leaves behind."""

    stream: str = "digits"
    """Where the examples come from: digits, or the path of your data, or a name and a path (emnist:PATH, ...). Options in
    brackets: "prices.csv(delimiter=';')"."""
    learner: str = "transformer"
    """What learns: transformer, or a baseline by name (last-label, er, acm, replay-streams, kalman, river:CLASS, ...)."""
    tasks: int | None = None
    """Streams made of tasks: how many; 100 by default."""
    task_length: int | None = None
    """Streams made of tasks: examples in each; 200 digits by default, 1000 of other images."""
    ways: int | None = None
    """Streams made of tasks: classes in each; 10 by default."""
    examples: int | None = None
    """Stop after so many examples of the stream."""
    classes: int | None = None
    """How many labels there can be; by default what the stream says, else 100."""
    label: str | None = None
    """Tables: the column to predict."""
    features: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None
    """Tables: the columns to predict from, apart or with commas; by default all others."""
    time: str | None = None
    """Tables: the column that gives the order."""
    group: str | None = None
    """Tables: a column that names the user or group of a row."""
    images: Path | None = None
    """CLOC: the folder that the paths in the metadata start from."""
    download: Annotated[bool, Parameter(negative=())] = False
    """EMNIST and CIFAR-100 without a path: fetch the official files."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """Own data: what to do at a row that cannot be used."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1, ..."""
    threads: int | None = None
    """Threads of the processor to use; by default all."""
    checkpoint_seconds: float = 20.0
    """How often the run is saved."""
    out: Path | None = None
    """Directory for the results; by default a new one in runs/."""

    def __post_init__(self) -> None:
        for name, low in (
            ("tasks", 1),
            ("task_length", 1),
            ("ways", 1),
            ("examples", 1),
            ("classes", 1),
            ("threads", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < low:
                raise BadSetting(f"{name} ({value}) must be at least {low}")
        if self.checkpoint_seconds < 0:
            raise BadSetting(f"checkpoint_seconds ({self.checkpoint_seconds}) must be at least 0")


def write_settings(run: RunSettings, learner: Settings) -> str:
    """Both kinds of settings as TOML, settings that are not set left out."""
    tables = {"run": asdict(run), "learner": asdict(learner)}
    for table in tables.values():
        for name, value in list(table.items()):
            if value is None:
                del table[name]
            elif isinstance(value, Path):
                table[name] = str(value)
    return tomli_w.dumps(tables)


def read_settings(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The run's and the learner's settings given in a TOML file, under [run] and [learner] or at the top level."""
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"cannot read the settings {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path} is not a TOML file: {error}") from None
    known = {"run": [f.name for f in fields(RunSettings)], "learner": [f.name for f in fields(Settings)]}
    given: dict[str, dict[str, Any]] = {"run": {}, "learner": {}}
    tables = {name: content.pop(name) for name in given if isinstance(content.get(name), dict)}
    flat = content  # `learner` can be the name of one, and then it is here
    for table in ("run", "learner"):
        for name, value in [*flat.items(), *tables.get(table, {}).items()]:
            name = name.replace("-", "_")
            if name in known[table]:
                given[table][name] = value
            elif name not in known["learner" if table == "run" and name in flat else "run"]:
                near = get_close_matches(name, known["run"] + known["learner"], 1)
                raise BadSetting(f"{path}: unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return given["run"], given["learner"]
