"""Fuzzes everything that takes input: learners, the command line, TOML files, data files.

    python benchmarks/fuzz.py --count 100000 --seed 0
    python benchmarks/fuzz.py --only learners --case 1234   # one case again

Each case must be accepted, or refused with one sentence of at most 300 characters, and then nothing may have changed. A
case depends on the seed and its number alone (within its block, which `--case` runs from its start). The cases run in a
process of their own: one that ends or hangs it counts as a failure, and the next one goes on behind it. The code of the
targets is in tests/fuzz; the tests run a few hundred cases of each.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TARGETS = {"learners": 0.6, "cli": 0.06, "toml": 0.17, "files": 0.17}  # and their shares of the cases
SOURCE = Path(__file__).parent.parent / "tests" / "fuzz"
HANGS = 120  # seconds
MEMORY = 12 * 2**30  # bytes a case may map


def cases_of(target: str, seed: int, folder: Path) -> Any:
    """The cases of a target: an object with `run(number)` and `block`."""
    if str(SOURCE) not in sys.path:
        sys.path.insert(0, str(SOURCE))
    os.environ["PREQUENTIAL_CACHE"] = str(folder / "cache")
    return importlib.import_module(f"fuzz_{target}").Cases(seed, folder)


def run_cases(target: str, seed: int, numbers: range, folder: Path) -> Iterator[tuple[int, Any]]:
    """Runs cases in this process; each number and its outcome."""
    cases = cases_of(target, seed, folder)
    begin = numbers.start - numbers.start % cases.block
    for number in range(begin, numbers.stop):
        (folder / "number").write_text(f"{number} {cases.block}")
        faulthandler.dump_traceback_later(HANGS, exit=True)
        outcome = cases.run(number)
        faulthandler.cancel_dump_traceback_later()
        if number >= numbers.start:
            yield number, outcome


def child(target: str, seed: int, numbers: range, folder: Path) -> None:
    """Runs cases and tells the outcomes on stdout, a line of JSON for each failure and each hundred."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    counts: Counter[str] = Counter()
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the cases print is nobody's
    for number, outcome in run_cases(target, seed, numbers, folder):
        counts[outcome.kind] += 1
        if outcome.kind == "failed":
            told.write(json.dumps({"number": number, "what": outcome.what, "why": outcome.why}) + "\n")
        if number % 100 == 99 or number == numbers.stop - 1:
            told.write(json.dumps({"done": number + 1, "counts": counts}) + "\n")
            counts.clear()


def fuzz(target: str, seed: int, count: int, start: int = 0, *, say: bool = True) -> tuple[Counter[str], list[str]]:
    """All cases of a target, in processes that are replaced when they end; counts and failures."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    begun, done = time.monotonic(), start
    while done < start + count:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            command = [sys.executable, __file__, "--child", folder, "--only", target, "--seed", str(seed)]
            command += ["--start", str(done), "--count", str(start + count - done)]
            words = Path(folder, "stderr")  # a file: a pipe that nobody reads fills up, and the process waits for ever
            with words.open("wb") as stderr:
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
            assert process.stdout is not None
            for line in process.stdout:
                told = json.loads(line)
                if "done" in told:
                    counts.update(told["counts"])
                    done = told["done"]
                    if say and done % 1000 == 0:
                        rate = (done - start) / (time.monotonic() - begun)
                        print(
                            f"{target}: {done - start:,} of {count:,}, {rate:.0f}/s, {counts['failed']} failed",
                            flush=True,
                        )
                else:
                    failures.append(f"{target} {told['number']}: {told['what']}: {told['why']}")
                    if say:
                        print(f"- {failures[-1][:600]}", flush=True)
            if process.wait() != 0:
                last_words = words.read_text(errors="replace").strip().splitlines()
                number = Path(folder, "number")
                if not number.exists():
                    raise SystemExit(f"{target} cannot begin: {' | '.join(last_words[-3:])}")
                at, block = map(int, number.read_text().split())
                failures.append(
                    f"{target} {at}: the process ended with {process.returncode}: {' | '.join(last_words[-3:])}"
                )
                if say:
                    print(f"- {failures[-1][:600]}", flush=True)
                counts["failed"] += 1
                done = at + block - at % block  # the rest of its block would meet it again
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="cases over all targets, or of the one that is given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first case of each target")
    parser.add_argument("--only", choices=list(TARGETS), help="one target instead of all")
    parser.add_argument("--case", type=int, help="this case alone, in this process")
    parser.add_argument("--out", type=Path, help="a file for the counts and all failures, as JSON")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.only, given.seed, range(given.start, given.start + given.count), given.child)
        return 0
    if given.case is not None:
        if given.only is None:
            parser.error("--case needs --only")
        with tempfile.TemporaryDirectory() as folder:
            ((_, outcome),) = run_cases(given.only, given.seed, range(given.case, given.case + 1), Path(folder))
        print(f"{outcome.kind}: {outcome.what}: {outcome.why}")
        return 1 if outcome.kind == "failed" else 0
    rows: list[tuple[str, list[int]]] = []
    failures: list[str] = []
    for target, share in TARGETS.items() if given.only is None else [(given.only, 1.0)]:
        begun = time.monotonic()
        counts, failed = fuzz(target, given.seed, round(given.count * share), given.start)
        seconds = time.monotonic() - begun
        rows.append((target, [counts.total(), *(counts[k] for k in ("accepted", "refused", "failed")), round(seconds)]))
        failures += failed
    rows.append(("all", [sum(column) for column in zip(*(numbers for _, numbers in rows), strict=True)]))
    print("| target | cases | accepted | refused | failed | seconds |\n|---|---|---|---|---|---|")
    for name, numbers in rows:
        print(f"| {name} | " + " | ".join(f"{number:,}" for number in numbers) + " |")
    if given.out:
        given.out.write_text(json.dumps({"rows": rows, "failures": failures}, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
