"""How the C library keeps the memory that a run frees, so that the next step need not ask the system for it again."""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM, _TOP_PAD, _MMAP = -1, -2, -3  # the numbers of M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD
_MOST = 2**31 - 1
_LARGEST = 32 * 2**20  # what glibc takes at most as the size from which on memory is asked of the system
_PAD = 64 * 2**20


def keep_freed_memory() -> bool:
    """Has glibc keep freed memory for the next allocation of its size; whether it will.

    Activations of megabytes are freed and allocated in every step. By default glibc hands them back to the system, which
    then has to clear every page again: a sixth of the time of a step with convolutions (`benchmarks/run.py gains`).
    What a run needs at most does not change. Elsewhere than on glibc, and where a user has set `MALLOC_...` variables,
    nothing is done.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all([mallopt(_MMAP, _LARGEST), mallopt(_TRIM, _MOST), mallopt(_TOP_PAD, _PAD)])
