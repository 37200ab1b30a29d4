"""`prequential pareto`: the front of studies and comparisons, in one table and one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from prequential.comparisons.compare import read_plan
from prequential.comparisons.comparison_tables import make_row
from prequential.errors import BadInput, BadSetting
from prequential.plots.pareto import draw_fronts, front_of
from prequential.runs.formatting import format_metric
from prequential.runs.job import read_result
from prequential.specs import nearest
from prequential.storage.sealed import read_json
from prequential.sweeps.plan import OBJECTIVES, canonical
from prequential.sweeps.storage import open_storage, report_damage
from prequential.sweeps.stored_names import name_now
from prequential.sweeps.study import IDENTITY, Row, rows_of
from prequential.sweeps.sweep_display import say_point
from prequential.sweeps.trial_tables import FORMAT


class Found(NamedTuple):
    """A trial, or a learner of a comparison."""

    method: str  # one color each
    what: str
    results: dict[str, float | None]  # means over the seeds


def show_pareto(
    sources: Sequence[str],
    *,
    objectives: Sequence[str] | None = None,
    out: Path | None = None,
    console: Console | None = None,
) -> list[Found]:
    """Prints the Pareto front of all that is given and draws it; what is on the front.

    Parameters
    ----------
    sources
        Directories of sweeps or comparisons, or studies as URL#NAME, in any number.
    objectives
        What the front is of; by default that of the first sweep with several, else accuracy and macs.
    out
        The picture (.png, .svg or .pdf); by default pareto.png in the first directory, or here.
    console
        Where to print.
    """
    if not sources:
        raise BadInput("pareto needs the directory of a sweep or of a comparison, or a study as URL#NAME")
    found: list[Found] = []
    own: list[str] = []
    for source in sources:
        read, names = _read(source)
        if {trial.method for trial in read} & {trial.method for trial in found}:  # two of the same name
            read = [trial._replace(method=f"{trial.method}, {source}") for trial in read]
        found += read
        own = own or (names if len(names) > 1 else [])
    chosen = [canonical(name) for name in objectives or own or ("accuracy", "macs")]
    for name in chosen:
        if name not in OBJECTIVES:
            raise BadSetting(f"unknown objective {name!r}{nearest(name, OBJECTIVES)}")
    if len(set(chosen)) < 2:
        raise BadSetting(f"a front needs at least 2 different objectives, got {len(set(chosen))}: {', '.join(chosen)}")
    counted = [trial for trial in found if all(trial.results.get(name) is not None for name in chosen)]
    if not counted:
        raise BadInput(f"there are 0 finished trials with {' and '.join(chosen)} in {', '.join(sources)}")
    values = [tuple(float(trial.results[name] or 0) for name in chosen) for trial in counted]
    front = sorted(front_of(values, [OBJECTIVES[name] for name in chosen]), key=lambda i: values[i])
    once = {(counted[i].method, values[i]): i for i in reversed(front)}  # the same settings may have been tried twice
    front = sorted(once.values(), key=lambda i: values[i])
    groups: dict[str, list[tuple[float, ...]]] = {}
    for trial, value in zip(counted, values, strict=True):
        groups.setdefault(trial.method, []).append(value)
    if out is None:
        out = (Path(sources[0]) if Path(sources[0]).is_dir() else Path()) / "pareto.png"
    draw_fronts(groups, chosen, out)
    if console is not None:
        _print([(counted[i], values[i]) for i in front], chosen, len(counted), len(found), console)
        console.print(f"picture: {out}", soft_wrap=True, markup=False)
    return [counted[i] for i in front]


def _print(
    front: list[tuple[Found, tuple[float, ...]]], objectives: list[str], counted: int, found: int, console: Console
) -> None:
    left_out = f"; {found - counted} without these numbers left out" if found > counted else ""
    console.print(f"{len(front)} of {counted} on the Pareto front of {', '.join(objectives)}{left_out}")
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold")
    table.add_column("settings", overflow="fold")
    for name in objectives:
        table.add_column(name, justify="right", no_wrap=True)
    for trial, value in front:
        numbers = [format_metric(name, number) for name, number in zip(objectives, value, strict=True)]
        table.add_row(escape(trial.method), escape(trial.what), *numbers)
    console.print(table)


def _read(source: str) -> tuple[list[Found], list[str]]:
    """The trials of a source, and its own objectives."""
    path = Path(source)
    if not path.is_dir():
        if "#" not in source and ":" not in source:
            raise BadInput(f"{source} is no directory, and no study written as URL#NAME")
        url, _, name = source.partition("#")
        return _study(url, name or None)
    if (path / "compare.toml").is_file():
        return _comparison(path), []
    if (path / "study.db").is_file():
        return _study(f"sqlite:///{(path / 'study.db').resolve()}", None)
    if not (path / "trials.json").is_file():
        raise BadInput(
            f"{path} holds no sweep and no comparison: there is no study.db, trials.json or compare.toml in it"
        )
    kept = read_json(path / "trials.json")
    if kept.get("format") != FORMAT:
        raise BadInput(f"{path / 'trials.json'} has format {kept.get('format')!r}, expected {FORMAT!r}")
    rows = [
        Row(**{**row, "point": {name_now(name): value for name, value in row["point"].items()}}) for row in kept["rows"]
    ]
    return _of_rows(kept["name"], rows), kept["objectives"]


def _study(url: str, name: str | None) -> tuple[list[Found], list[str]]:
    place = Path(url.partition("journal:")[2] or url.partition("sqlite:///")[2])
    if place.name and not place.is_file():  # opening it would make it
        raise BadInput(f"there is no study in {url}: {place} does not exist")
    storage, _ = open_storage(url)
    import optuna

    with report_damage(url):
        return _read_study(url, name, optuna, storage)


def _read_study(url: str, name: str | None, optuna: Any, storage: Any) -> tuple[list[Found], list[str]]:
    names = [study.study_name for study in optuna.get_all_study_summaries(storage)]
    if name is None and len(names) == 1:
        (name,) = names
    if name not in names:
        what = f"no study {name!r}" if name else f"{len(names)} studies"
        raise BadInput(f"there is {what} in the storage, expected URL#NAME with one of {', '.join(names) or 'none'}")
    study = optuna.load_study(study_name=name, storage=storage)
    rows = rows_of(study)
    return _of_rows(str(name), rows), list(study.user_attrs.get(IDENTITY, {}).get("objectives", []))


def _of_rows(name: str, rows: list[Row]) -> list[Found]:
    found = []
    for row in rows:
        if row.state == "done":
            learner = row.point.get("learner")
            method = name if learner is None else f"{name}: {learner}"
            found.append(
                Found(method, f"trial {row.number}: {say_point(row.point)}", _means(list(row.results.values())))
            )
    return found


def _comparison(directory: Path) -> list[Found]:
    plan = read_plan(directory)
    assert plan is not None
    all_jobs = plan.jobs(directory)
    found = []
    for stream in plan.streams:
        for learner in plan.learners:
            here = {job.seed: job.directory for job in all_jobs if (job.stream, job.learner) == (stream, learner)}
            row = make_row(stream, learner, here)
            for result in map(read_result, here.values()):  # left out silently, a front would be another one
                if result["state"] == "damaged":
                    raise BadInput(f"{result['why']}; prequential compare --out {directory} writes it again")
            if row.results:
                method = learner if len(plan.streams) == 1 else f"{learner} on {stream}"
                found.append(Found(method, f"{directory.name}: {len(row.results)} seeds", _means(row.results)))
    return found


def _means(results: list[dict[str, Any]]) -> dict[str, float | None]:
    means: dict[str, float | None] = {}
    for name in OBJECTIVES:
        values = [result.get(name) for result in results]
        means[name] = None if None in values or not values else sum(values) / len(values)  # type: ignore[arg-type]
    return means
