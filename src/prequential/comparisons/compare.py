"""A comparison: learners × streams × seeds, each a run of its own, in as many processes as there are cores."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from prequential.comparisons.comparison_tables import Row, comma_separated, latex, make_row, markdown, screen
from prequential.comparisons.table1 import LEARNED_NOTE, check_order
from prequential.errors import BadInput, BadSetting, MissingExtra
from prequential.evaluation.scores import Scores
from prequential.registry import current_spec, make_learner
from prequential.runs.job import Job, check_same_settings, read_result, write_job_settings
from prequential.runs.jobs_display import JobsDisplay
from prequential.runs.pool import available_cores, run_jobs
from prequential.runs.run_settings import RunSettings, stored_settings, write_settings
from prequential.runs.stored_scores import load_scores
from prequential.settings import Settings
from prequential.specs import check_kinds, nearest
from prequential.storage.files import (
    DirectoryLock,
    is_temporary,
    make_directory,
    refuse_links,
    remove_temporaries,
    write_atomically,
)
from prequential.storage.sealed import check_toml, is_damaged, sealed_toml
from prequential.storage.toml import read_toml
from prequential.streams.open import check_spec
from prequential.trust import Untrusted, names_from

IN_THE_FILE = {"learners": list[str], "streams": list[str], "seeds": list[int], "table1": bool}  # under [compare]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is compared on what, and with which settings."""

    learners: tuple[str, ...]
    """Learners by name, with options in parentheses."""
    streams: tuple[str, ...]
    """Streams as for a run, with options in parentheses: digits(tasks=20)."""
    seeds: tuple[int, ...] = (0,)
    """Each seed is a run; it makes the learner and, where that is drawn at random, the stream."""
    table1: bool = False
    """Whether the order of the rows is checked against the paper's Table 1."""
    run: RunSettings = field(default_factory=RunSettings)
    """What the runs have in common."""
    settings: Settings = field(default_factory=Settings)
    """The settings of the transformers."""

    def __post_init__(self) -> None:
        for name in ("learners", "streams", "seeds"):
            if not getattr(self, name):
                raise BadSetting(f"there is nothing to compare: got 0 {name}, expected at least 1")
        if min(self.seeds) < 0:
            raise BadSetting(f"seed ({min(self.seeds)}) must be at least 0")
        self.settings.changed(seed=max(self.seeds))  # which may be too large
        for learner in self.learners:
            with suppress(MissingExtra, Untrusted):  # its jobs will fail and say so; the others run
                make_learner(learner, 2, settings=self.settings)
        for stream in self.streams:
            with suppress(Untrusted):
                check_spec(stream)

    def jobs(self, directory: Path) -> list[Job]:
        """All runs and where they are, stream by stream."""
        streams, learners = _folders(self.streams), _folders(self.learners)
        return [
            Job(stream, learner, seed, directory / streams[stream] / learners[learner] / str(seed))
            for stream in self.streams
            for seed in self.seeds
            for learner in self.learners
        ]

    def settings_of(self, job: Job) -> tuple[RunSettings, Settings]:
        """The settings of one run."""
        run = replace(self.run, stream=job.stream, learner=job.learner, threads=1, out=None)
        return run, self.settings.changed(seed=job.seed)

    def with_more(self, other: Plan) -> Plan:
        """This plan and then what another one has besides; the settings are the other one's."""

        def union(name: str) -> tuple[Any, ...]:
            return tuple(dict.fromkeys((*getattr(self, name), *getattr(other, name))))

        table1 = self.table1 or other.table1
        first = {current_spec(learner): learner for learner in reversed(union("learners"))}  # as each was first written
        learners = tuple(learner for learner in union("learners") if learner in first.values())
        return replace(other, learners=learners, streams=union("streams"), seeds=union("seeds"), table1=table1)

    def write(self, directory: Path) -> None:
        """Keeps the plan as `compare.toml`."""
        names = {name: list(getattr(self, name)) for name in ("learners", "streams", "seeds")}
        text = write_settings(self.run, self.settings, compare={**names, "table1": self.table1})
        write_atomically(directory / "compare.toml", sealed_toml(text))


