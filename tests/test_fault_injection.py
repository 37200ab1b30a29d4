"""Damaged files are noticed: a short version of benchmarks/faults.py, which does five hundred."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

# an owner who takes whatever saves are there for good
BROKEN = """
import sys
sys.path.insert(0, {folder!r})
import faults

faults.Home.use = lambda place, folder: {{"saves": sorted(
    path.name for path in (folder / "home" / "saves").iterdir() if path.stat().st_size
)}}
faults.main(sys.argv[1:])
"""


def damaged(out: Path, *arguments: str, code: str | None = None) -> dict[str, Any]:
    """What came of some faults, in a process of their own: it forks, which one with threads must not."""
    program = [str(BENCHMARKS / "faults.py")] if code is None else ["-c", code]
    command = [sys.executable, *program, "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (out / "faults.json").is_file(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads((out / "faults.json").read_text())
    if code is None:
        assert done.returncode == (1 if found["failures"] else 0)
    return found


@pytest.mark.parametrize(("place", "count"), [("home", 10), ("run", 5), ("show", 3)])
def test_each_fault_gives_the_same_result_or_one_sentence(tmp_path: Path, place: str, count: int) -> None:
    found = damaged(tmp_path, "--place", place, "--count", str(count), "--seed", "1")["places"][place]
    assert found["found"] == []
    assert found["same"] + found["said"] == count
    if place != "show":  # which can rebuild all that it shows
        assert found["said"] > 0
    assert found["same"] > 0


def test_what_believes_everything_is_found_out(tmp_path: Path) -> None:
    code = BROKEN.format(folder=str(BENCHMARKS))
    found = damaged(tmp_path, "--place", "home", "--count", "30", "--seed", "1", code=code)
    assert found["total"]["silent"] > 0
