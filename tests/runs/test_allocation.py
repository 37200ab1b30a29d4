"""Keeping freed memory: a second allocation of the same size must not fault its pages in again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from prequential.runs.allocation import keep_freed_memory
torch.set_num_threads(1)
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
def work():
    for _ in range(3):
        parts = [torch.ones(2_000_000) for _ in range(8)]  # 8 MB each
        del parts
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(what: str, **more: str) -> tuple[str, int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    printed = subprocess.run(
        [sys.executable, "-c", FAULTS, what], env={**environment, **more}, capture_output=True, text=True, check=True
    )
    kept, count = printed.stdout.split()
    return kept, int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_memory_is_used_again():
    kept, count = faults("keep")
    assert kept == "True"
    assert count < 200  # of 3 * 16,000 pages


def test_the_users_variables_stand():
    assert faults("keep", MALLOC_TOP_PAD_="131072")[0] == "False"
