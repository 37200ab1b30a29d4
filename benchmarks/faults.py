"""Damages every file of learners' homes, runs, comparisons, sweeps and features, and looks at what comes of it.

    python benchmarks/faults.py [--count N] [--place PLACE] [--seed SEED] [--out FOLDER]

A fault is one of: a bit flipped at a random place (flip), the file cut off at a random place (truncate), emptied (empty),
exchanged for the file of the same name in another directory of the same shape (swap), deleted (delete), or replaced by a
symbolic link to that other file (symlink). After each, the directory is used as its owner would use it: a home is opened
and the learner goes on, a stopped run is resumed, a finished one shown, a comparison, a sweep and an extraction are started
again with the same command. Good is:

same    what comes out in the end is bit-identical to what comes out without the fault (times and versions left out);
said    it was refused in one sentence of at most 300 characters, and nothing was changed: when the damaged file is put
        back, everything comes out as without the fault. Or it went on with a warning of that length, and no more is lost
        than what was damaged. That is only so for the journal of a home. A flipped bit loses no more than the examples of
        one block of the journal, a file that is cut off no more than what was behind the cut and that block.

Everything else is a failure: a raw error or a mistake in this package ("internal error"), a result that is silently
different, more lost than what was damaged, or a change in the directory that a symbolic link leads to.
500 faults take about 10 minutes on one core. Exit code 1 if there was a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import works
from killing import Kill, Tell, attempt
from rich.table import Table

from prequential.errors import PrequentialError
from prequential.learners.transformer.learner import Learner

KINDS = ("flip", "truncate", "empty", "swap", "delete", "symlink")
LONGEST = 300
GOOD = ("same", "said")
BAD = ("raw error", "silent", "lost more", "long sentence", "link followed", "changed")
BLOCK = 1  # examples that a flipped bit of a journal may cost


class Place:
    """A directory whose files are damaged.

    Parameters
    ----------
    folder
        Where it is made, twice: `a` is damaged, `b` is another one like it.
    shared
        What works read.
    """

    name = ""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder, self.shared = folder, shared

    def make(self, folder: Path, variant: int) -> None:
        """Makes the directory: variant 0 is the one that is damaged."""
        raise NotImplementedError

    def use(self, folder: Path) -> dict[str, Any]:
        """Uses the directory as its owner would; what came out."""
        raise NotImplementedError

    def lost_more(self, fault: Fault, whole: dict[str, Any], found: dict[str, Any]) -> str | None:
        """Why a result that is not the same, with a warning, has lost more than what was damaged."""
        return "the result is not the same, and only a warning was given"


class Fault:
    """One fault in one file of a directory."""

    def __init__(self, name: str, kind: str, draws: random.Random) -> None:
        self.name, self.kind, self.draws = name, kind, draws
        self.place = 1.0  # where in the file, as a share of it

    def apply(self, folder: Path, other: Path) -> None:
        """Damages the file."""
        path = folder / self.name
        data = path.read_bytes()
        if self.kind == "flip":
            byte = self.draws.randrange(len(data))
            damaged = bytearray(data)
            damaged[byte] ^= 1 << self.draws.randrange(8)
            self.place = byte / len(data)
            path.write_bytes(damaged)
        elif self.kind in ("truncate", "empty"):
            length = self.draws.randrange(1, len(data)) if self.kind == "truncate" else 0
            self.place = length / len(data)
            os.truncate(path, length)
        else:
            path.unlink()
            if self.kind == "swap":
                shutil.copyfile(other / self.name, path)
            elif self.kind == "symlink":
                path.symlink_to(other / self.name)

    def __str__(self) -> str:
        return f"{self.kind} of {self.name} at {self.place:.2f}"


def possible(folder: Path, other: Path) -> list[tuple[str, str]]:
    """The files of a directory and the faults each can have."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        name, size = str(path.relative_to(folder)), path.stat().st_size
        same_name = (other / name).is_file()
        differs = same_name and (other / name).read_bytes() != path.read_bytes()
        fits = {"flip": size > 0, "truncate": size > 1, "empty": size > 0, "swap": differs, "symlink": same_name}
        found += [(name, kind) for kind in KINDS if fits.get(kind, True)]
    return found


