"""What the targets of the fuzzer share: how a call is judged, and values that nobody expects."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST = 300  # characters of a sentence


@dataclass(frozen=True)
class Outcome:
    """How a case ended: "accepted", "refused" or "failed", what it was, and why it failed."""

    kind: str
    what: str
    why: str = ""


def judge(what: str, call: Callable[[], Any]) -> Outcome:
    """Accepted, or refused with one short sentence; everything else is a failure."""
    from prequential.errors import PrequentialError

    try:
        call()
    except PrequentialError as error:
        return judge_sentence(what, str(error))
    except AssertionError as error:
        return Outcome("failed", what, f"{error} {place(error)}")
    except Exception as error:
        return Outcome("failed", what, f"{type(error).__name__}: {safe(error)[:200]} {place(error)}")
    return Outcome("accepted", what)


def judge_sentence(what: str, said: str) -> Outcome:
    if len(said) > LONGEST:
        return Outcome("failed", what, f"a sentence of {len(said)} characters: {said[:200]}")
    if len(said.splitlines()) != 1 or not said.strip():
        return Outcome("failed", what, f"not one line: {said!r}")
    return Outcome("refused", what, said)


def place(error: BaseException) -> str:
    """Where in the package an error came from."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "prequential" in frame.filename]
    return f"({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def safe(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


class Raises:
    """Raises whatever it is asked."""

    def _raise(self, *given: Any, **more: Any) -> Any:
        raise RuntimeError("never " * 1000)

    __array__ = __len__ = __iter__ = __hash__ = __eq__ = __repr__ = __str__ = __float__ = __getitem__ = __bool__ = (
        _raise
    )


class Lies:
    """Answers everything, wrongly."""

    shape = "wide"
    dtype = None
    ndim = -3

    def __array__(self, *given: Any, **more: Any) -> Any:
        return "garbage"

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        return iter(["a", "b"])

    def __getitem__(self, at: Any) -> Any:
        return self

    def __hash__(self) -> int:
        return random.getrandbits(20)

    def __eq__(self, other: object) -> bool:
        return bool(random.getrandbits(1))

    def __repr__(self) -> str:
        return "\n" * 10_000 + "r" * 100_000


TEXTS = (
    "", " ", "a", "nan", "inf", "-inf", "-1", "0", "1e309", "1_000", "0x10", "true", "None", "\x00", "\n", "\x1b[31m", "\ud800", "\u202e", "é",
    "💥", "'", '"', "(", ")", "{}", "a(b=c", "../..", "/", "~", "-", "--", "%s", "{0}", "\\", "a" * 5000, "١٢٣", "9" * 5000, "1" + "0" * 400,
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 7, 255, 2**31, 2**53 + 1, 2**63, 2**64, 10**400, 0.0, -0.0, 0.5, 1e-320, 1e7, 1e30, 1e39, 1e200, 1.7e308, -1e308,
    float("nan"), float("inf"), float("-inf"), True, False,
)  # fmt: skip


def tree(rng: random.Random, depth: int = 3) -> Any:
    """Any nested value."""
    kind = rng.randrange(10 if depth else 5)
    match kind:
        case 0:
            return rng.choice(TEXTS)
        case 1 | 2:
            return rng.choice(NUMBERS)
        case 3:
            return rng.choice((None, b"x", 1j, Raises, Ellipsis))
        case 4:
            return rng.uniform(-3, 3)
        case 5:
            return {rng.choice(("a", "class", "0", 0)): tree(rng, depth - 1) for _ in range(rng.randrange(3))}
        case 6:
            return tuple(tree(rng, depth - 1) for _ in range(rng.randrange(4)))
        case _:
            return [tree(rng, depth - 1) for _ in range(rng.randrange(5))]
