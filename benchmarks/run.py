"""All measurements of speed in one command: a table, a file of numbers, and pictures.

    python benchmarks/run.py                         everything, about half an hour on two quiet cores
    python benchmarks/run.py limit peers             some parts
    python benchmarks/run.py all --quick             whether everything works, in small; the figures mean nothing
    python benchmarks/run.py growth --longest 10000000

Every figure is a ratio of things measured in this run, in turns. Writes benchmarks.json, benchmarks.md and PNG pictures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # before torch is imported: the profiler is talkative

import torch
from measuring import Row
from pictures import draw_growth, draw_ratios, draw_shares
from rich.console import Console
from rich.table import Table

from prequential.plots.style import save

PARTS = ("limit", "peers", "native", "growth", "latency")
COLUMNS = ("", "median", "best", "target", "", "what", "remarks")


def main(arguments: Sequence[str] | None = None) -> dict[str, list[Row]]:
    """Runs the parts that are asked for and writes what was found; the rows of each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, "all"], default="all", metavar="part", help=", ".join(PARTS)
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds: the figures mean nothing")
    parser.add_argument("--out", type=Path, default=Path("benchmarks-out"), help="folder for the results")
    parser.add_argument("--threads", type=int, default=None, help="by default as many as torch takes")
    parser.add_argument("--longest", type=int, default=None, help="growth: the length of the longest stream")
    given = parser.parse_args(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    console = Console()
    machine = describe(given.quick)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    found: dict[str, list[Row]] = {}
    asked = PARTS if "all" in given.parts else [part for part in PARTS if part in given.parts]
    for part in asked:
        if find_spec(part) is None:
            console.print(f"{part}: benchmarks/{part}.py is not there, left out")
            continue
        begun = time.perf_counter()
        measure = importlib.import_module(part).measure
        found[part] = measure(given.quick, given.longest) if part == "growth" else measure(given.quick)
        console.print(table(f"{part} ({time.perf_counter() - begun:.0f} s)", found[part]))
        write(given.out, machine, found)  # after each part: what was measured is kept if a later one fails
    console.print(f"written to {given.out}")
    return found


def describe(quick: bool) -> dict[str, str]:
    """What the figures were measured on."""
    return {
        "mode": "quick (the figures mean nothing)" if quick else "full",
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
        "processor": processor(),
        "Python": platform.python_version(),
    }


def processor() -> str:
    """Its name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def cells(row: Row) -> list[str]:
    """A row as the table shows it."""
    target = ("≤ " if row.lower_is_better else "≥ ") + row.say(row.target) if row.target is not None else ""
    verdict = {True: "yes", False: "no", None: ""}[row.reached]
    median = row.say(row.ratio) if row.ratio is not None else "–"
    return [row.name, median, row.say(row.best), target, verdict, row.meaning, row.note]


def table(title: str, rows: Sequence[Row]) -> Table:
    """The rows for the terminal; what they mean stands below, said once."""
    meanings = list(dict.fromkeys(row.meaning for row in rows if row.meaning))
    made = Table(title=title, title_justify="left", caption="\n".join(meanings), caption_justify="left")
    for i, name in enumerate(COLUMNS):
        if name != "what":
            made.add_column(name, no_wrap=0 < i < 5)
    for row in rows:
        made.add_row(*(cell for name, cell in zip(COLUMNS, cells(row), strict=True) if name != "what"))
    return made


def markdown(machine: dict[str, str], found: dict[str, list[Row]]) -> str:
    """The tables as text for the documentation."""
    lines = [", ".join(f"{key} {value}" for key, value in machine.items()), ""]
    for part, rows in found.items():
        lines += [f"### {part}", "", "| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
        lines += ["| " + " | ".join(cell.replace("|", "/") for cell in cells(row)) + " |" for row in rows] + [""]
    return "\n".join(lines)


def write(folder: Path, machine: dict[str, str], found: dict[str, list[Row]]) -> None:
    """The numbers, the tables and the pictures there is something to draw of."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {"machine": machine, "parts": {part: [row.as_dict() for row in rows] for part, rows in found.items()}}
    (folder / "benchmarks.json").write_text(json.dumps(state, indent=1))
    (folder / "benchmarks.md").write_text(markdown(machine, found))
    rows = [row for part in found.values() for row in part]
    if any(row.ratio is not None and row.unit != "exponent" for row in rows):
        save(draw_ratios(rows), folder / "ratios.png")
    if any(row.shares for row in rows):
        save(draw_shares(rows), folder / "time.png")
    if any(row.curve for row in rows):
        save(draw_growth(rows), folder / "growth.png")
    if "latency" in found:
        save(importlib.import_module("latency").draw_latencies(found["latency"]), folder / "latency.png")


if __name__ == "__main__":
    main(sys.argv[1:])