def read_plan(directory: Path) -> Plan | None:
    """The plan of the comparison in this directory; None if there is none."""
    path = directory / "compare.toml"
    if not path.is_file():
        return None
    try:
        check_toml(path)
    except BadInput as error:
        raise BadInput(f"{error}; without the file, the full command resumes the runs in {directory}") from None
    content = read_toml(path, "comparison")
    kept = content.pop("compare", None)
    if not isinstance(kept, dict):
        raise BadInput(f"{path} is no comparison: there is no table [compare] in it")
    for name in kept:
        if name not in IN_THE_FILE:
            raise BadSetting(f"{path}: unknown setting [compare] {name!r}{nearest(name, IN_THE_FILE)}")
    for name in IN_THE_FILE:
        if name not in kept:
            raise BadInput(f"{path} is no comparison: there is no {name} under [compare]")
    check_kinds(str(path), kept, IN_THE_FILE)
    # the program wrote the file; reading a plan imports nothing, running it may, with trust
    with names_from(directory):
        run, learner = stored_settings(content, path)
        return Plan(
            learners=tuple(kept["learners"]),
            streams=tuple(kept["streams"]),
            seeds=tuple(kept["seeds"]),
            table1=kept["table1"],
            run=RunSettings(**run),
            settings=Settings(**learner),
        )


def compare(
    plan: Plan,
    directory: Path,
    *,
    jobs: int | None = None,
    console: Console | None = None,
    trust: bool = False,
) -> tuple[list[Row], dict[str, list[str]]] | None:
    """Runs what is not finished yet, then writes the tables and the pictures; None when it was stopped.

    Parameters
    ----------
    plan
        What is compared.
    directory
        Where the runs, tables and pictures are kept. What an earlier comparison has finished there is kept.
    jobs
        How many runs at a time, each in a process with one thread; by default as many as there are cores. 0 does them
        one after the other in this process.
    console
        Where to show progress.
    trust
        As for `Run`, where an earlier comparison is resumed. A new one is trusted.

    Returns
    -------
    The rows of the table and, by stream, what there is to say about them.
    """
    if jobs is not None and jobs < 0:
        raise BadSetting(f"jobs ({jobs}) must be at least 0")
    if directory.exists() and not (directory / "compare.toml").is_file() and not _is_ours(directory):
        raise BadInput(f"{directory} is not empty and holds no comparison; give another --out")
    make_directory(directory)
    with DirectoryLock(directory):
        earlier = read_plan(directory)
        with names_from(directory if earlier else None, trust=trust):
            plan = earlier.with_more(plan) if earlier else plan
        all_jobs = plan.jobs(directory)
        remove_temporaries(directory)
        for job in all_jobs:
            refuse_links(directory, job.directory)
            remove_temporaries(job.directory, shared=True)  # one that is finished is not run again, and would keep them
            check_same_settings(job, *plan.settings_of(job))
        plan.write(directory)
        todo = [job for job in all_jobs if read_result(job.directory)["state"] != "finished"]
        for job in all_jobs:
            if job in todo or is_damaged(job.settings):
                write_job_settings(job, *plan.settings_of(job))
        with JobsDisplay(all_jobs, console or Console(quiet=True)) as display:
            done = run_jobs(todo, available_cores() if jobs is None else jobs, display, trust=trust or earlier is None)
        if not done:
            return None
        return collect(plan, directory, console or Console(quiet=True))