class Study:
    """Damages one place again and again."""

    def __init__(self, place: Place, seed: int = 0) -> None:
        self.place = place
        self.draws = random.Random(f"{place.name} {seed}")
        self.counts: Counter[tuple[str, str]] = Counter()  # by kind of fault and what came of it
        self.found: list[str] = []
        self.log = place.folder / "log.txt"
        place.folder.mkdir(parents=True)
        for variant, name in enumerate("ab"):
            self._make(name, variant)
        self.cases = possible(place.folder / "a", place.folder / "b")
        self.whole = self._use(self._copy("whole"))
        if "result" not in self.whole:
            raise RuntimeError(f"{place.name} cannot be used without any fault: {self.whole}")

    def _make(self, name: str, variant: int) -> None:
        def make(tell: Tell) -> None:
            self.place.make(self.place.folder / name, variant)
            tell({"modules": list(sys.modules)})

        made = attempt(make, self.log)
        works.import_like(made.told)
        if made.state == "failed":
            raise RuntimeError(f"{self.place.name} cannot be made: {made.why}")

    def go(self, count: int) -> None:
        """So many faults, each file and kind in turn."""
        todo: list[tuple[str, str]] = []
        for number in range(count):
            if not todo:
                todo = self.draws.sample(self.cases, len(self.cases))
            name, kind = todo.pop()
            fault = Fault(name, kind, random.Random(self.draws.random()))
            outcome, why = self._one(f"case-{number}", fault)
            self.counts[kind, outcome] += 1
            if outcome not in GOOD:
                self.found.append(f"{self.place.name}, {fault}: {outcome}: {why}")

    def _one(self, name: str, fault: Fault) -> tuple[str, str]:
        """What comes of a fault."""
        folder = self._copy(name)
        other = self._copy(f"{name}-other", "b")
        fault.apply(folder, other)
        damaged, linked = contents(folder), contents(other)
        found = self._use(folder)
        try:
            if contents(other) != linked:
                return "link followed", "the directory that the link leads to has changed"
            return self._judge(fault, found, folder, damaged)
        finally:
            shutil.rmtree(folder)
            shutil.rmtree(other)

    def _judge(self, fault: Fault, found: dict[str, Any], folder: Path, damaged: dict[str, bytes]) -> tuple[str, str]:
        sentences = [*found["warnings"], *([found["refused"]] if "refused" in found else [])]
        for sentence in sentences:
            if len(sentence) > LONGEST or "\n" in sentence.strip():
                return "long sentence", f"{len(sentence)} characters: {sentence[:400]!r}"
        if "raw" in found:
            return "raw error", found["raw"]
        if "refused" in found:
            return self._refused(fault, found["refused"], folder, damaged)
        if found["result"] == self.whole["result"]:
            return "same", ""
        if not found["warnings"]:
            return "silent", f"{_differing(self.whole['result'], found['result'])}; nothing was said"
        why = self.place.lost_more(fault, self.whole["result"], found["result"])
        return ("lost more", f"{why}; said was: {found['warnings']}") if why else ("said", "")

    def _refused(self, fault: Fault, sentence: str, folder: Path, damaged: dict[str, bytes]) -> tuple[str, str]:
        """Whether a refusal has changed nothing, and all is well when the damaged file is put back."""
        now = contents(folder)
        for name, data in damaged.items():
            if name != fault.name and now.get(name) != data:
                return "changed", f"{name} is not as it was, though it was refused: {sentence}"
        path = folder / fault.name
        path.unlink(missing_ok=True)
        shutil.copyfile(self.place.folder / "a" / fault.name, path)
        again = self._use(folder)
        if again.get("result") != self.whole["result"]:
            return "lost more", f"with the file put back: {str(again)[:300]}; it was refused before: {sentence}"
        return "said", sentence

    def _copy(self, name: str, source: str = "a") -> Path:
        folder = self.place.folder / name
        shutil.copytree(self.place.folder / source, folder, symlinks=True)
        return folder

    def _use(self, folder: Path) -> dict[str, Any]:
        def use(tell: Tell) -> dict[str, Any]:
            found = used(self.place, folder)
            if folder.name == "whole":
                tell({"modules": list(sys.modules)})
            return found

        outcome = attempt(use, self.log)
        works.import_like(outcome.told)
        if outcome.state != "finished":  # a crash of the interpreter
            return {"raw": outcome.why, "warnings": []}
        return outcome.told[-1]


