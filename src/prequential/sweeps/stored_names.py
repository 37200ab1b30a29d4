"""The names under which a study keeps settings: those of the version that began it, so that it can be resumed."""

from __future__ import annotations

from typing import Any

from prequential.registry import TRANSFORMERS
from prequential.renames import OPTIONS, SETTINGS

RENAMED_IN = 3  # the format in which settings got the names they have now


def stored_name(name: str, version: int) -> str:
    """What a setting or an option of a learner is called in a study of a format.

    >>> stored_name("num_streams", 2), stored_name("er.learning_rate", 2), stored_name("num_streams", 3)
    ('streams', 'er.rate', 'num_streams')
    """
    kind, dot, option = name.rpartition(".")
    table = SETTINGS if kind in ("", *TRANSFORMERS) else OPTIONS
    old = {new: old for old, new in table.items()}
    return name if version >= RENAMED_IN else f"{kind}{dot}{old.get(option, option)}"


def name_now(name: str) -> str:
    """What a setting that a study has under any name is called now.

    >>> name_now("er.rate"), name_now("num_streams")
    ('er.learning_rate', 'num_streams')
    """
    kind, dot, option = name.rpartition(".")
    table = SETTINGS if kind in ("", *TRANSFORMERS) else OPTIONS
    return f"{kind}{dot}{table.get(option, option)}"


def stored_identity(identity: dict[str, Any], version: int) -> dict[str, Any]:
    """What a sweep must keep the same, with the names of a format: keys are a table in brackets and a name."""
    found = {}
    for key, value in identity.items():
        table, bracket, name = key.partition("] ")
        found[f"{table}{bracket}{stored_name(name, version)}" if bracket else key] = value
    return found
