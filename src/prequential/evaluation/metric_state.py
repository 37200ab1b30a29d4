"""The state of a metric as JSON values and arrays, without pickle.

Only values are stored: numbers, texts, lists, dicts, and the attributes of objects by name. No class is ever named. The
state is loaded into a new metric that was made as the first one was, so that a file cannot say what is executed.
"""

from __future__ import annotations

import copyreg
import functools
import types
from collections import defaultdict
from typing import Any

import numpy as np

from prequential.errors import PrequentialError
from prequential.labels import label_text, read_label

DEEPEST = 12  # objects in objects
SAME = {"same": True}  # what is not state, and is in the new metric as it was in the first one


class NotStorable(Exception):
    """Something whose state cannot be stored."""


def encode(value: Any, depth: int = 0) -> Any:
    """A metric's state, or a part of it."""
    if depth > DEEPEST:
        raise NotStorable("it is nested too deeply")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": value.hex()}  # to the bit, and JSON has no infinity
    if type(value) is np.ndarray and value.dtype.kind in "fiub":
        return {"array": value.copy()}
    if type(value) in (list, tuple):
        return {"list": [encode(part, depth + 1) for part in value]}
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(_key(part) for part in value)}
    if isinstance(value, dict):
        return {"dict": [[_key(key), encode(part, depth + 1)] for key, part in value.items()]}
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)):
        return SAME
    if _is_plain_object(value):
        return {"object": {name: encode(part, depth + 1) for name, part in vars(value).items()}}
    raise NotStorable(f"a {type(value).__name__} has no state that can be stored")


def decode(new: Any, state: Any) -> Any:
    """What was encoded, made out of the same part of a new metric."""
    if not isinstance(state, dict):
        return state
    ((kind, stored),) = state.items()
    if kind == "same":
        return new
    if kind == "float":
        return float.fromhex(stored)
    if kind == "array":
        return np.array(stored)
    if kind == "set":
        return type(new if isinstance(new, (set, frozenset)) else set())(read_label(text) for text in stored)
    if kind == "list":
        parts = new if isinstance(new, (list, tuple)) and len(new) == len(stored) else [None] * len(stored)
        made = [decode(part, each) for part, each in zip(parts, stored, strict=True)]
        return tuple(made) if isinstance(new, tuple) else made
    if kind == "dict" and isinstance(new, dict):
        before = dict(new)
        new.clear()
        for text, each in stored:
            key = read_label(text)
            new[key] = decode(before[key] if key in before else _made_by(new), each)
        return new
    if kind == "object" and hasattr(new, "__dict__"):
        for name, each in stored.items():
            vars(new)[name] = decode(vars(new).get(name), each)
        return new
    raise NotStorable(f"a {type(new).__name__} cannot be made out of a stored {kind}")


def _is_plain_object(value: Any) -> bool:
    """Whether all there is to an object is its class and its attributes: no slots, no C, no content of its own.

    This is read from `__reduce_ex__`; nothing is pickled.
    """
    try:
        make, arguments, state, items, pairs = value.__reduce_ex__(2)
    except Exception:  # whatever an object of the user's raises
        return False
    made_plainly = make is copyreg.__newobj__ and arguments == (type(value),)  # type: ignore[attr-defined]
    plain = made_plainly and items is None and pairs is None
    return plain and hasattr(value, "__dict__") and (state is None or state == vars(value))


def _made_by(container: dict[Any, Any]) -> Any:
    """What a defaultdict puts at a key that is new."""
    if isinstance(container, defaultdict) and container.default_factory is not None:
        return container.default_factory()
    return None


def _key(key: Any) -> str:
    try:
        return label_text(key)
    except (PrequentialError, TypeError, ValueError):
        raise NotStorable(f"a key of type {type(key).__name__} cannot be stored") from None
