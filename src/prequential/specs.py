"""Names with options, as people write them on a command line: `majority(window=100)`, `photos(length=2000000)`."""

from __future__ import annotations

import ast
import numbers
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from prequential.errors import BadSetting

MOST_NAMES = 180  # characters of names in a sentence
UNQUOTED_PATH = re.compile(r"""(?<==)[^\s,'"()\[\]{}=]*/[^\s,'"()\[\]{}=]*""")


def check_kinds(who: str, options: dict[str, Any], hints: dict[str, Any]) -> None:
    """Refuses options whose values are not of the kind that the annotations name."""
    for name, value in options.items():
        if name in hints and not fits(value, hints[name]):
            raise BadSetting(f"{who}: {name} is {_say(value)}, expected {say_kind(hints[name])}")


def _say(value: Any) -> str:
    """A value in a sentence, however long it is."""
    try:
        text = repr(value)
    except ValueError:  # a number with thousands of digits
        return f"a number of type {type(value).__name__} with thousands of digits"
    return text if len(text) <= 80 else f"{text[:76]} ..."


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from a text is of the kind that an annotation names."""
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if kind in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if kind is typing.Literal:
        return value in parts
    if isinstance(kind, type) and issubclass(kind, Sequence):
        return isinstance(value, (list, tuple)) and all(fits(part, parts[0]) for part in value)
    if hint in (int, float):
        kinds = numbers.Integral if hint is int else numbers.Real  # NumPy's own are among them
        return isinstance(value, kinds) and not isinstance(value, bool)
    return isinstance(value, kind or hint)


def say_kind(hint: Any) -> str:
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return " or ".join(say_kind(part) for part in parts)
    if kind is typing.Literal:
        return "one of " + ", ".join(map(str, parts))
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "pairs such as {name: value}"
    if isinstance(kind, type) and issubclass(kind, Sequence):
        return f"a list of {say_kind(parts[0])}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", types.NoneType: "none"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence on an unknown name: what was meant, or what there is, as far as it fits.

    >>> nearest("widht", ["width", "depth"])
    "; did you mean 'width'?"
    """
    names = list(names)
    near = get_close_matches(name[:100], names, 1) or [known for known in names if len(name) > 2 and name in known]
    if near:
        return f"; did you mean {near[0]!r}?"
    shown = [name for i, name in enumerate(names) if len(", ".join(names[: i + 1])) <= MOST_NAMES]
    return f"; expected one of {', '.join(shown)}{', ...' if len(shown) < len(names) else ''}"


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options in a text such as `name(option=value, ...)`. Nothing in it is executed.

    Values are numbers, words with or without quotes, true, false, none, lists, and objects of a library.

    >>> parse_call("er(hidden_sizes=[64, 32], learning_rate=1e-2, polrs=true)")
    ('er', {'hidden_sizes': [64, 32], 'learning_rate': 0.01, 'polrs': True})
    >>> parse_call("river:forest.ARFClassifier(drift_detector=drift.ADWIN(delta=0.01))")
    ('river:forest.ARFClassifier', {'drift_detector': {'class': 'drift.ADWIN', 'delta': 0.01}})

    The first one may be a model without a name:

    >>> parse_call("refit(sklearn:svm.SVC(C=2), window=1000)")
    ('refit', {'model': {'class': 'sklearn:svm.SVC', 'C': 2}, 'window': 1000})
    """
    name, bracket, rest = text.partition("(")
    return name.strip(), parse_options(rest, text) if bracket else {}


def parse_options(rest: str, text: str) -> dict[str, Any]:
    """The options in what stands behind the opening bracket of a text.

    >>> parse_options("delimiter=';', kinds={zip: category})", "prices.csv(...)")
    {'delimiter': ';', 'kinds': {'zip': 'category'}}

    A path needs no quotes either, unless there are spaces, commas or brackets in it:

    >>> parse_options("records=data/records-2.npz, gap=60)", "photos(...)")
    {'records': 'data/records-2.npz', 'gap': 60}
    """
    for written in dict.fromkeys((rest, UNQUOTED_PATH.sub(lambda found: repr(found[0]), rest))):
        with suppress(SyntaxError, ValueError, IndexError, RecursionError, MemoryError):
            return _options(written)
    raise BadSetting(f"cannot read the options in {text!r}; expected them as in name(option=value, other=[1, 2])")


def _options(rest: str) -> dict[str, Any]:
    library = re.match(r"\s*([A-Za-z]\w*:)(?=[A-Za-z])", rest)  # of a model without a name
    source = f"f({(rest[library.end() :] if library else rest).strip()}"
    call = ast.parse(source, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError
    return {**_model(call, source, library[1] if library else ""), **_keywords(call, source)}


def _model(call: ast.Call, source: str, library: str) -> dict[str, Any]:
    """The model that stands first in a call without a name, which it loses; none where all options have names."""
    if not call.args and not library:
        return {}
    model = _value(call.args.pop(0), source)
    if isinstance(model, dict) and "class" in model:
        return {"model": {**model, "class": library + model["class"]}}
    if not isinstance(model, str):
        raise ValueError
    return {"model": library + model}


def _keywords(call: ast.Call, source: str) -> dict[str, Any]:
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise ValueError  # an option without a name
    return {str(keyword.arg): _value(keyword.value, source) for keyword in call.keywords}


def _value(node: ast.expr, source: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    match node:
        case ast.Call():
            return {"class": _word(node.func, source), **_keywords(node, source)}  # no option can have that name
        case ast.List() | ast.Tuple():
            return [_value(part, source) for part in node.elts]
        case ast.Dict() if None not in node.keys:
            keys = [_value(key, source) for key in node.keys if key is not None]
            return dict(zip(keys, [_value(part, source) for part in node.values], strict=True))
        case ast.Name() | ast.Attribute() | ast.BinOp():  # a word without quotes: float32, drift.ADWIN, two-token
            word = _word(node, source)
            return words.get(word, word)
    return ast.literal_eval(node)


def _word(node: ast.expr, source: str) -> str:
    text = ast.get_source_segment(source, node) or ""
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", text):
        raise ValueError
    return text
