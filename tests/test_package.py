"""The package as others meet it: what importing it costs, on which systems it works, and what type checkers see."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import prequential

ROOT = Path(__file__).parents[1]
USER = Path(__file__).parent / "data" / "user_script.py"


def run(code, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_it_imports_nothing_large_and_takes_no_time():
    code = """
import sys, time
begun = time.process_time()
import prequential
print(time.process_time() - begun)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
begun = time.process_time()
import numpy
print(time.process_time() - begun)
"""
    seconds, modules, numpy_seconds = run(code).splitlines()
    assert not {"torch", "pyarrow", "matplotlib", "rich", "numpy", "cyclopts"} & set(modules.split())
    assert float(seconds) < 0.05
    assert float(seconds) < float(numpy_seconds)


def test_dir_and_type_checkers_see_what_is_lazy():
    assert {*prequential.__all__, "open"} <= set(dir(prequential))
    stubs = re.findall(r"import (\w+) as \1$", (ROOT / "src/prequential/__init__.py").read_text(), re.MULTILINE)
    assert sorted(stubs) == sorted(prequential._PLACES)


def test_the_version_is_said_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1] == project["version"]
    if prequential.__version__ != "0+unknown":
        assert prequential.__version__ == project["version"]
    assert project["version"] not in (ROOT / "src/prequential/__init__.py").read_text()


# Python as it is on Windows: no fcntl, no forks, fewer flags; a stand-in for msvcrt that locks
WINDOWS = """
import sys, types
import torch, numpy, pyarrow, multiprocessing, tempfile, subprocess, asyncio, concurrent.futures, logging, random  # have
import cyclopts, rich, safetensors, fcntl, os                                             # versions for Windows themselves
real = fcntl.flock, fcntl.LOCK_EX, fcntl.LOCK_NB
def locking(handle, mode, size):
    real[0](handle, real[1] | real[2])
sys.modules["fcntl"] = None
sys.modules["uvloop"] = None
sys.modules["resource"] = None
sys.modules["msvcrt"] = types.SimpleNamespace(LK_LOCK=1, LK_NBLCK=2, locking=locking)
for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "register_at_fork", "fork", "pread", "pwrite",
             "fdatasync", "sysconf", "sched_getaffinity", "posix_spawn"):
    if hasattr(os, name):
        delattr(os, name)
"""


def test_without_fcntl_everything_can_be_imported():
    code = """
import importlib, pkgutil, prequential
from prequential.errors import MissingExtra
for module in pkgutil.walk_packages(prequential.__path__, "prequential."):
    if not module.name.endswith((".__main__", "._core")):  # a program, and the native core, which is no module
        try:
            importlib.import_module(module.name)
        except (MissingExtra, ModuleNotFoundError) as error:  # an extra that is not installed
            assert "fcntl" not in str(error), error
print("done")
"""
    assert run(WINDOWS + code).strip() == "done"


def test_without_fcntl_a_home_is_locked_kept_and_opened_again(tmp_path):
    code = """
import prequential
from prequential.errors import PrequentialError
home = sys.argv[1]
learner = prequential.Learner(home=home, width=8, depth=1, num_query_heads=2, window=8, num_streams=2, chunk_size=4)
learner.learn_many([[0.1, 1.0], [0.5, 2.0], [0.2, 0.3]], ["a", "b", "a"])
learner.save()
learner.learn([0.3, 1.0], "b")
try:
    prequential.Learner.open(home)
except PrequentialError as error:
    print(error)
from prequential.storage.files import DirectoryLock, LockHeld
from pathlib import Path
held = DirectoryLock(Path(home).parent)
held.take()
try:
    DirectoryLock(Path(home).parent).take()
except LockHeld as error:
    print(error)
learner.close()
print(prequential.Learner.open(home).position)
"""
    first, second, position = run(WINDOWS + code, str(tmp_path / "home")).splitlines()
    assert "is working in" in first
    assert "is working in" in second
    assert position == "4"


def test_a_users_script_passes_mypy_strict():
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", str(USER)]  # with the project's settings, whose cache is warm
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    shown = dict(re.findall(r'(\d+): note: Revealed type is "(.*)"', done.stdout))
    lines = USER.read_text().splitlines()
    expected = {
        str(i + 1): line.split("# ")[1] for i, line in enumerate(lines) if "reveal_type" in line and "# " in line
    }
    assert {line: kind.replace("builtins.", "") for line, kind in shown.items()} == expected
