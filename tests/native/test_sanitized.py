"""The native core with checks of every access and of undefined behavior, over the tests that compare it with torch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prequential.native.build import FOLDER, CannotBuild, Target, compile_library, find_compiler, targets
from prequential.native.library import load_library

HERE = Path(__file__).parent
# small and odd shapes above all: large ones would take most of the time
CHOSEN = (
    "equal_those and (odd_widths or tiny or one_class or none_seen or late or no_window or copy or joint) "
    "or any_length or one_call or any_layout or any_number_of_threads or grow or refused or queries or first_values "
    "or neighbors and not 1000 or predictions_between or memory_of_its_own or next_example"
)
PRODUCTS = "equal_those and (odd_widths or tiny or late) or any_number_of_threads"
OVERFLOW = 'extern "C" int last(const int *values, int count) { return values[count]; }\n'


def preloaded() -> str:
    """The libraries of the sanitizers, which must be there before Python allocates anything."""
    if sys.platform != "linux":
        pytest.skip("sanitizers are preloaded on Linux alone")
    try:
        compiler = find_compiler()
    except CannotBuild as problem:
        pytest.skip(str(problem))
    found = []
    for name in ("libasan.so", "libubsan.so"):
        path = subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        if not Path(path).is_absolute() or not Path(path).is_file():
            pytest.skip(f"{compiler[0]} has no {name}")
        found.append(path)
    return " ".join(found)


def run(command, **environment):
    settings = {
        **os.environ,
        "LD_PRELOAD": preloaded(),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    return subprocess.run(command, capture_output=True, text=True, env=settings, cwd=HERE.parent.parent)


def test_an_overflow_is_found(tmp_path):
    """What the other test relies on."""
    preloaded()
    (tmp_path / "overflow.cpp").write_text(OVERFLOW)
    library = compile_library(folder=tmp_path, sanitize=True)
    ask = "import ctypes, sys; n = int(sys.argv[2]); buffer = (ctypes.c_int * 64)(); print(ctypes.CDLL(sys.argv[1]).last(buffer, n))"
    assert run([sys.executable, "-c", ask, str(library), "63"]).stdout == "0\n"
    done = run([sys.executable, "-c", ask, str(library), "64"], PYTHONMALLOC="malloc")
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.name)
def test_nothing_outside_its_buffers_is_read_or_written(tmp_path, target: Target):
    preloaded()
    general = target == targets()[-1]  # the others differ in products alone
    if not general and load_library(FOLDER / target.name).library is None:
        pytest.skip(load_library(FOLDER / target.name).reason)
    library = compile_library(tmp_path / "sanitized.so", target=target, sanitize=True)
    one_row = HERE.parent / "learners" / "transformer" / "test_one_row.py"
    others = [HERE / "test_experts.py", HERE / "test_native_trees.py", one_row]
    files = [*sorted(HERE.glob("test_transformer*.py")), *others]
    options = ["-o", "addopts=", "-p", "no:xdist", "-p", "no:cacheprovider", "-q", "--import-mode=importlib"]
    done = run(
        [
            sys.executable,
            "-m",
            "pytest",
            *options,
            "--basetemp",
            str(tmp_path / "tests"),
            "-k",
            CHOSEN if general else PRODUCTS,
            *map(str, files if general else files[: -len(others)]),
        ],
        PREQUENTIAL_NATIVE_LIBRARY=str(library),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "skipped" not in done.stdout
    assert "runtime error" not in done.stderr
    shutil.rmtree(tmp_path / "tests", ignore_errors=True)
