"""Work of every kind survives kill -9: a short version of benchmarks/kills.py, which does a thousand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def killed(out: Path, *arguments: str) -> dict[str, Any]:
    """What came of some kills, in a process of their own: it forks, which one with threads must not."""
    command = [sys.executable, str(BENCHMARKS / "kills.py"), "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (out / "kills.json").is_file(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads((out / "kills.json").read_text())
    assert done.returncode == (1 if found["faults"] else 0)
    return found


@pytest.mark.parametrize(
    ("kind", "count"), [("run", 3), ("live", 4), ("asked", 3), ("save", 3), ("compare", 2), ("sweep", 2)]
)
def test_nothing_is_lost_doubled_different_or_left_over(tmp_path: Path, kind: str, count: int) -> None:
    if kind == "sweep":
        pytest.importorskip("optuna")
    # of pictures, those of runs are enough; comparisons and sweeps would take three times as long with theirs
    pictures = ["--no-pictures"] if kind in ("compare", "sweep") else []
    found = killed(tmp_path, "--kind", kind, "--count", str(count), "--seed", "1", *pictures)["kinds"][kind]
    assert found["found"] == []
    assert found["kills"] == count
    assert found["resumed"] > 0


@pytest.mark.parametrize(
    ("mutant", "kind"),
    [
        ("write-in-place", "save"),
        ("acknowledge-before-writing", "live"),
        ("write-twice", "live"),
        ("remember-in-memory", "asked"),
        ("forget-answers", "asked"),
    ],
)
def test_a_writer_that_is_broken_on_purpose_is_found_out(tmp_path: Path, mutant: str, kind: str) -> None:
    """Whether a kill falls on the moment that matters is chance: about one in twenty does."""
    kills = ["--kind", kind, "--count", "160", "--seed", "1"]
    found = killed(tmp_path, *kills, "--mutant", mutant, "--no-pictures", "--first")
    assert found["faults"] > 0
