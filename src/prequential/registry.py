"""Learners by name, with options: `majority(window=100)`, `river:forest.ARFClassifier`, `my_module:MyLearner(k=3)`.

`refit(lightgbm)` and `refit(sklearn:svm.SVC(C=2), window=1000)` have a model inside, whose options are its own.

Built-in names are those of the learners that `prequential.baselines` exports; a class says in `names` what it is
called.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from prequential.errors import BadSetting
from prequential.imports import import_object, is_object_name
from prequential.learners.base import OnlineLearner
from prequential.renames import OPTIONS, SETTINGS, current_names
from prequential.settings import Settings
from prequential.specs import check_kinds, nearest, parse_call

FROM_THE_RUN = ("classes", "device", "missing")  # the same for all learners of a run, and so not an option of one
TRANSFORMERS: dict[str, dict[str, Any]] = {  # each with the settings that it changes
    "transformer": {},
    "two-token": {"model": "two-token"},
    "no-image": {"use_input": False},
    "no-attention": {"window": 0},
}


@dataclass(frozen=True)
class Given:
    """What a learner is made with."""

    classes: int | Sequence[Hashable] | None
    settings: Settings  # of the transformer, and of no other
    device: str
    missing: bool
    seed: int
    options: dict[str, Any]


def make_learner(
    spec: str,
    classes: int | Sequence[Hashable] | None = None,
    *,
    settings: Settings | None = None,
    device: str = "cpu",
    missing: bool = False,
    seed: int | None = None,
) -> OnlineLearner:
    """Makes a learner from its name and options.

    Parameters
    ----------
    spec
        A name, with options in parentheses where they differ from the defaults. `river:`, `sklearn:` and `capymoa:` are
        the prefixes of any classifier of these libraries; its own settings are options too. `refit(lightgbm)` and
        `refit(sklearn:CLASS(...))` fit a batch learner again and again. `my_package.module:Class` is a subclass of `OnlineLearner` in a module of one's own, which is imported.
    classes
        How many labels there can be, or the labels themselves. None: any number.
    settings
        The settings of the transformers; options win over them.
    device
        Where to compute: auto, cpu, cuda, ...
    missing
        Whether features may be NaN.
    seed
        The seed; by default that of the settings.

    Examples
    --------
    >>> make_learner("majority(window=50)", 10).window
    50
    >>> make_learner("no-attention(width=64)", 10).settings.window
    0
    >>> make_learner("kalmann", 10)
    Traceback (most recent call last):
    prequential.errors.BadSetting: unknown learner 'kalmann'; did you mean 'kalman'?
    """
    settings = settings or Settings()
    name, options = parse_call(spec)
    given = Given(classes, settings, device, missing, settings.seed if seed is None else seed, options)
    library, colon, path = name.partition(":")
    if name in TRANSFORMERS:
        return _make_transformer(given, TRANSFORMERS[name])
    if name in built_in():
        kind, changes = built_in()[name]
        model = _model_inside(kind, options)
        return _construct(kind, given, {**changes, **current_names(options, _old_names(kind))}, **model)
    if colon and path and library in libraries():
        return _make_of_library(libraries()[library], given, path)
    if is_object_name(name):
        return _construct(_own_class(name), given, options)
    raise BadSetting(f"unknown learner {name!r}{nearest(name, learner_names())}")


@cache
def built_in() -> dict[str, tuple[type[OnlineLearner], dict[str, Any]]]:
    """The baselines by name, each with the options that its name stands for.

    >>> built_in()["er-polrs"][0].__name__, built_in()["er-polrs"][1]
    ('ExperienceReplay', {'polrs': True})
    """
    return {
        name: (kind, options)
        for kind in _exported()
        if not hasattr(kind, "library")
        for name, options in (vars(kind).get("names") or {_dashed(kind.__name__): {}}).items()
    }


@cache
def libraries() -> dict[str, type[OnlineLearner]]:
    """The learners that wrap any classifier of a library, by the prefix of their names."""
    return {str(kind.library): kind for kind in _exported() if hasattr(kind, "library")}


def _exported() -> list[type[OnlineLearner]]:
    from prequential import baselines  # late: it imports torch

    kinds = [getattr(baselines, name) for name in baselines.__all__]
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, OnlineLearner)]


def _dashed(name: str) -> str:
    """A class's name as one writes it on a command line.

    >>> _dashed("LastLabel"), _dashed("ACM")
    ('last-label', 'acm')
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def learner_names() -> list[str]:
    """All names, for help texts; CLASS is where a class is inside its library or module.

    >>> learner_names()[:4]
    ['transformer', 'two-token', 'no-image', 'no-attention']
    """
    return [*TRANSFORMERS, *built_in(), *(f"{library}:CLASS" for library in libraries()), "MODULE:CLASS"]


