"""Kills work of every kind with kill -9, goes on with it, and compares what comes out with work that was not killed.

    python benchmarks/kills.py [--count N] [--kind KIND] [--seed SEED] [--mutant NAME] [--no-pictures] [--first]
        [--out FOLDER]

The kinds: a run (then `resume`), a live learner with a home, one that is asked by id and gets labels late, a comparison, a sweep, the extraction of features, and a
learner saved to one path again and again. Each work is killed several times before it may finish, three of four kills
at a random file operation (`killing.py`), the others at a random time. What must hold:

- the work can always be gone on with by the same command, without a word of complaint;
- a live learner comes back with every example whose `learn` had returned, and at most with the one at hand besides;
- a live learner that is asked by id has every prediction and every label that was acknowledged, and learns none twice;
- a saved learner comes back from its newest save, or from the one that was being written;
- in the end everything is bit-identical to work that was never killed (times are left out), and so is each prediction
  of a live learner. (The examples of a chunk at hand are learned again in one call, as `learn_many` would; so predictions
  until the next chunk border may differ in their last bits, here by 1e-5 at most.)
- no file is left over.

1,000 kills take about 15 minutes on one core. Exit code 1 if anything was lost, doubled, different or left over.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import works
from killing import Kill, Outcome, Tell, attempt, draw_kill, end_group
from rich.table import Table
from works import KINDS, WORKS, Work

SHARES = {"run": 200, "live": 150, "asked": 150, "compare": 100, "sweep": 100, "features": 100, "save": 200}  # of 1,000
MOST_KILLS = 8  # of one work
ROUNDING = 1e-5  # of log-probabilities
COLUMNS = ("works", "kills", "resumed", "lost", "doubled", "different", "left over", "refused")
FAULTS = COLUMNS[3:]


class Killing:
    """Kills works of one kind until so many kills have happened.

    Parameters
    ----------
    kind
        Which kind.
    folder
        Where the works are done.
    shared
        What all works read.
    seed
        Of where the kills fall.
    pictures
        Whether every fifth work draws pictures, which take most of its time.
    """

    def __init__(self, kind: str, folder: Path, shared: Path, seed: int = 0, pictures: bool = True) -> None:
        self.kind, self.folder, self.shared, self.pictures = kind, folder, shared, pictures
        self.draws = random.Random(f"{kind} {seed}")
        self.counts = dict.fromkeys(COLUMNS, 0)
        self.found: list[str] = []  # a sentence on each fault
        self.seconds = 0.0
        self._references: dict[tuple[int, bool], tuple[dict[str, Any], Outcome]] = {}

    def go(self, kills: int, *, first: bool = False) -> None:
        """Kills so many times, or until the first fault is found."""
        begun = time.monotonic()
        number = 0
        while self.counts["kills"] < kills and not (first and self.found):
            self._work(number, kills)
            number += 1
        self.seconds = time.monotonic() - begun

    def _work(self, number: int, kills: int) -> None:
        """One work, killed several times and then let finish."""
        variant, pictures = number % WORKS[self.kind].variants, self.pictures and number % 5 == 0
        reference, whole = self._reference(variant, pictures)
        work = self._new(f"{self.kind}-{number}", variant)
        groups: list[int] = []
        watch = Watch(self.kind, whole)
        planned = self.draws.randint(1, MOST_KILLS)
        self.counts["works"] += 1
        while True:
            more = planned > 0 and self.counts["kills"] < kills
            kill = draw_kill(self.draws, whole.operations, whole.seconds) if more else None
            outcome = self._attempt(work, pictures, kill)
            groups.append(outcome.group)
            planned -= 1
            self.counts["kills"] += outcome.killed
            self._note(watch.see(outcome), f"{self.kind} {number}", kill)
            if outcome.state == "failed":
                self._note({"refused": outcome.why}, f"{self.kind} {number}", kill)
                return self._end(work, groups, keep=True)
            if outcome.state == "finished":
                break
            self.counts["resumed"] += 1
        result = self._result(work)
        faults = compare_results(reference, result)
        self._note(faults, f"{self.kind} {number}", None)
        self._end(work, groups, keep=bool(faults))

    def _reference(self, variant: int, pictures: bool) -> tuple[dict[str, Any], Outcome]:
        """The result of the same work that was never killed, and how that went."""
        key = variant, pictures
        if key not in self._references:
            work = self._new(f"{self.kind}-whole-{variant}-{int(pictures)}", variant)
            outcome = self._attempt(work, pictures, None)
            works.import_like(outcome.told)
            if outcome.state != "finished":
                raise RuntimeError(f"{self.kind}, variant {variant}, without any kill: {outcome.why}")
            self._references[key] = self._result(work), outcome
        return self._references[key]

    def _attempt(self, work: Work, pictures: bool, kill: Kill | None) -> Outcome:
        def go(tell: Tell) -> None:
            if not pictures:
                works.without_pictures()
            if work.kind == "features":
                works.commit_often()
            work.go(tell)
            if kill is None:
                tell({"modules": list(sys.modules)})

        return attempt(go, work.folder.with_suffix(".log"), kill)

    def _result(self, work: Work) -> dict[str, Any]:
        outcome = attempt(lambda tell: work.result(), work.folder.with_suffix(".log"))
        return outcome.told[-1] if outcome.state == "finished" else {"failed": outcome.why}

    def _new(self, name: str, variant: int) -> Work:
        folder = self.folder / name
        folder.mkdir(parents=True)
        return WORKS[self.kind](folder, variant, self.shared)

    def _end(self, work: Work, groups: list[int], keep: bool) -> None:
        for group in groups:
            end_group(group)
        if not keep:
            shutil.rmtree(work.folder)
            work.folder.with_suffix(".log").unlink(missing_ok=True)

    def _note(self, faults: dict[str, str], where: str, kill: Kill | None) -> None:
        for name, sentence in faults.items():
            self.counts[name] += 1
            self.found.append(f"{where}: {name}: {sentence}" + (f" ({kill})" if kill else ""))


class Watch:
    """Follows what a work acknowledges, over all its attempts.

    Parameters
    ----------
    kind
        Of the work.
    whole
        How the work went that was never killed.
    """

    def __init__(self, kind: str, whole: Outcome) -> None:
        self.kind = kind
        self.acknowledged = self.at_hand = 0  # examples, of the attempts so far
        self.by_id: set[str] = set()  # predictions and labels that were acknowledged
        self.border = 0  # the first chunk border since the learner was opened
        self.predictions = {told["predicted"]: told["log_p"] for told in whole.told if "predicted" in told}
        self.states = {told["saved"]: told["state"] for told in whole.told if "state" in told and "saved" in told}
        self.states |= {told["opened"]: told["state"] for told in whole.told if "state" in told and "opened" in told}

    def see(self, outcome: Outcome) -> dict[str, str]:
        """What is wrong with what an attempt told."""
        faults: dict[str, str] = {}
        done = "learned" if self.kind == "live" else "saved"
        for told in outcome.told:
            if "have" in told and (missing := self.by_id - {*told["have"]}):
                faults["lost"] = f"{len(missing)} that were acknowledged: {', '.join(sorted(missing)[:5])}"
            if "acknowledged" in told:
                self.by_id.add(told["acknowledged"])
            if "opened" in told:
                found = told["opened"]
                if found < self.acknowledged:
                    faults["lost"] = f"came back with {found} examples, {self.acknowledged} were acknowledged"
                if found > max(self.at_hand, self.acknowledged):
                    faults["doubled"] = f"came back with {found} examples, but only {self.at_hand} were given"
                self.acknowledged = self.at_hand = found
                self.border = -(-found // works.SMALL["chunk_size"]) * works.SMALL["chunk_size"]
            if "state" in told:
                position = told.get("saved", told.get("opened"))
                if self.states.get(position) != told["state"]:
                    faults["different"] = f"another state at {position} examples"
            if told.get("predicted") in self.predictions:  # those inside of a call for several examples are not there
                t, now = told["predicted"], np.array(told["log_p"])
                was = np.array(self.predictions[t])
                off = float(np.abs(now - was).max()) if now.shape == was.shape else np.inf
                if off > (ROUNDING if t < self.border else 0.0):
                    faults["different"] = f"another prediction of example {t}: by {off:.2g}"
            self.at_hand = told.get("learning", self.at_hand)
            self.acknowledged = told.get(done, self.acknowledged)
        return faults


def compare_results(reference: dict[str, Any], result: dict[str, Any]) -> dict[str, str]:
    """What is wrong with a result, by kind of fault."""
    faults: dict[str, str] = {}
    if "failed" in result:
        return {"refused": result["failed"]}
    for name, (was, now) in _leaves(reference, result).items():
        if was == now:
            continue
        if name.endswith("files") and isinstance(now, list):
            more, less = set(now) - set(was or []), set(was or []) - set(now)
            if more:
                faults["left over"] = f"{name}: {', '.join(sorted(more))}"
            if less:
                faults["lost"] = f"{name}: no {', '.join(sorted(less))}"
        elif name.endswith(("rows", "position")) and isinstance(was, int) and isinstance(now, int):
            faults["lost" if now < was else "doubled"] = f"{name}: {now}, expected {was}"
        else:
            faults["different"] = f"{name}: {str(now)[:60]}, expected {str(was)[:60]}"
    return faults


def _leaves(a: Any, b: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    if isinstance(a, dict) and isinstance(b, dict):
        found: dict[str, tuple[Any, Any]] = {}
        for key in {**a, **b}:
            found |= _leaves(a.get(key), b.get(key), f"{name}/{key}".lstrip("/"))
        return found
    return {name: (a, b)}


def shares(count: int, kind: str | None) -> dict[str, int]:
    """How many kills of each kind there are of so many in all."""
    if kind is not None:
        return {kind: count}
    total = sum(SHARES.values())
    return {name: max(1, round(count * share / total)) for name, share in SHARES.items()}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="kills in all")
    parser.add_argument("--kind", choices=KINDS, help="of one kind only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutant", choices=works.MUTANTS, help="a writer that is broken on purpose, to be found out")
    parser.add_argument("--no-pictures", action="store_true", help="draw none, which is much faster")
    parser.add_argument("--first", action="store_true", help="stop at the first fault of a kind")
    parser.add_argument("--out", type=Path, help="folder for kills.json; by default nothing is written")
    given = parser.parse_args(arguments)
    todo = shares(given.count, given.kind)
    works.import_everything(tuple(todo))
    if given.mutant:
        works.MUTANTS[given.mutant]()
    console = works.console()
    kinds: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="kills-", dir=works.memory_folder()) as name:
        os.environ["PREQUENTIAL_CACHE"] = f"{name}/cache"
        shared = Path(name) / "shared"
        if "features" in todo:
            attempt(lambda tell: works.make_shared(shared), Path(name) / "shared.log")
        for kind, kills in todo.items():
            killing = Killing(kind, Path(name) / kind, shared, given.seed, pictures=not given.no_pictures)
            killing.go(kills, first=given.first)
            kinds[kind] = {**killing.counts, "seconds": round(killing.seconds, 1), "found": killing.found}
            console.print(f"{kind}: {kills} kills in {killing.seconds:.0f} seconds, {len(killing.found)} faults")
            for sentence in killing.found:
                console.print(f"  {sentence}", markup=False, soft_wrap=True)
    total = {column: sum(counts[column] for counts in kinds.values()) for column in (*COLUMNS, "seconds")}
    faults = sum(total[name] for name in FAULTS)
    console.print(_table(kinds, total))
    results = {"seed": given.seed, "kinds": kinds, "total": total, "faults": faults}
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "kills.json").write_text(json.dumps(results, indent=1))
    return results


def _table(kinds: dict[str, dict[str, Any]], total: dict[str, Any]) -> Table:
    table = Table("kind", *COLUMNS, "seconds")
    for kind, counts in [*kinds.items(), ("total", total)]:
        table.add_row(kind, *(str(counts[column]) for column in (*COLUMNS, "seconds")))
    return table


if __name__ == "__main__":
    sys.exit(1 if main()["faults"] else 0)
