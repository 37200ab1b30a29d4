"""The library of the native core: built from its sources, loaded only where it belongs to them."""

import shlex
import shutil
import subprocess
import sys
import threading

import pytest

from prequential.native import build
from prequential.native import library as native
from prequential.native.build import (
    AVX512_NAME,
    FOLDER,
    NAME,
    CannotBuild,
    compile_libraries,
    compile_library,
    find_compiler,
    sources_hash,
    targets,
)

try:
    find_compiler()
except CannotBuild as problem:
    pytest.skip(str(problem), allow_module_level=True)


two_libraries = pytest.mark.skipif(len(targets()) < 2, reason="there is one library on this architecture")


@pytest.fixture
def folder(tmp_path):
    """A copy of the sources that say what a library is, to change them."""
    shutil.copy(FOLDER / "abi.cpp", tmp_path)
    return tmp_path


def say_what_runs(folder, *, avx512, general=True):
    """Whether libraries in a folder claim to run here, whatever this CPU has: nothing else is in them."""
    head, _, _ = (FOLDER / "abi.cpp").read_text().partition('extern "C" int prequential_runs_here')
    answers = f"#ifdef PREQUENTIAL_AVX512\n{int(avx512)}\n#else\n{int(general)}\n#endif\n"
    (folder / "abi.cpp").write_text(f'{head}extern "C" int prequential_runs_here() {{ return\n{answers}; }}\n')


def spoil(folder, how):
    """Makes the library for AVX-512 in a folder one that cannot be used."""
    file = folder / AVX512_NAME
    if how == "missing":
        file.unlink()
    elif how == "damaged":
        file.write_bytes(b"not a library")
    elif how == "cut off":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif how == "of other sources":
        (folder / "more.h").write_text("// another source\n")
        compile_library(folder=folder)
    elif how == "for other CPUs":
        say_what_runs(folder, avx512=False)
        compile_libraries(folder, folder=folder)


def test_the_library_of_this_package_is_built():
    """Where this fails, everything else ran with torch: `python -m prequential.native.build`."""
    found = native.library()
    assert found.library is not None, found.reason


@two_libraries
def test_the_library_for_avx512_is_built_too_and_used_where_it_runs(monkeypatch):
    monkeypatch.delenv(native.PATH_VARIABLE, raising=False)
    if not (FOLDER / AVX512_NAME).is_file():
        pytest.skip("the compiler does not know these CPUs")
    fast = native.load_library(FOLDER / AVX512_NAME)
    if fast.library is None:
        assert fast.reason.startswith("this CPU lacks"), fast.reason
    used = native.load_first().describe()
    assert ("-march=x86-64-v4" in used) == (fast.library is not None), used


@two_libraries
def test_the_library_for_avx512_is_preferred(folder):
    say_what_runs(folder, avx512=True)
    built = compile_libraries(folder, folder=folder)
    assert [file.name for file in built.libraries] == [NAME, AVX512_NAME]
    assert built.problems == []
    assert "-march=x86-64-v4" in native.load_first(folder).describe()


@two_libraries
@pytest.mark.parametrize("how", ["missing", "damaged", "cut off", "of other sources", "for other CPUs"])
def test_one_that_cannot_be_used_does_not_stop_the_other(folder, how):
    say_what_runs(folder, avx512=True)
    compile_libraries(folder, folder=folder)
    spoil(folder, how)
    assert native.load_library(folder / AVX512_NAME, folder).library is None
    found = native.load_first(folder)
    assert found.library is not None, found.reason
    assert "-march=x86-64-v4" not in found.describe()


@two_libraries
def test_where_none_can_be_used_the_reason_is_that_of_the_one_for_all_cpus(folder):
    assert "was not built" in native.load_first(folder).reason
    say_what_runs(folder, avx512=False, general=False)
    compile_libraries(folder, folder=folder)
    reasons = [native.load_library(folder / target.name, folder).reason for target in targets()]
    assert "(-march=x86-64-v4 " in reasons[0]
    assert reasons[1].endswith("(-march=x86-64-v3)")
    assert native.load_first(folder).reason == reasons[1]


@two_libraries
@pytest.mark.skipif(sys.platform == "win32", reason="the compiler of this test is a shell script")
def test_a_compiler_that_does_not_know_avx512_builds_the_other(folder, monkeypatch, tmp_path_factory, capsys):
    old = tmp_path_factory.mktemp("compiler") / "old"
    refuse = 'case "$*" in *x86-64-v4*) echo "error: bad value for -march" >&2; exit 1;; esac'
    old.write_text(f'#!/bin/sh\n{refuse}\nexec {shlex.join(find_compiler())} "$@"\n')
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    built = compile_libraries(folder, folder=folder)
    assert built.libraries == [folder / NAME]
    (problem,) = built.problems
    assert problem.startswith(f"{AVX512_NAME} is left out: ")
    assert problem.endswith("error: bad value for -march")
    assert native.load_first(folder).library is not None
    monkeypatch.setattr(build, "compile_libraries", lambda: built)
    monkeypatch.setattr(sys, "argv", ["build"])
    assert build.main() == 0
    assert capsys.readouterr() == (f"{folder / NAME}\n", f"{problem}\n")


def test_on_other_architectures_there_is_one_library(monkeypatch):
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    assert targets() == [build.Target(NAME, ((),))]


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
