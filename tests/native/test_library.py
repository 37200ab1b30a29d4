"""The library of the native core: built from its sources, loaded only where it belongs to them."""

import shutil
import subprocess
import sys
import threading

import pytest

from prequential.native import library as native
from prequential.native.build import FOLDER, NAME, CannotBuild, compile_library, find_compiler, sources_hash

try:
    find_compiler()
except CannotBuild as problem:
    pytest.skip(str(problem), allow_module_level=True)


@pytest.fixture
def folder(tmp_path):
    """A copy of the sources that say what a library is, to change them."""
    shutil.copy(FOLDER / "abi.cpp", tmp_path)
    return tmp_path


def test_the_library_of_this_package_is_built():
    """Where this fails, everything else ran with torch: `python -m prequential.native.build`."""
    found = native.library()
    assert found.library is not None, found.reason


def test_a_library_belongs_to_its_sources(folder):
    built = compile_library(folder=folder)
    assert built == folder / NAME
    found = native.load_library(built, folder)
    assert found.library is not None, found.reason
    assert found.library.prequential_sources().decode() == sources_hash(folder)
    assert "-O3" in found.describe()
    (folder / "more.h").write_text("// another source\n")
    stale = native.load_library(built, folder)
    assert stale.library is None
    assert "other sources" in stale.reason
    assert "prequential.native.build" in stale.reason


def test_another_version_of_the_interface_is_not_used(folder):
    text = (folder / "abi.cpp").read_text()
    (folder / "abi.cpp").write_text(
        text.replace("prequential_abi_version() { return ", "prequential_abi_version() { return 9")
    )
    found = native.load_library(compile_library(folder=folder), folder)
    assert found.library is None
    assert f"(9{native.ABI_VERSION}, expected {native.ABI_VERSION})" in found.reason


def test_a_cpu_without_the_instructions_runs_torch(folder):
    text = (folder / "abi.cpp").read_text()
    head, _, _ = text.partition('extern "C" int prequential_runs_here')
    (folder / "abi.cpp").write_text(head + 'extern "C" int prequential_runs_here() { return 0; }\n')
    found = native.load_library(compile_library(folder=folder), folder)
    assert found.library is None
    assert "this CPU lacks" in found.reason


def test_without_a_library_and_with_a_broken_one(tmp_path):
    assert "was not built" in native.load_library(tmp_path / NAME).reason
    (tmp_path / NAME).write_bytes(b"not a library")
    found = native.load_library(tmp_path / NAME)
    assert found.library is None
    assert found.reason.startswith("the native core cannot be loaded")
    assert "\n" not in found.reason


def test_errors_are_one_line_and_the_old_library_stays(folder, monkeypatch):
    built = compile_library(folder=folder)
    before = built.read_bytes()
    (folder / "broken.cpp").write_text("int f( {\n")
    with pytest.raises(CannotBuild, match=r"fails with code \d+: .*error") as caught:
        compile_library(folder=folder)
    assert "\n" not in str(caught.value)
    assert built.read_bytes() == before
    assert sorted(p.name for p in folder.iterdir()) == sorted([NAME, "abi.cpp", "broken.cpp"])
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CannotBuild, match="no-such-compiler"):
        compile_library(folder=folder)


def test_it_is_loaded_once_by_many_threads(folder, monkeypatch):
    monkeypatch.setattr(native, "_found", None)
    calls = []

    def load(path):
        calls.append(path)
        return native.Found(None, "nothing")

    monkeypatch.setattr(native, "load_library", load)
    monkeypatch.setenv(native.PATH_VARIABLE, "elsewhere.so")
    threads = [threading.Thread(target=native.library) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(path) for path in calls] == ["elsewhere.so"]


def test_nothing_is_loaded_at_import():
    asked = "import prequential.learners.transformer.learner, prequential.native.library as n; print(n._found)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
