"""Numbers as the data of a page hold them."""

from __future__ import annotations

import math
from collections.abc import Iterable


def rounded(values: Iterable[float], digits: int = 4) -> list[float | None]:
    """Numbers short enough for a page; None where one is not finite."""
    return [None if not math.isfinite(value) else _whole(round(float(value), digits)) for value in values]


def _whole(value: float) -> float:
    return int(value) if value.is_integer() else value


def finite(value: float) -> float | None:
    """The number, or None where it is not finite."""
    return value if math.isfinite(value) else None
