"""How much time experiments may take."""

from __future__ import annotations

import re

from prequential.errors import BadSetting

UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """Seconds, from a time such as 90m or 10h.

    >>> parse_duration("90m"), parse_duration("1.5h"), parse_duration("45s")
    (5400.0, 5400.0, 45.0)
    >>> parse_duration("10")
    Traceback (most recent call last):
    prequential.errors.BadSetting: the budget is '10', expected a time such as 90m or 10h
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip())
    if match is None or not float(match[1]):
        raise BadSetting(f"the budget is {text[:40]!r}, expected a time such as 90m or 10h")
    return float(match[1]) * UNITS[match[2]]
