"""Runs in several processes: the losses of one, whatever the number; a process that dies costs nothing but time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from prequential.cli.app import main
from prequential.errors import BadSetting
from prequential.learners.transformer.distributed import Ranks

FLAGS = [
    "--tasks",
    "5",
    "--updates",
    "joint",
    "--num-streams",
    "4",
    "--width",
    "16",
    "--depth",
    "1",
    "--chunk-size",
    "48",
]


def command(processes: int, *arguments: object) -> list[str]:
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [sys.executable, *start, "-m", "prequential", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def go(processes: int, *arguments: object) -> str:
    done = subprocess.run(command(processes, *arguments), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(directory: Path) -> np.ndarray:
    return pq.read_table(directory / "records")["log_loss"].to_numpy()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "run"
    main(["run", *FLAGS, "--out", str(directory)])
    return losses(directory)


def test_two_processes_give_the_losses_of_one(tmp_path, whole):
    said = go(2, "run", *FLAGS, "--out", tmp_path / "run")
    assert said.count("average accuracy") == 1  # one of them speaks
    found = losses(tmp_path / "run")
    assert len(found) == len(whole) == 1000  # the last chunk is a short one
    assert np.abs(found - whole).max() < 1e-3


def test_a_process_that_dies_ends_the_run_and_another_number_goes_on(tmp_path, whole):
    directory = tmp_path / "run"
    arguments = ("run", *FLAGS, "--out", directory, "--checkpoint-seconds", 0)
    process = subprocess.Popen(command(2, *arguments), env=environment(), stderr=subprocess.PIPE, text=True)
    while not list(directory.glob("checkpoints/*.safetensors")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(children[-1]), signal.SIGKILL)
    said = process.communicate(timeout=120)[1]
    assert process.returncode != 0
    assert "another process of this run is gone" in said or "SIGKILL" in said or "Signal 9" in said
    main(["resume", str(directory)])
    assert np.abs(losses(directory) - whole).max() < 1e-3


def test_what_cannot_be_spread_is_refused():
    with pytest.raises(BadSetting, match=r"updates \(sequential\) must be joint where 2 processes share the streams"):
        Ranks(0, 2).check(4, "sequential")
    with pytest.raises(BadSetting, match=r"num_streams \(2\) must be at least as many as processes \(3\)"):
        Ranks(0, 3).check(2, "joint")
    Ranks().check(1, "sequential")
    owned = [[stream for stream in range(5) if Ranks(rank, 2).owns(stream)] for rank in range(2)]
    assert owned == [[0, 2, 4], [1, 3]]
