"""Finds and loads the shared library of the native core, once per process, when it is first asked for.

Where several were built, it is the first that this CPU can run; all of them give the same bits.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from prequential.native.build import FOLDER, sources_hash, targets

ABI_VERSION = 2  # of the functions in the library; abi.cpp says the same number
PATH_VARIABLE = "PREQUENTIAL_NATIVE_LIBRARY"  # names another library, such as one with sanitizers

_lock = threading.Lock()
_found: Found | None = None


class Found(NamedTuple):
    """The library, or why there is none, in words that end a sentence "torch computes: ..."."""

    library: ctypes.CDLL | None
    reason: str = ""

    def describe(self) -> str:
        """The compiler and its flags, or why there is no library."""
        return self.reason if self.library is None else self.library.prequential_compiled_by().decode()


def library() -> Found:
    """The native core's library; the first call loads it, and every later one gives the same answer."""
    global _found
    if _found is None:
        with _lock:
            if _found is None:
                named = os.environ.get(PATH_VARIABLE)
                _found = load_library(Path(named)) if named else load_first()
    return _found


def load_first(folder: Path = FOLDER) -> Found:
    """Loads the first library in a folder that can be used, or says why the one for all CPUs cannot."""
    found = Found(None)
    for target in targets():
        found = load_library(folder / target.name, folder)
        if found.library is not None:
            break
    return found


def load_library(path: Path, folder: Path = FOLDER) -> Found:
    """Loads a library and checks that it belongs to the sources in `folder` and that this CPU can run it."""
    if not path.is_file():
        return Found(None, "the native core was not built when this was installed (docs/native.md says how)")
    try:
        if _is_cut_off(path):
            raise OSError(f"{path.name} is shorter than it says")
        loaded = ctypes.CDLL(str(path.resolve()))  # a bare name would be looked for elsewhere
        loaded.prequential_abi_version.restype = ctypes.c_int
        loaded.prequential_runs_here.restype = ctypes.c_int
        for name in ("prequential_sources", "prequential_compiled_by"):
            getattr(loaded, name).restype = ctypes.c_char_p
        abi, sources = loaded.prequential_abi_version(), loaded.prequential_sources().decode()
        runs = loaded.prequential_runs_here()
    except (OSError, AttributeError, ValueError) as problem:
        return Found(None, f"the native core cannot be loaded: {' '.join(str(problem).split())[:200]}")
    rebuild = "python -m prequential.native.build makes it anew"
    if abi != ABI_VERSION:
        return Found(None, f"the native core is of another version ({abi}, expected {ABI_VERSION}); {rebuild}")
    expected = sources_hash(folder)
    if expected and sources != expected:
        return Found(None, f"the native core was built from other sources than those beside it; {rebuild}")
    if not runs:
        flags = [word for word in loaded.prequential_compiled_by().decode().split() if word.startswith("-m")]
        return Found(None, f"this CPU lacks instructions that the native core was built for ({' '.join(flags)})")
    return Found(loaded)


def _is_cut_off(path: Path) -> bool:
    """Whether an ELF file ends before its section headers, which are its end: loading it would kill the process."""
    with path.open("rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:4] != b"\x7fELF":
            return False  # then loading it fails
        start, size, count = (int.from_bytes(head[at:to], sys.byteorder) for at, to in ((40, 48), (58, 60), (60, 62)))
        return start + size * count > file.seek(0, os.SEEK_END)