def used(place: Place, folder: Path) -> dict[str, Any]:
    """Uses a directory: `result`, or `refused` or `raw` with what was said, and `warnings`."""
    said: list[str] = []
    errors = io.StringIO()
    result: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(errors):
        warnings.simplefilter("always")
        try:
            result = {"result": place.use(folder)}
        except SystemExit as error:
            lines = errors.getvalue().strip().splitlines()
            what = "\n".join(lines) or "no word"
            result = {"raw" if error.code not in (1, 2) or not lines else "refused": what}
        except PrequentialError as error:
            result = {"refused": str(error)}
        except BaseException as error:
            result = {"raw": f"{type(error).__name__}: {error}"[:400]}
    said += [str(warning.message) for warning in caught if not issubclass(warning.category, DeprecationWarning)]
    said += said_on_the_way(result.get("result"))
    return {**result, "warnings": said}


def said_on_the_way(result: Any) -> list[str]:
    """What was said to the user in between, and takes it out of the result."""
    return list(result.pop("said", [])) if isinstance(result, dict) else []


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a directory, locks and logs left out; of a symbolic link, where it leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.name.endswith((".lock", "log.txt")):
            continue
        name = str(path.relative_to(folder))
        found[name] = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()  # noqa: PTH115
    return found


def _differing(a: Any, b: Any, name: str = "") -> str:
    """Where two results differ first."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            if a.get(key) != b.get(key):
                return _differing(a.get(key), b.get(key), f"{name}/{key}")
    return f"{name} is {str(b)[:120]}, expected {str(a)[:120]}"


# The places.


class Home(Place):
    """A learner's home that was left without a save at the end; it is opened and goes on."""

    name = "home"

    def make(self, folder: Path, variant: int) -> None:
        folder.mkdir()
        work = works.LiveWork(folder, variant, self.shared)
        work.examples = 44
        work.go(lambda told: None)

    def use(self, folder: Path) -> dict[str, Any]:
        learner = Learner.open(folder / "home")
        found = learner.position
        kept = works.kept_examples(learner)
        examples = [works.digest([kept.x[i], kept.y[i]]) for i in range(len(kept.y))]
        for t in range(44, 56):
            learner.learn(*works.example(t, 0))
        state = works.digest(learner.state_dict())
        close = getattr(learner, "close", None)
        if close is not None:
            close()
        again = Learner.open(folder / "home")
        return {"position": found, "examples": examples, "state": state, "again": again.position - found}

    def lost_more(self, fault: Fault, whole: dict[str, Any], found: dict[str, Any]) -> str | None:
        if not fault.name.startswith("home/journal/"):
            return "the result is not the same, but no example was damaged"
        if found["again"] != 12:
            return f"of 12 examples learned after it, {found['again']} were there when it was opened again"
        missing = Counter(whole["examples"]) - Counter(found["examples"])
        foreign = Counter(found["examples"]) - Counter(whole["examples"])
        if foreign:
            return f"{foreign.total()} examples are there that were never learned"
        total = len(whole["examples"])
        behind = {"flip": 0, "truncate": total * (1 - fault.place), "empty": total, "delete": total, "swap": total}
        most = BLOCK + 1.1 * behind.get(fault.kind, total)  # not all records are of one length
        if missing.total() > most:
            return f"{missing.total()} of {total} examples are gone, expected at most {most:.0f}"
        return None


