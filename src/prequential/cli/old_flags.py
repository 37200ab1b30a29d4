"""Flags that had another name in an earlier version."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prequential.errors import BadSetting, EngineWarning
from prequential.renames import REMOVED, SETTINGS, RenamedSetting, warn_of

COMMANDS = ("run", "compare")  # those that take the learner's settings


def current_flags(arguments: list[str]) -> list[str]:
    """The same command line with the names that flags have now; one warning names all old ones.

    >>> current_flags(["run", "--num-streams", "4", "--no-async-steps"])
    ['run', '--num-streams', '4', '--no-async-steps']
    """
    if not arguments or arguments[0] not in COMMANDS:
        return arguments
    found: list[str] = []
    old: list[str] = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        no = "no-" if flag.startswith("--no-") else ""
        written = flag.removeprefix("--").removeprefix(no)
        name = written.replace("-", "_")
        if flag.startswith("--") and name in REMOVED:
            old += [] if no or value.lower() == str(REMOVED[name]).lower() else [name]
            continue
        if flag.startswith("--") and name in SETTINGS:
            old.append(name)
            written = SETTINGS[name].replace("_", "-")
            if {f"--{written}", f"--no-{written}"} & {other.partition("=")[0] for other in arguments}:
                raise BadSetting(f"{flag} is now called --{no}{written}: both are given, leave out {flag}")
            argument = f"--{no}{written}{equals}{value}"
        found.append(argument)
    warn_of(old, SETTINGS)
    return found


@contextmanager
def shown_once() -> Iterator[None]:
    """Inside, a warning on an old name or another engine is one line on stderr, the same line only once."""
    said: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *more: Any, **named: Any) -> None:
        if not issubclass(category, (RenamedSetting, EngineWarning)):
            before(message, category, *more, **named)
        elif str(message) not in said:
            said.add(str(message))
            print(f"prequential: {message}", file=sys.stderr)

    before = warnings.showwarning
    with warnings.catch_warnings():
        for shown in (RenamedSetting, EngineWarning):
            warnings.simplefilter("always", shown)
        warnings.showwarning = show
        yield