def current_spec(spec: str) -> str:
    """A learner's name with the names that its options have now, to compare it with others.

    >>> current_spec("er(hidden=[8], batch=4)"), current_spec("majority(window=3)")
    ('er(hidden_sizes=[8], batch=4)', 'majority(window=3)')
    """
    name, bracket, rest = spec.partition("(")
    table = SETTINGS if name.strip() in TRANSFORMERS else OPTIONS
    old = [option for option in parse_call(spec)[1] if option in table]
    for option in old if ":" not in name else ():
        rest = re.sub(rf"(?<![\w.]){option}(?=\s*=)", table[option], rest)
    return f"{name}{bracket}{rest}"


def is_transformer(spec: str) -> bool:
    """Whether a name is that of one of the transformers, which alone have the transformers' settings.

    >>> is_transformer("no-image(width=64)"), is_transformer("kalman")
    (True, False)
    """
    return parse_call(spec)[0] in TRANSFORMERS


def _make_transformer(given: Given, changes: dict[str, Any]) -> OnlineLearner:
    from prequential.learners.transformer.learner import Learner

    options = current_names(given.options, SETTINGS)
    check_kinds("transformer", options, typing.get_type_hints(Settings))
    settings = given.settings.changed(**{"seed": given.seed, **changes, **options})
    return Learner(given.classes, settings=settings, device=given.device, missing=given.missing)


def _make_of_library(kind: type[OnlineLearner], given: Given, path: str) -> OnlineLearner:
    """A classifier of another library: options that the learner does not have itself are the classifier's."""
    options = current_names(given.options, _old_names(kind))
    own = {name: value for name, value in options.items() if name in _option_names(kind)}
    others = {name: value for name, value in options.items() if name not in own}
    return _construct(kind, given, own, model=path, settings=others)


def _model_inside(kind: type[OnlineLearner], options: dict[str, Any]) -> dict[str, Any]:
    """Takes the model out of the options of a learner that has one inside; its path and its own options."""
    if "model" not in options or "model" not in inspect.signature(kind).parameters:
        return {}
    model = options.pop("model")
    if isinstance(model, dict) and "class" in model:
        return {"model": model["class"], "settings": {name: value for name, value in model.items() if name != "class"}}
    if not isinstance(model, str):
        raise BadSetting(f"{kind.__name__}: model is {model!r}, expected a name such as lightgbm")
    return {"model": model}


def learner_class(name: str, module: str | None = None) -> type[OnlineLearner]:
    """The class of a learner by the name that a save has for it; one that does not come with the package needs trust.

    Parameters
    ----------
    name
        Of the class.
    module
        Where it is defined; saves of earlier versions do not say so.

    Examples
    --------
    >>> learner_class("Majority").__name__
    'Majority'
    """
    from prequential.learners.transformer.learner import Learner

    kinds: list[type[OnlineLearner]] = [Learner, *_exported()]
    for kind in kinds:
        if name == kind.__name__ and module in (None, kind.__module__):
            return kind
    if module is None:
        raise BadSetting(f"{name!r} is no learner of this package: the class that saved it can load it")
    return _own_class(f"{module}:{name}")


def _own_class(name: str) -> type[OnlineLearner]:
    kind = import_object(name, "learner")
    if not (isinstance(kind, type) and issubclass(kind, OnlineLearner)) or inspect.isabstract(kind):
        missing = sorted(getattr(kind, "__abstractmethods__", ()))
        why = f"does not define {', '.join(missing)}" if missing else "is not a subclass of prequential.OnlineLearner"
        raise BadSetting(f"learner {name!r} {why}; prequential.testing.check_learner says what a learner must do")
    return kind


def _old_names(kind: type[OnlineLearner]) -> dict[str, str]:
    """The names that options of a learner had in earlier versions, and what they are called now."""
    options = _option_names(kind)
    return {old: new for old, new in getattr(kind, "old_names", {}).items() if new in options}


def _option_names(kind: type[OnlineLearner]) -> list[str]:
    names = inspect.signature(kind).parameters
    return [name for name in names if name not in (*FROM_THE_RUN, "model", "settings")]


def _construct(kind: type[OnlineLearner], given: Given, options: dict[str, Any], **more: Any) -> OnlineLearner:
    """A learner, after its options were checked. It gets `missing`, `seed` and `device` where it takes them."""
    names = _option_names(kind)
    for name in options:
        if name not in names:
            if name in FROM_THE_RUN:
                raise BadSetting(f"{name} is not an option of a learner: the run sets it, and it is the same for all")
            raise BadSetting(f"{kind.__name__} has no option {name!r}{nearest(name, names)}")
    with suppress(NameError, TypeError):  # annotations of one's own may name what is imported for type checkers only
        check_kinds(kind.__name__, options, typing.get_type_hints(kind.__init__))
    parameters = inspect.signature(kind).parameters
    if "missing" in parameters:
        more["missing"] = given.missing
    elif given.missing:
        raise BadSetting(f"{kind.__name__} takes no argument missing, but features of this stream may be missing")
    if "seed" in parameters:
        options = {"seed": given.seed, **options}
    if "device" in parameters:
        from prequential.learners.device import find_device

        more["device"] = str(find_device(given.device))
    return kind(given.classes, **options, **more)