class StoppedRun(Place):
    """A run that was stopped on its way, with several parts of records; it is resumed."""

    name = "run"

    def make(self, folder: Path, variant: int) -> None:
        small_parts()
        works.without_pictures()
        begin_run(folder / "run", variant, stop=72)

    def use(self, folder: Path) -> dict[str, Any]:
        small_parts()
        works.without_pictures()
        said = run_command(["resume", str(folder / "run")])
        return {**run_result(folder / "run"), "said": said}


class FinishedRun(Place):
    """A finished run that is shown."""

    name = "show"

    def make(self, folder: Path, variant: int) -> None:
        small_parts()
        begin_run(folder / "run", variant, stop=None)

    def use(self, folder: Path) -> dict[str, Any]:
        small_parts()
        works.without_pictures()
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            said = run_command(["show", str(folder / "run")])
        numbers = [line for line in output.getvalue().splitlines() if "pictures in" not in line and line not in said]
        return {"shown": works.digest([line for line in numbers if str(folder) not in line]), "said": said}


class Comparison(Place):
    """A finished comparison that is started again."""

    name = "compare"

    def make(self, folder: Path, variant: int) -> None:
        works.without_pictures()
        folder.mkdir()
        self.run(folder, variant)

    def run(self, folder: Path, variant: int = 0) -> list[str]:
        learners = ["transformer", "last-label"]
        return run_command(
            ["compare", "--learners", *learners, "--on", "digits(tasks=2, task_length=24)", "--seeds", "0",
             "--jobs", "0", "--out", str(folder / "out"), *works.FLAGS, "--learning-rate", f"0.0{variant + 1}"]
        )  # fmt: skip

    def use(self, folder: Path) -> dict[str, Any]:
        said = self.run(folder)  # with pictures, which are drawn from the records
        return {"table": works.table_without_times(folder / "out" / "table.csv"), "said": said}


class Sweep(Place):
    """A finished sweep that is started again."""

    name = "sweep"

    def make(self, folder: Path, variant: int) -> None:
        works.without_pictures()
        folder.mkdir()
        self.run(folder, variant)

    def run(self, folder: Path, variant: int = 0) -> list[str]:
        file = folder / "sweep.toml"
        if not file.exists() or not file.stat().st_size:
            settings = "".join(f"{name} = {value}\n" for name, value in works.SMALL.items() if name != "streams")
            file.write_text(
                f'[sweep]\nname = "small"\nmethod = "grid"\n[run]\ntasks = 2\ntask_length = 24\n[learner]\nseed = {variant}\n'
                f"{settings}[vary]\nstreams = [1, 2]\n"
            )
        return run_command(["sweep", str(file), "--jobs", "0", "--out", str(folder / "out")])

    def use(self, folder: Path) -> dict[str, Any]:
        works.without_pictures()
        said = self.run(folder)
        return {"trials": works.trials_without_times(folder / "out"), "said": said}


class Features(Place):
    """Features whose extraction was killed half-way; it is started again."""

    name = "features"
    killed = True

    def make(self, folder: Path, variant: int) -> None:
        folder.mkdir()
        kill = Kill(operation=45) if self.killed else None
        attempt(lambda tell: self.run(folder, variant), self.folder / "log.txt", kill)

    def run(self, folder: Path, variant: int = 0) -> None:
        works.commit_often()
        works.FeaturesWork(folder, variant, self.shared).go(lambda told: None)

    def use(self, folder: Path) -> dict[str, Any]:
        self.run(folder)
        return works.FeaturesWork(folder, 0, self.shared).result()


class FinishedFeatures(Features):
    """Finished features that are extracted again, and verified."""

    name = "features done"
    killed = False


PLACES: dict[str, type[Place]] = {
    place.name: place for place in (Home, StoppedRun, FinishedRun, Comparison, Sweep, Features, FinishedFeatures)
}
SHARES = {"home": 180, "run": 120, "show": 60, "compare": 50, "sweep": 30, "features": 30, "features done": 30}


