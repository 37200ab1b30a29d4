"""Compiles all C++ files of this folder into shared libraries. Imports nothing of the package, nor from elsewhere.

The build hook runs it when the package is installed; `python -m prequential.native.build` does it again in place.

On x86-64 there are two libraries of the same sources: one for CPUs with AVX2, and one for those with AVX-512, which
gives the same bits faster. `library.py` chooses when it loads one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent
SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
NAME = f"_core{SUFFIX}"
AVX512_NAME = f"_core.x86-64-v4{SUFFIX}"
BASE_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-Wall", "-Wextra")
# Equal numbers give equal bits, and NaN and infinity keep their meaning: no -ffast-math, here or at the link, where it
# would switch denormals off for the whole process.
MATH_FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
X86_FLAGS = ("-march=x86-64-v3",)  # what `prequential_runs_here` in abi.cpp checks for
OLD_X86_FLAGS = ("-mavx2", "-mfma", "-mbmi", "-mbmi2")  # for compilers that do not know that name
# Wide vectors are for products, which say so. Loops that the compiler makes vectors of keep the width that they have in
# the other library: what is fused in their last rounds depends on it, and so do bits.
AVX512_FLAGS = ("-march=x86-64-v4", "-mprefer-vector-width=256")
SANITIZE_FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O0")


class CannotBuild(Exception):
    """Why there is no library, in one line."""


class Target(NamedTuple):
    """The CPUs that a library is for."""

    name: str  # of the library's file
    flags: Sequence[tuple[str, ...]]  # those to try first, then others for older compilers


class Built(NamedTuple):
    """The libraries that were compiled, and why others were not, one line each."""

    libraries: list[Path]
    problems: list[str]


def targets() -> list[Target]:
    """What libraries there are on this architecture, those for the fewest CPUs first. The last is for all CPUs."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return [Target(AVX512_NAME, (AVX512_FLAGS,)), Target(NAME, (X86_FLAGS, OLD_X86_FLAGS))]
    return [Target(NAME, ((),))]  # on Arm, every CPU of 64 bits has vector instructions


def sources_hash(folder: Path = FOLDER) -> str:
    """The hash of all C++ files of a folder, which a library compiled from them carries. "": there are none."""
    files = sorted([*folder.glob("*.cpp"), *folder.glob("*.h")])
    digest = hashlib.sha256()
    for file in files:
        text = file.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{file.name} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:16] if files else ""


def find_compiler() -> list[str]:
    """The command of the machine's C++ compiler: CXX, or the first of the usual names that there is."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        if shutil.which(named[0]) is None:
            raise CannotBuild(f"the C++ compiler that CXX names ({named[0]}) does not exist")
        return named
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name) is not None:
            return [name]
    raise CannotBuild("there is no C++ compiler (c++, g++, clang++, or what CXX names)")


def compile_libraries(to: Path = FOLDER, *, folder: Path = FOLDER) -> Built:
    """Compiles the C++ files of a folder for all targets of this architecture, side by side.

    Only the library for all CPUs has to be built: compilers that do not know the others are no problem.

    Parameters
    ----------
    to
        The folder of the libraries. By default beside the sources, where they are used from then on.
    folder
        Where the sources are.
    """
    *others, general = targets()
    built = Built([], [])
    with ThreadPoolExecutor(1 + len(others)) as pool:
        made = {
            target.name: pool.submit(compile_library, to / target.name, folder=folder, target=target)
            for target in (general, *others)
        }
        built.libraries.append(made.pop(general.name).result())
        for name, library in made.items():
            try:
                built.libraries.append(library.result())
            except (CannotBuild, OSError) as problem:
                built.problems.append(f"{name} is left out: {problem}")
    return built


def compile_library(
    out: Path | None = None, *, folder: Path = FOLDER, target: Target | None = None, sanitize: bool = False
) -> Path:
    """Compiles the C++ files of a folder into one shared library; the old one stays where that fails.

    Parameters
    ----------
    out
        The library's file. By default the one of its target beside the sources, which is used from then on.
    folder
        Where the sources are.
    target
        The CPUs that it is for. By default all of this architecture.
    sanitize
        With checks of every access and of undefined behavior, for tests: the process must have preloaded libasan.
    """
    target = targets()[-1] if target is None else target
    out = folder / target.name if out is None else out
    files = sorted(folder.glob("*.cpp"))
    if not files:
        raise CannotBuild(f"there are no C++ files in {folder}")
    compiler = find_compiler()
    flags = [*BASE_FLAGS, *MATH_FLAGS, *(SANITIZE_FLAGS if sanitize else ())]
    last: CannotBuild | None = None
    for machine in target.flags:
        try:
            return _compile(compiler, flags, machine, files, out, sources_hash(folder))
        except CannotBuild as problem:
            last = problem
    assert last is not None
    raise last


def _compile(
    compiler: list[str], flags: list[str], machine: tuple[str, ...], files: list[Path], out: Path, sources: str
) -> Path:
    by = " ".join([Path(compiler[0]).name, *compiler[1:], *flags, *machine]).replace('"', "'").replace("\\", "/")
    said = [f'-DPREQUENTIAL_SOURCES="{sources}"', f'-DPREQUENTIAL_COMPILED_BY="{by}"']
    said += ["-DPREQUENTIAL_AVX512"] if machine == AVX512_FLAGS else []
    target = [f"-mmacosx-version-min={macos_target()}"] if sys.platform == "darwin" else []
    with tempfile.TemporaryDirectory(prefix="prequential-build-") as made_in:
        objects = []
        for file in files:
            objects.append(str(Path(made_in) / f"{file.stem}.o"))
            extra = said if file.name == "abi.cpp" else list(machine)
            _run([*compiler, *flags, *target, *extra, "-c", str(file), "-o", objects[-1]])
        linked = Path(made_in) / out.name
        threads = [] if sys.platform in ("darwin", "win32") else ["-pthread"]
        checks = [flag for flag in flags if flag.startswith("-fsanitize")]
        _run([*compiler, "-shared", *target, *threads, *checks, *objects, "-o", str(linked)])
        out.parent.mkdir(parents=True, exist_ok=True)
        # a process that has loaded the old file keeps it: the new one takes its name, not its place on disk
        beside = out.with_name(f".{out.name}.{os.getpid()}")
        try:
            shutil.copyfile(linked, beside)
            os.replace(beside, out)
        finally:
            beside.unlink(missing_ok=True)
    return out


def macos_target() -> str:
    """The oldest macOS that a library made here runs on."""
    return os.environ.get("MACOSX_DEPLOYMENT_TARGET") or ("11.0" if platform.machine() == "arm64" else "10.13")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as problem:
        raise CannotBuild(f"{command[0]} cannot be started: {problem}") from problem
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if "error" in line), lines[-1] if lines else "it says nothing")
        raise CannotBuild(f"{command[0]} fails with code {done.returncode}: {reason[:300]}")


def main() -> int:
    """Rebuilds the libraries beside the sources."""
    parser = argparse.ArgumentParser(prog="python -m prequential.native.build", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=None, help="builds one library, for all CPUs, as this file")
    parser.add_argument("--sanitize", action="store_true", help="the same, with checks of every access (for tests)")
    given = parser.parse_args()
    try:
        if given.out is None and not given.sanitize:
            built = compile_libraries()
        else:
            built = Built([compile_library(given.out, sanitize=given.sanitize)], [])
    except CannotBuild as problem:
        print(f"the native core cannot be built: {problem}", file=sys.stderr)
        return 1
    print(*built.libraries, sep="\n")
    for reason in built.problems:
        print(reason, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
