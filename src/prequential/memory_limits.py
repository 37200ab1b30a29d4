"""How much memory there is, so that what cannot fit is refused in one sentence before it is allocated."""

from __future__ import annotations

import os

from prequential.errors import BadSetting, PrequentialError

ALWAYS = 2**26  # bytes that are never asked about


def memory_bytes() -> int:
    """The memory of this machine, in bytes; 2**40 where it cannot be found out.

    >>> memory_bytes() > 2**20
    True
    """
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2**40


def check_fits(size: float, what: str, kind: type[PrequentialError] = BadSetting) -> None:
    """Refuses what takes more bytes than the machine has.

    >>> check_fits(1e18, "width (999999)")
    Traceback (most recent call last):
    prequential.errors.BadSetting: width (999999) would take 1,000,000,000 GB of memory, more than this machine has...
    """
    if size > ALWAYS and size > memory_bytes():
        gigabytes = memory_bytes() / 1e9
        raise kind(
            f"{what} would take {size / 1e9:,.0f} GB of memory, more than this machine has ({gigabytes:,.0f} GB)"
        )


def ran_out(error: BaseException) -> bool:
    """Whether an error says that there was not enough memory; of PyTorch, on a processor, that is a RuntimeError."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error) if isinstance(error, RuntimeError) else ""
    return "not enough memory" in text or "can't allocate memory" in text
