"""Work of every kind survives kill -9: a short version of benchmarks/kills.py, which does a thousand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

# what `write_atomically` must not be: written in place, so that a kill in the middle leaves a part
BROKEN = """
import sys
sys.path.insert(0, {folder!r})
import kills, works
works.import_everything(("save",))
from prequential import checkpoint

def naive(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb", buffering=0) as file:
        file.write(data[: len(data) // 2])
        import os
        os.fsync(file.fileno())
        file.write(data[len(data) // 2 :])

checkpoint.write_atomically = naive
kills.main(sys.argv[1:])
"""


def killed(out: Path, *arguments: str, code: str | None = None) -> dict[str, Any]:
    """What came of some kills, in a process of their own: it forks, which one with threads must not."""
    program = [str(BENCHMARKS / "kills.py")] if code is None else ["-c", code]
    command = [sys.executable, *program, "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (out / "kills.json").is_file(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads((out / "kills.json").read_text())
    if code is None:
        assert done.returncode == (1 if found["faults"] else 0)
    return found


@pytest.mark.parametrize(("kind", "count"), [("run", 6), ("live", 12), ("save", 10), ("compare", 4), ("sweep", 4)])
def test_nothing_is_lost_doubled_different_or_left_over(tmp_path: Path, kind: str, count: int) -> None:
    if kind == "sweep":
        pytest.importorskip("optuna")
    found = killed(tmp_path, "--kind", kind, "--count", str(count), "--seed", "1")["kinds"][kind]
    assert found["found"] == []
    assert found["kills"] == count
    assert found["resumed"] > 0


def test_a_file_that_is_written_in_place_is_found_out(tmp_path: Path) -> None:
    code = BROKEN.format(folder=str(BENCHMARKS))
    found = killed(tmp_path, "--kind", "save", "--count", "30", "--seed", "1", code=code)
    assert found["faults"] > 0
