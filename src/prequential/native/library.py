"""Finds and loads the shared library of the native core, once per process, when it is first asked for."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import NamedTuple

from prequential.native.build import FOLDER, NAME, sources_hash

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
                _found = load_library(Path(named) if named else FOLDER / NAME)
    return _found


def load_library(path: Path, folder: Path = FOLDER) -> Found:
    """Loads a library and checks that it belongs to the sources in `folder` and that this CPU can run it."""
    if not path.is_file():
        return Found(None, "the native core was not built when this was installed (docs/native.md says how)")
    try:
        loaded = ctypes.CDLL(str(path))
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
        return Found(None, "this CPU lacks instructions that the native core was built for (AVX2, FMA)")
    return Found(loaded)