def collect(plan: Plan, directory: Path, console: Console) -> tuple[list[Row], dict[str, list[str]]]:
    """Writes the tables and the pictures of what is finished; the rows, and what there is to say about them."""
    all_jobs = plan.jobs(directory)
    scores = _load_all(all_jobs, console)
    rows = []
    for stream in plan.streams:
        for learner in plan.learners:
            seeds = {job.seed: job.directory for job in all_jobs if (job.stream, job.learner) == (stream, learner)}
            rows.append(make_row(stream, learner, seeds, scores))
    notes = {stream: _order(rows, stream) for stream in plan.streams} if plan.table1 else {}
    for name, text in (("md", markdown(rows, notes)), ("csv", comma_separated(rows)), ("tex", latex(rows))):
        write_atomically(directory / f"table.{name}", text.encode())
    _draw(all_jobs, scores, directory)
    return rows, notes


def show(rows: list[Row], notes: dict[str, list[str]], console: Console) -> None:
    """Prints the tables, and what there is to say about them."""
    for part in screen(rows, console.width):
        console.print(part)
    for stream, lines in notes.items():
        console.print(f"{stream}, against the paper's Table 1:", markup=False)
        for line in lines:
            console.print(f"- {line}", markup=False)


# What is left behind.


def _load_all(all_jobs: list[Job], console: Console) -> dict[Path, Scores]:
    """The scores of every job that is finished."""
    found: dict[Path, Scores] = {}
    for job in all_jobs:
        result = read_result(job.directory)
        if result["state"] == "finished":
            found[job.directory], damage = load_scores(job.directory, result["classes"])
            if damage:
                console.print(damage, style="yellow", markup=False, soft_wrap=True)
    return found


def _draw(all_jobs: list[Job], found: dict[Path, Scores], directory: Path) -> None:
    from prequential.plots.comparison import Many, Numbers, draw_accuracies, draw_bits, draw_costs, draw_losses

    scores: Many = {}
    seconds: Numbers = {}
    macs: Numbers = {}
    for job in all_jobs:
        if job.directory in found:
            result = read_result(job.directory)
            scores.setdefault(job.stream, {}).setdefault(job.learner, []).append(found[job.directory])
            seconds.setdefault(job.stream, {}).setdefault(job.learner, []).append(result["seconds"])
            macs.setdefault(job.stream, {}).setdefault(job.learner, []).append(result["macs"])
    if not scores:
        return
    for suffix in ("png", "svg"):
        draw_accuracies(scores, directory / f"accuracy.{suffix}")
        draw_losses(scores, directory / f"loss.{suffix}")
        draw_bits(scores, directory / f"bits.{suffix}")
        draw_costs(scores, seconds, macs, directory / f"cost.{suffix}")


def _order(rows: list[Row], stream: str) -> list[str]:
    found = {row.learner: row.spread("accuracy") for row in rows if row.stream == stream}
    return [
        *check_order({current_spec(name): spread for name, spread in found.items() if spread is not None}),
        LEARNED_NOTE,
    ]


# Names and settings.


def _folders(names: Iterable[str]) -> dict[str, str]:
    """A folder for each name: the name without special characters, with a hash where two would be the same."""
    folders: dict[str, str] = {}
    for name in names:
        kind, colon, place = name.partition(":")
        short = f"{kind}-{Path(place).name}" if colon and "/" in place else Path(name).name
        folder = re.sub(r"[^\w.=,+-]+", "-", short).strip("-.")[:80]
        if not folder or folder in folders.values():
            folder = f"{folder}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        folders[name] = folder
    return folders


def _is_ours(directory: Path) -> bool:
    """Whether everything in a directory is what a comparison leaves, whenever it was killed."""
    folders = [path for path in directory.iterdir() if path.is_dir() and not path.is_symlink()]
    files = [path for path in directory.iterdir() if path not in folders]
    made = {".lock", *(f"table.{kind}" for kind in ("md", "csv", "tex"))}
    made |= {f"{name}.{kind}" for name in ("accuracy", "loss", "bits", "cost") for kind in ("png", "svg")}
    known = all(path.name in made or is_temporary(path) for path in files)
    return known and all(any(folder.glob("*/*/settings.toml")) for folder in folders)
