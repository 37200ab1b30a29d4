"""Reading the data out of a pickle without running it.

A pickle is a program that may call any function. The CIFAR archive is one, so it is read here by a small interpreter
that knows only how to put together numbers, text, lists, dicts and arrays of bytes. It imports nothing and calls
nothing: of the functions a pickle may name, it understands the three that NumPy arrays are written with, by name, and
does their work itself. Anything else is refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from prequential.errors import BadInput


@dataclass
class _Name:
    """A function or class the pickle names; it stays a name."""

    text: str


@dataclass
class _Array:
    """An array, before the pickle has said what is in it."""

    content: np.ndarray | None = None


@dataclass
class _Type:
    text: str


STEPS = 2**20  # instructions of a pickle that are followed
STATES = 100  # arrays and their types
_MARK = object()
_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")


def read_plain_pickle(data: bytes) -> Any:
    """The numbers, text, lists, dicts and arrays of bytes that a pickle of protocol 2 to 5 describes.

    Examples
    --------
    >>> import pickle
    >>> read_plain_pickle(pickle.dumps({"fine_labels": [3, 7]}, protocol=2))
    {'fine_labels': [3, 7]}
    """
    try:
        return _run(data)
    except BadInput:
        raise
    except (LookupError, struct.error, TypeError, ValueError, AttributeError, StopIteration, RecursionError) as error:
        raise BadInput(f"the pickle is damaged: {error!r}") from None


def _run(data: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    at = steps = states = 0

    def take(count: int) -> bytes:
        nonlocal at
        if count < 0 or at + count > len(data):
            raise BadInput(f"the pickle ends after {len(data)} bytes, expected at least {at + count}")
        at += count
        return data[at - count : at]

    def number(form: str) -> int:
        value: int = struct.unpack(form, take(struct.calcsize(form)))[0]
        return value

    def line() -> str:
        end = data.index(b"\n", at)
        text = take(end - at).decode()
        take(1)
        return text

    def since_mark() -> list[Any]:
        place = len(stack) - 1 - next(i for i, part in enumerate(reversed(stack)) if part is _MARK)
        parts = stack[place + 1 :]
        del stack[place:]
        return parts

    while True:
        code = take(1)
        steps += 1
        if steps > STEPS:  # a byte can make a list of 56, and a state is looked for everywhere
            raise BadInput(f"the pickle has more than {STEPS} instructions; one of plain images has 250,000")
        match code:
            case b"\x80":  # protocol
                take(1)
            case b"\x95":  # frame
                take(8)
            case b".":
                return stack.pop()
            case b"(":
                stack.append(_MARK)
            case b"}":
                stack.append({})
            case b"]":
                stack.append([])
            case b")":
                stack.append(())
            case b"N":
                stack.append(None)
            case b"\x88":
                stack.append(True)
            case b"\x89":
                stack.append(False)
            case b"K":
                stack.append(number("<B"))
            case b"M":
                stack.append(number("<H"))
            case b"J":
                stack.append(number("<i"))
            case b"\x8a":
                stack.append(int.from_bytes(take(number("<B")), "little", signed=True))
            case b"U" | b"C":  # Python 2 text is bytes
                stack.append(take(number("<B")))
            case b"T" | b"B":
                stack.append(take(number("<I")))
            case b"\x8e":
                stack.append(take(number("<Q")))
            case b"\x8c":
                stack.append(take(number("<B")).decode())
            case b"X":
                stack.append(take(number("<I")).decode())
            case b"q":
                memo[number("<B")] = stack[-1]
            case b"r":
                memo[number("<I")] = stack[-1]
            case b"\x94":
                memo[len(memo)] = stack[-1]
            case b"h":
                stack.append(memo[number("<B")])
            case b"j":
                stack.append(memo[number("<I")])
            case b"a":
                value = stack.pop()
                stack[-1].append(value)
            case b"e":
                values = since_mark()
                stack[-1].extend(values)
            case b"s":
                value, key = stack.pop(), stack.pop()
                stack[-1][_key(key)] = value
            case b"u":
                values = since_mark()
                stack[-1].update(zip(map(_key, values[::2]), values[1::2], strict=True))
            case b"\x85" | b"\x86" | b"\x87":
                size = code[0] - 0x84
                stack[-size:] = [tuple(stack[-size:])]
            case b"t":
                stack.append(tuple(since_mark()))
            case b"c":
                stack.append(_Name(f"{line()} {line()}"))
            case b"\x93":
                name, module = stack.pop(), stack.pop()
                stack.append(_Name(f"{module} {name}"))
            case b"R":
                arguments, called = stack.pop(), stack.pop()
                stack.append(_called(called, arguments))
            case b"b":
                state = stack.pop()
                states += 1
                if states > STATES:
                    raise BadInput(f"the pickle has more than {STATES} arrays; one of plain images has 1")
                _fill(stack[-1], state)
                if isinstance(stack[-1], _Array):
                    filled = stack[-1]
                    stack[-1] = filled.content
                    memo = {key: filled.content if part is filled else part for key, part in memo.items()}
            case _:
                raise BadInput(
                    f"the pickle holds the instruction {code!r}, which is not one of plain data; it was not run"
                )


def _key(key: Any) -> Any:
    """A key of a dict: nothing nested, as the hash of a tuple that is nested deeply ends the process."""
    if not isinstance(key, str | bytes | int | None):
        raise BadInput(f"the pickle holds a dict with a key of type {type(key).__name__}, expected text or a number")
    return key


def _called(called: Any, arguments: Any) -> Any:
    """What the few functions that arrays are written with would give."""
    text = called.text if isinstance(called, _Name) else repr(called)
    if text in _RECONSTRUCT:
        return _Array()
    if text == "numpy dtype":
        name = arguments[0]
        return _Type(name.decode() if isinstance(name, bytes) else str(name))
    if text == "_codecs encode" and arguments[1] in ("latin1", b"latin1"):
        return arguments[0].encode("latin-1")
    raise BadInput(f"the pickle calls {text!r}, which is not part of plain data; it was not run")


def _fill(target: Any, state: Any) -> None:
    """Gives an array its content, as NumPy's __setstate__ would."""
    if isinstance(target, _Type):
        return  # the byte order, which bytes have none of
    if not isinstance(target, _Array):
        raise BadInput(
            f"the pickle gives a state to a {type(target).__name__}, which is not plain data; it was not run"
        )
    _, shape, kind, fortran, content = state
    if not isinstance(kind, _Type) or kind.text not in ("u1", "|u1", "uint8"):
        raise BadInput(f"the pickle holds an array of {getattr(kind, 'text', kind)!r}, expected bytes ('u1')")
    target.content = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")
