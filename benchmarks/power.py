"""Cuts the power, in simulation, at random moments of a live learner, of saves to one path and of a run.

    python benchmarks/power.py [--count N] [--study STUDY] [--seed SEED] [--out FOLDER]

The work is done once while `power_disk.Disk` records what it writes and syncs. For each cut a disk is built that the
power cut could have left, in six ways (all, none or parts of what was not synced), and the work is gone on with there. What
must hold is what is promised:

- `home`, a live learner: it opens. It has all examples of the last `save()` that returned; with durability "sync" all that
  `learn` returned for; with durability n all but the last n - 1 of these. What it has besides was given to it, in this
  order; where one is missing in between, because the disk had kept later ones, that is said as a warning. Where none is,
  it goes on and ends in the same state, to the bit, as one whose power was never cut.
- `save`, a learner saved to one path: the newest save that returned, or the one being written, is loaded, to the bit.
- `run`: `resume` (or the same `run`, where nothing had been written) ends with the same records, scores and state.
- `features`: the extraction goes on and ends with the same files.

Nothing may be written to these directories by other means than those that can be synced; pictures may be.
300 cuts take about 5 minutes on one core. Exit code 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import works
from power_disk import MODES, Disk
from rich.table import Table
from works import FeaturesWork, LiveWork, RunWork, SaveWork, Work

from prequential.errors import PrequentialError
from prequential.learners.transformer.learner import Learner

STUDIES = ("home save", "home sync", "home 4", "save", "run", "features")
SHARES = {"home save": 80, "home sync": 80, "home 4": 80, "save": 80, "run": 60, "features": 40}
PICTURES = (".png", ".svg", ".log")


class Study:
    """One kind of work whose power is cut.

    Parameters
    ----------
    name
        Which kind.
    folder
        Where it is done.
    shared
        What works read.
    seed
        Of the cuts.
    """

    def __init__(self, name: str, folder: Path, shared: Path, seed: int = 0) -> None:
        self.name, self.folder, self.shared = name, folder, shared
        self.draws = random.Random(f"{name} {seed}")
        self.counts = {"cuts": 0, "holes": 0, "broken": 0}
        self.found: list[str] = []
        folder.mkdir(parents=True)
        work = self.work(folder / "whole")
        work.folder.mkdir()
        with Disk(work.folder, lambda name: not name.endswith(PICTURES)) as self.disk:
            work.go(lambda told: self.disk.mark(**told))
        self.violations = sorted(set(self.disk.violations))
        self.whole = work.result()
        marks = self.disk.marks(len(self.disk.events))
        self.states = {mark["saved"]: mark["state"] for mark in marks if "saved" in mark and "state" in mark}

    def work(self, folder: Path) -> Work:
        kind, _, durability = self.name.partition(" ")
        if kind == "home":
            variant = LiveWork.durability.index(int(durability) if durability.isdecimal() else durability)
            return LiveWork(folder, variant, self.shared)
        return {"save": SaveWork, "run": RunWork, "features": FeaturesWork}[kind](folder, 0, self.shared)

    def go(self, cuts: int) -> None:
        """Cuts the power so many times."""
        moments = self.disk.moments()
        for number in range(cuts):
            moment, mode = self.draws.choice(moments), MODES[number % len(MODES)]
            target = self.folder / f"cut-{number}"
            self.disk.cut(moment, mode, number, target)
            self.counts["cuts"] += 1
            try:
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    self._check(target, moment, said)
            except Exception as error:
                self.counts["broken"] += 1
                what = str(error) if isinstance(error, (Broken, PrequentialError)) else traceback.format_exc()
                self.found.append(f"{self.name}, cut after operation {moment} ({mode}, {number}): {what}"[:1500])
                continue
            shutil.rmtree(target)

    def _check(self, target: Path, moment: int, said: list[warnings.WarningMessage]) -> None:
        """Goes on with the work where the power was cut, and says what is broken."""
        marks = self.disk.marks(moment)
        work = self.work(target)
        if isinstance(work, LiveWork):
            if self._check_home(work, marks):
                self.counts["holes"] += 1
                if not said:
                    raise Broken("an example is missing in between, and nothing was said")
                return
        elif isinstance(work, SaveWork):
            self._check_save(work, marks)
        work.go(lambda told: None)
        result = work.result()
        for name in self.whole:
            if result[name] != self.whole[name] and not _set_aside(name, self.whole[name], result[name]):
                raise Broken(f"{name} is {str(result[name])[:200]} in the end, expected {str(self.whole[name])[:200]}")

    def _check_home(self, work: LiveWork, marks: list[dict[str, Any]]) -> bool:
        """Whether examples behind what is promised are missing while later ones are there."""
        saved, learned, given = (
            max((mark[name] for mark in marks if name in mark), default=0) for name in ("saved", "learned", "learning")
        )
        durability = LiveWork.durability[work.variant] if works.has_durability() else "save"
        promised = saved
        if durability == "sync":
            promised = learned
        elif isinstance(durability, int):
            promised = max(saved, learned - (durability - 1))
        if not any("opened" in mark for mark in marks) and not (work.folder / "home" / "learner.json").is_file():
            return False  # the power was cut before the learner had been made
        before = work.folder.with_name("before")
        shutil.rmtree(before, ignore_errors=True)
        shutil.copytree(work.folder / "home", before)
        learner = Learner.open(work.folder / "home")
        position = learner.position
        if not promised <= position <= max(given, learned):
            raise Broken(f"it came back with {position} examples, expected {promised} to {max(given, learned)}")
        kept = works.kept_examples(learner) if position else None
        found = [] if kept is None else [works.digest([kept.x[t], kept.y[t]]) for t in range(position)]
        wanted = [works.digest(list(works.example(t, work.variant))) for t in range(max(given, learned))]
        if found[:promised] != wanted[:promised]:
            raise Broken(f"the first {promised} examples are not all as they were given")
        rest = iter(wanted[promised:])
        if not all(example in rest for example in found[promised:]):  # in this order, each once
            raise Broken(f"of {position} examples, some were not given, or not in this order")
        learner.learn(*works.example(position, work.variant))
        if learner.position != position + 1:
            raise Broken(f"it has {learner.position} examples after the next one, expected {position + 1}")
        learner.close()
        shutil.rmtree(work.folder / "home")
        shutil.copytree(work.folder.with_name("before"), work.folder / "home")
        return found != wanted[:position]

    def _check_save(self, work: SaveWork, marks: list[dict[str, Any]]) -> None:
        saved = max((mark["saved"] for mark in marks if "saved" in mark), default=0)
        given = max((mark["learning"] for mark in marks if "learning" in mark), default=0)
        path = work.folder / "learner.safetensors"
        if not path.exists():
            if saved:
                raise Broken(f"there is no save, but that of {saved} examples had returned")
            return
        learner = Learner.load(path)
        if not saved <= learner.position <= given:
            raise Broken(f"the save has {learner.position} examples, expected {saved} to {given}")
        if works.digest(learner.state_dict()) != self.states[learner.position]:
            raise Broken(f"the save of {learner.position} examples has another state")


class Broken(Exception):
    """A promise that was not kept."""


def _set_aside(name: str, was: Any, now: Any) -> bool:
    """Whether the only difference is that a journal has kept what it could not read, whose end was lost, in a file beside."""
    return name == "files" and [path for path in now if "/journal/damaged-" not in path] == was


def shares(count: int, study: str | None) -> dict[str, int]:
    """How many cuts of each study there are of so many in all."""
    if study is not None:
        return {study: count}
    total = sum(SHARES.values())
    return {name: max(1, round(count * share / total)) for name, share in SHARES.items()}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=420, help="cuts in all")
    parser.add_argument("--study", choices=STUDIES, help="one only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for power.json; by default nothing is written")
    given = parser.parse_args(arguments)
    todo = shares(given.count, given.study)
    works.import_everything(tuple(todo))
    works.without_pictures()
    if "features" in todo:
        works.commit_often()
    console = works.console()
    studies: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="power-", dir=works.memory_folder()) as name:
        os.environ["PREQUENTIAL_CACHE"] = f"{name}/cache"
        shared = Path(name) / "shared"
        log = Path(name) / "log.txt"
        if "features" in todo:
            works.make_shared(shared)
        for kind, cuts in todo.items():
            begun = time.monotonic()
            with log.open("w") as quiet, contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                study = Study(kind, Path(name) / kind.replace(" ", "-"), shared, given.seed)
                study.go(cuts)
            seconds = round(time.monotonic() - begun, 1)
            operations = len(study.disk.moments())
            syncs = sum(event[0] == "sync" for event in study.disk.events)
            studies[kind] = {"operations": operations, "syncs": syncs, **study.counts, "seconds": seconds}
            studies[kind] |= {"violations": len(study.violations), "found": study.found, "written": study.violations}
            for sentence in [*study.violations, *study.found]:
                console.print(f"  {kind}: {sentence}", markup=False, soft_wrap=True)
    columns = ("operations", "syncs", "cuts", "holes", "broken", "violations", "seconds")
    total = {column: sum(found[column] for found in studies.values()) for column in columns}
    table = Table("study", *columns)
    for kind, found in [*studies.items(), ("total", total)]:
        table.add_row(kind, *(f"{found[column]:g}" for column in columns))
    console.print(table)
    results = {"seed": given.seed, "studies": studies, "total": total, "faults": total["broken"] + total["violations"]}
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "power.json").write_text(json.dumps(results, indent=1))
    return results


if __name__ == "__main__":
    sys.exit(1 if main()["faults"] else 0)
