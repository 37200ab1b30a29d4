"""Whose word a name is: that of the user, or that of a file in a directory that somebody else may have made.

What a user writes on the command line, in Python, or in a file given as an argument (`run --config FILE`, `sweep FILE`)
is his own word. What is read from a directory that was there before (`resume`, `show`, `compare --out` and the runs
inside, a sweep's own copy of its file) is stored. A stored name may mean what comes with this package, a classifier
that `baselines/libraries.py` lets through, and data to read. For anything beyond (fetching data, a database on the net,
another directory to write to) the user must say that the directory is to be trusted.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from prequential.errors import BadCheckpoint, PrequentialError
from prequential.renames import without_warning
from prequential.specs import check_kinds

PLACES = ("home",)  # arguments that name a directory to write to, which are never a file's to choose

_stored: ContextVar[Path | None] = ContextVar("stored", default=None)


class Untrusted(PrequentialError):
    """A stored file asks for something that needs the user's trust; nothing was done."""


@contextmanager
def names_from(stored: Path | None, *, trust: bool = False) -> Iterator[None]:
    """Inside, names are those of a file in this place; None: they are the user's own.

    Parameters
    ----------
    stored
        The directory or file that the names were read from.
    trust
        Whether the user has said that it is to be trusted (`--trust`).

    Examples
    --------
    >>> with names_from(Path("runs/theirs")):  # doctest: +ELLIPSIS
    ...     need_trust("to fetch https://example.org/data.zip")
    Traceback (most recent call last):
    prequential.trust.Untrusted: runs/theirs asks to fetch https://example.org/data.zip; ..., add --trust (in Python ...
    """
    token = _stored.set(None if trust else stored)
    try:
        with without_warning() if stored is not None else nullcontext():
            yield
    finally:
        _stored.reset(token)


def need_trust(what: str) -> None:
    """Refuses something (to ...) that a stored file may not ask for by itself."""
    stored = _stored.get()
    if stored is not None:
        raise Untrusted(f"{stored} asks {what}; if you trust who made it, add --trust (in Python trust=True)")


def stored_arguments(kind: type, config: Any, path: str | Path) -> dict[str, Any]:
    """The arguments of an object as a file has them, after a check: known names, values of their kinds, no places.

    Parameters
    ----------
    kind
        What is made.
    config
        The arguments of its constructor, as the file has them.
    path
        The file, for the sentence on what is wrong.
    """
    if not isinstance(config, dict):
        raise BadCheckpoint(f"{path} does not say what its {kind.__name__} is made with: config is no set of pairs")
    known = inspect.signature(kind).parameters.values()
    free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known)
    for name in config:
        if name in PLACES or not (free or name in [parameter.name for parameter in known]):
            raise BadCheckpoint(
                f"{path} says that its {kind.__name__} is made with {name!r}, which is not part of a save"
            )
    check_kinds(f"{path}: {kind.__name__}", config, typing.get_type_hints(kind.__init__))  # type: ignore[misc]
    return dict(config)