def begin_run(directory: Path, seed: int, stop: int | None) -> None:
    """A run of 120 examples that is stopped at so many."""
    from prequential.runs.run import Run
    from prequential.runs.run_settings import RunSettings
    from prequential.settings import Settings

    settings = RunSettings(tasks=3, task_length=40, threads=1, checkpoint_seconds=0.0)
    run = Run(directory, settings, Settings(**works.SMALL, seed=seed))
    run.begin()

    def progress(now: Run) -> None:
        now.stopped = stop is not None and now.position >= stop

    run.execute(progress)


def run_result(directory: Path) -> dict[str, Any]:
    found = works.run_result(directory)
    return {name: found[name] for name in ("records", "rows", "scores", "finished", "state")}


def run_command(arguments: list[str]) -> list[str]:
    """Runs `prequential`; what it said besides results: the lines that it prints in yellow, and on stderr."""
    from prequential.cli.app import main

    output = io.StringIO()
    with contextlib.redirect_stdout(_Both(output, sys.stdout)):
        main(arguments)
    words = ("damaged", "using the one before", "missing", "symbolic link", "does not belong", "checksum", "failed")
    return [line for line in output.getvalue().splitlines() if any(word in line for word in words)]


class _Both(io.TextIOBase):
    def __init__(self, *files: Any) -> None:
        self.files = files

    def write(self, text: str) -> int:
        for file in self.files:
            file.write(text)
        return len(text)


def small_parts() -> None:
    """Records in this process come in parts of a few rows."""
    from prequential.evaluation import records

    records.FIRST_PART, records.PART = 16, 32


def shares(count: int, place: str | None) -> dict[str, int]:
    """How many faults there are in each place, of so many in all."""
    if place is not None:
        return {place: count}
    total = sum(SHARES.values())
    return {name: max(1, round(count * share / total)) for name, share in SHARES.items()}


@contextlib.contextmanager
def shared_folder(kinds: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """A folder to work in, and one with what works read."""
    with tempfile.TemporaryDirectory(prefix="faults-", dir=works.memory_folder()) as name:
        os.environ["PREQUENTIAL_CACHE"] = f"{name}/cache"
        if any(kind.startswith("features") for kind in kinds):
            attempt(lambda tell: works.make_shared(Path(name) / "shared"), Path(name) / "log.txt")
        yield Path(name), Path(name) / "shared"


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500, help="faults in all")
    parser.add_argument("--place", choices=list(PLACES), help="in one place only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for faults.json; by default nothing is written")
    given = parser.parse_args(arguments)
    todo = shares(given.count, given.place)
    works.import_everything(("sweep", "features") if given.place is None else (given.place.partition(" ")[0],))
    console = works.console()
    places: dict[str, dict[str, Any]] = {}
    with shared_folder(list(todo)) as (folder, shared):
        for name, count in todo.items():
            begun = time.monotonic()
            study = Study(PLACES[name](folder / name.replace(" ", "-"), shared), given.seed)
            study.go(count)
            outcomes = {outcome: 0 for outcome in (*GOOD, *BAD)}
            by_kind: dict[str, dict[str, int]] = {}
            for (kind, outcome), number in sorted(study.counts.items()):
                outcomes[outcome] += number
                by_kind.setdefault(kind, {})[outcome] = number
            files = len({case[0] for case in study.cases})
            seconds = round(time.monotonic() - begun, 1)
            places[name] = {"files": files, "faults": count, **outcomes, "seconds": seconds}
            places[name] |= {"by kind": by_kind, "found": study.found}
            for sentence in study.found:
                console.print(f"  {sentence}", markup=False, soft_wrap=True)
    columns = ("files", "faults", *GOOD, *BAD, "seconds")
    total = {column: sum(found[column] for found in places.values()) for column in columns}
    table = Table("place", *columns)
    for name, found in [*places.items(), ("total", total)]:
        table.add_row(name, *(f"{found[column]:g}" for column in columns))
    console.print(table)
    results = {"seed": given.seed, "places": places, "total": total, "failures": sum(total[name] for name in BAD)}
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "faults.json").write_text(json.dumps(results, indent=1))
    return results


if __name__ == "__main__":
    sys.exit(1 if main()["failures"] else 0)
