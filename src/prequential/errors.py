"""The errors a user meets. Each is one sentence that names what was given and what was expected."""

from __future__ import annotations

import reprlib
from typing import Any

LONGEST = 286  # characters of a message: with the name of the command before it, a line of at most 300

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel = 3


class PrequentialError(Exception):
    """The base of every error this package raises on purpose; the command line prints it without a traceback.

    Its message is one line of at most `LONGEST` characters, whatever it is made from.
    """

    def __init__(self, message: object = "", *more: object) -> None:
        super().__init__(one_line(message), *more)


class BadInput(PrequentialError, ValueError):
    """An example, a label or a stream that cannot be used; nothing was changed by it."""


class BadSetting(PrequentialError, ValueError):
    """A setting that is out of range or does not fit another one."""


class BadCheckpoint(PrequentialError):
    """A checkpoint that is damaged, foreign, or does not belong to this run."""


class StorageError(PrequentialError, OSError):
    """The disk refused: full, failing, no free handle. What was asked for was not done, and nothing else changed."""


class DamageWarning(UserWarning):
    """Something that was kept on disk is damaged or missing, and the work goes on without it."""


class ColumnWarning(UserWarning):
    """A column of a table or a field of a row that is not used, or not as one might think."""


class EngineWarning(UserWarning):
    """A learner goes on with another engine than the one that saved it: results agree, but not to the last bit."""


class MissingExtra(PrequentialError, ImportError):
    """A feature whose optional packages are not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional package: pip install 'prequential[{extra}]'")


def one_line(message: object, longest: int = LONGEST) -> str:
    """A text as one line that any terminal can print; a long one loses its middle.

    >>> one_line("a\\n  b")
    'a b'
    >>> one_line("0123456789", longest=5)
    '012…9'
    """
    try:
        text = str(message)
    except Exception:
        text = f"<{type(message).__name__}>"
    if len(text) > 4 * longest:  # what is cut off need not be looked at
        text = f"{text[: 2 * longest]}…{text[-longest:]}"
    # control characters, line separators and lone surrogates are not printable
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 3
    return f"{text[: longest - 1 - tail]}…{text[-tail:]}" if tail else text[:longest]


def short(value: Any) -> str:
    """A user's value for a message: its repr, shortened; also where that repr is endless or raises.

    >>> short("a" * 1000)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaaaaaaaaaa'"
    """
    try:
        return one_line(_SHORT.repr(value), 100)
    except Exception:
        return f"<{one_line(type(value).__name__, 60)}>"
