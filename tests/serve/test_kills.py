"""kill -9 of the service and of its workers: a short version of `benchmarks/serving.py kills`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_nothing_is_lost_doubled_or_different():
    command = [sys.executable, str(BENCHMARKS / "serving.py"), "kills", "--count", "3", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    found = json.loads(done.stdout)
    assert (found["faults"], done.returncode) == ([], 0), done.stderr
    assert sum(found["kills"].values()) == 3
    assert min(found["labels"], found["asked"], found["examples"]) > 0
