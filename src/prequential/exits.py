"""How the command line ends: every error as one short sentence and an exit code.

0 done, 1 something given or found cannot be used, 2 the command or a setting is wrong, 70 a mistake in this package,
130 Ctrl-C.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cyclopts import CycloptsError

from prequential.errors import LONGEST, BadSetting, PrequentialError, one_line
from prequential.memory_limits import ran_out

UNUSABLE, USAGE, INTERNAL, INTERRUPTED = 1, 2, 70, 130
TRACEBACK = "PREQUENTIAL_TRACEBACK"  # set, it shows where an error came from

# errors of these come from what they were given to read, to write or to reach
LIBRARIES = (
    "PIL", "binascii", "csv", "httpx", "huggingface_hub", "json", "lzma", "optuna", "pyarrow", "requests", "safetensors",
    "sqlalchemy", "sqlite3", "struct", "tarfile", "tomllib", "urllib", "zipfile", "zlib",
)  # fmt: skip


@contextmanager
def one_sentence(name: str = "prequential") -> Iterator[None]:
    """Turns whatever is raised inside into one line on stderr and an exit code."""
    try:
        yield
        sys.stdout.flush()  # where the reader has gone away, this is where it shows
    except SystemExit:
        raise
    except BrokenPipeError:
        _forget_output()
        raise SystemExit(UNUSABLE) from None
    except BaseException as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        sentence, code = explain(error)
        _say(f"{name}: {sentence}")
        try:
            sys.stdout.flush()
        except (OSError, ValueError):  # it is full or closed: Python would end with a code of its own
            _forget_output()
        raise SystemExit(code) from None


def explain(error: BaseException) -> tuple[str, int]:
    """The sentence on an error, and the exit code it ends with.

    >>> explain(FileNotFoundError(2, "No such file or directory", "a.csv"))
    ('a.csv: No such file or directory', 1)
    >>> explain(KeyError("x"))
    ("internal error: KeyError: 'x' (please report it; PREQUENTIAL_TRACEBACK=1 shows where)", 70)
    """
    if isinstance(error, KeyboardInterrupt):
        return "stopped", INTERRUPTED
    if isinstance(error, PrequentialError):
        return one_line(error), USAGE if isinstance(error, BadSetting) else UNUSABLE
    if isinstance(error, CycloptsError):
        return one_line(error), USAGE
    if ran_out(error):
        return "there is not enough memory: smaller settings or shorter chunks need less", UNUSABLE
    kind = type(error)
    if isinstance(error, OSError) and error.strerror:
        return one_line(f"{_path(error)}{error.strerror}"), UNUSABLE
    if (
        isinstance(error, (OSError, EOFError, UnicodeError))
        or kind.__module__.partition(".")[0].lstrip("_") in LIBRARIES
    ):
        return one_line(f"{kind.__name__}: {_first_line(error)}"), UNUSABLE
    after = f" (please report it; {TRACEBACK}=1 shows where)"
    said = one_line(f"internal error: {kind.__name__}: {_first_line(error)}", LONGEST - len(after))
    return said + after, INTERNAL


def _first_line(error: BaseException) -> str:
    """What an error says, without the advice that libraries add below."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = []
    return lines[0] if lines else "no reason given"


def _path(error: OSError) -> str:
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]
    if error.errno == errno.EMFILE:  # the file has nothing to do with it
        return ""
    return f"{' and '.join(names)}: " if names else ""


def _say(line: str) -> None:
    try:
        print(line, file=sys.stderr)
    except UnicodeEncodeError:
        print(line.encode("ascii", "replace").decode(), file=sys.stderr)
    except OSError:  # stderr is closed
        pass


def _forget_output() -> None:
    """Lets Python end without complaining that the output cannot be written."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
