"""Which classes of River, scikit-learn, LightGBM and CapyMOA a name may refer to, and how they are made.

A name is data: it may come from a file that somebody else wrote. So it is resolved to a class of the library and to
nothing else, the class is checked before anything is called, and its arguments are plain values or again such classes.
Constructors of these libraries store their arguments and do nothing else; classes that read or write files, fetch data
or run code are in none of the modules listed here.
"""

from __future__ import annotations

import importlib
import inspect
import numbers
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from prequential.errors import BadSetting, MissingExtra
from prequential.settings import say_number
from prequential.specs import nearest

# Limits, so that a file cannot make a model take all memory.
LARGEST = 10_000_000  # of any integer option: some are the lengths of buffers and tables
MOST = 10_000  # of an integer option that counts something (n_models, n_factors, ...), and of models in all
MOST_JOBS = 64  # threads or processes
MOST_BITS = 16  # of an exact code: River makes a list of 2 to that power
DEEPEST = 8  # models inside models
COUNTS = ("hidden_layer_sizes", "code_size")  # besides those that begin with n_
MODELS = ("n_models", "n_estimators", "n_trees", "code_size")  # how many copies there are of what is inside
SEEDS = ("seed", "random_state")  # which may be any whole number
# Options that name a place on disk or on the net. joblib unpickles what it finds in a `memory`.
PLACES = (
    "cache", "cache_dir", "dir", "directory", "file", "filename", "folder", "fname", "location", "memory", "path",
    "uri", "url",
)  # fmt: skip
NOT_MODELS = ("_testing", "checks", "conftest", "datasets", "externals", "tests", "utils")  # parts of a module's name
PLACE_ENDS = ("_cache", "_dir", "_directory", "_file", "_filename", "_folder", "_path", "_uri", "_url")


@dataclass(frozen=True)
class Library:
    """What may be used of a library: its modules of models and of their parts, and nothing else."""

    title: str
    example: str
    base: str  # base class of everything that may be made
    classifier: str
    seed: str  # its name for the seed
    modules: tuple[str, ...]
    more_options: tuple[str, ...] | None = None  # of a constructor that takes any name; None: any but places on disk


LIBRARIES = {
    "river": Library(
        title="River",
        example="forest.ARFClassifier",
        base="base.Base",
        classifier="base.Classifier",
        seed="seed",
        modules=(
            "bandit", "cluster", "drift", "dummy", "ensemble", "facto", "feature_selection", "forest", "imblearn",
            "linear_model", "metrics", "misc", "model_selection", "multiclass", "naive_bayes", "neighbors", "optim",
            "preprocessing", "proba", "rules", "stats", "tree",
        ),
    ),
    "sklearn": Library(
        title="scikit-learn",
        example="linear_model.SGDClassifier",
        base="base.BaseEstimator",
        classifier="base.ClassifierMixin",
        seed="random_state",
        modules=(
            "calibration", "discriminant_analysis", "dummy", "ensemble", "gaussian_process", "linear_model",
            "multiclass", "multioutput", "naive_bayes", "neighbors", "neural_network", "semi_supervised", "svm", "tree",
        ),
    ),
    "lightgbm": Library(
        title="LightGBM",
        example="sklearn.LGBMClassifier",
        base="sklearn.LGBMModel",
        classifier="sklearn.LGBMClassifier",
        seed="random_state",
        modules=("sklearn",),
        more_options=("extra_trees", "linear_tree", "max_bin", "path_smooth"),  # others name files and machines
    ),
    "capymoa": Library(
        title="CapyMOA",
        example="classifier.AdaptiveRandomForestClassifier",
        base="base.Classifier",
        classifier="base.Classifier",
        seed="random_seed",
        modules=("classifier",),
        more_options=(),
    ),
}  # fmt: skip


def find_class(library: str, path: str, *, classifier: bool = False) -> type:
    """The class at this place in a library; nothing of it is called.

    Parameters
    ----------
    library
        river, sklearn, lightgbm or capymoa.
    path
        Where the class is: "forest.ARFClassifier".
    classifier
        Whether it must be one that predicts labels; what is inside it may be any model or part of one.

    Examples
    --------
    >>> find_class("sklearn", "naive_bayes.GaussianNB", classifier=True).__name__
    'GaussianNB'
    >>> find_class("sklearn", "datasets.clear_data_home")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    prequential.errors.BadSetting: model 'datasets.clear_data_home' is not in sklearn, or not among its models; ...
    """
    known = LIBRARIES[library]
    parts = path.split(".")
    if not all(part.isidentifier() and not part.startswith("_") for part in parts):
        raise _absent(library, path)
    try:
        importlib.import_module(library)
    except ImportError:
        raise MissingExtra(f"the model {path!r}", library) from None  # the extra has the library's name
    if len(parts) < 2 or parts[0] not in known.modules:
        raise _absent(library, path)
    module = _module(library, path)
    kind = vars(module).get(parts[-1])
    if not isinstance(kind, type) or not _is_of(kind, library):
        raise _absent(library, path)
    if not issubclass(kind, _base(library, known.base)):
        raise BadSetting(f"model {path!r} is no model of {known.title} and no part of one, and was not called")
    if classifier and not issubclass(kind, _base(library, known.classifier)):
        raise BadSetting(
            f"model {path!r} is no classifier of {known.title}; expected one that predicts labels from features"
        )
    if inspect.isabstract(kind):
        raise BadSetting(f"model {path!r} is abstract in {known.title}; expected a name such as {known.example!r}")
    return kind


def _absent(library: str, path: str) -> BadSetting:
    known = LIBRARIES[library]
    return BadSetting(
        f"model {path!r} is not in {library}, or not among its models; expected a name such as {known.example!r}"
    )


def _module(library: str, path: str) -> ModuleType:
    """The module that a class is in: one that is listed, or one that it has imported of itself."""
    first, *inner = path.split(".")[:-1]
    place = f"{library}.{first}"
    try:
        importlib.import_module(place)
    except ImportError:
        raise _absent(library, path) from None
    module = sys.modules[place]
    for part in inner:  # nothing more is imported for a name
        place = f"{place}.{part}"
        found = vars(module).get(part)
        if not isinstance(found, ModuleType) or found.__name__ != place or part in NOT_MODELS:
            raise _absent(library, path)
        module = found
    return module


def _is_of(kind: type, library: str) -> bool:
    """Whether the library itself defines a class, in its models: not in its tests or in its copies of others."""
    first, *rest = str(kind.__module__).split(".")
    return first == library and not set(rest) & set(NOT_MODELS) and not kind.__name__.startswith("_")


def _base(library: str, place: str) -> type:
    module, _, name = place.rpartition(".")
    base: type = vars(importlib.import_module(f"{library}.{module}"))[name]
    return base


def build(library: str, path: str, given: dict[str, Any], seed: int, **more: Any) -> Any:
    """Makes a classifier of a library from the path of its class and its arguments.

    An argument that is a dict with "class" describes another object of the library: "class" is the path of its class,
    the rest are its arguments. Everything is checked before the first object is made. `more` are arguments that this
    package itself gives.
    """
    plan = check_buildable(library, path, given, seed)
    plan.settings.update(more)
    return plan.make()


def check_buildable(library: str, path: str, given: dict[str, Any], seed: int) -> _Planned:
    """What `build` checks; nothing is made."""
    try:
        plan = _planned(library, path, given, seed, classifier=True, depth=1)
    except RecursionError:
        raise BadSetting(f"model {path!r} has lists in lists too deep to read") from None
    if (models := plan.models()) > MOST:
        raise BadSetting(f"model {path!r} is made of {models:,} models, expected at most {MOST:,}")
    return plan


@dataclass(frozen=True)
class _Planned:
    """An object that was checked and is not made yet."""

    path: str
    kind: type
    settings: dict[str, Any]

    def make(self) -> Any:
        settings = {name: _made(value) for name, value in self.settings.items()}
        try:
            return self.kind(**settings)
        except Exception as error:  # constructors check what they are given, each in its own way
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise BadSetting(f"model {self.path!r} cannot be made with {sorted(settings)}: {why}") from None

    def models(self) -> int:
        """How many models there will be, this one included."""
        inside = sum(part.models() for value in self.settings.values() for part in _parts(value))
        copies = 1
        for name, parameter in inspect.signature(self.kind).parameters.items():
            count = self.settings.get(name, parameter.default)
            if name in MODELS and isinstance(count, numbers.Integral):
                copies *= max(1, int(count))
        return 1 + inside if copies == 1 else copies * max(1, inside)


def _planned(library: str, path: Any, given: Any, seed: int, *, classifier: bool, depth: int) -> _Planned:
    if not isinstance(path, str) or not isinstance(given, dict):
        raise BadSetting(f"a model is {path!r} with {given!r}, expected a name and options")
    if depth > DEEPEST:
        raise BadSetting(f"model {path!r} is inside {depth - 1} others, expected at most {DEEPEST - 1}")
    kind = find_class(library, path, classifier=classifier)
    names = inspect.signature(kind).parameters
    more = LIBRARIES[library].more_options
    free = more is None and any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
    known = [*(name for name, of in names.items() if of.kind is not of.VAR_KEYWORD), *(more or ())]
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise BadSetting(f"model {path!r} has no option {name!r}")
        if name in PLACES or name.endswith(PLACE_ENDS):
            raise BadSetting(f"model {path!r}: {name} would name a place on disk, which no option may; leave it out")
        if name not in known and not free:
            raise BadSetting(f"model {path!r} has no option {name!r}{nearest(name, known)}")
        settings[name] = _checked(library, f"model {path!r}: {name}", name, value, seed, depth)
    bits = settings.get("code_size")
    if settings.get("coding_method") == "exact" and isinstance(bits, int) and bits > MOST_BITS:
        raise BadSetting(f"model {path!r}: code_size is {bits}, expected at most {MOST_BITS} where the coding is exact")
    own = LIBRARIES[library].seed
    if own in names and own not in settings:
        settings[own] = seed
    return _Planned(path, kind, settings)


def _checked(library: str, where: str, name: str, value: Any, seed: int, depth: int) -> Any:
    """A plain value as it is; the description of an object as that object, not made yet."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict) and "class" in value:
        inner = {key: part for key, part in value.items() if key != "class"}
        return _planned(library, value["class"], inner, seed, classifier=False, depth=depth + 1)
    if isinstance(value, dict):
        return {key: _checked(library, where, name, part, seed, depth) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        if name in COUNTS:
            _check_layers(where, value)
        parts = [_checked(library, where, name, part, seed, depth) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    if value is not None and not isinstance(value, (str, numbers.Real)):
        raise BadSetting(
            f"{where} is a {type(value).__name__}, expected a number, a word, a list or an object of the library"
        )
    if isinstance(value, numbers.Integral) and name not in SEEDS:
        _check_size(where, name, int(value))
    return value


def _check_size(where: str, name: str, value: int) -> None:
    most = MOST_JOBS if name == "n_jobs" else MOST if name.startswith("n_") or name in COUNTS else LARGEST
    if abs(value) > most:
        raise BadSetting(f"{where} is {say_number(value)}, expected at most {most:,}")


def _check_layers(where: str, sizes: Sequence[Any]) -> None:
    """Refuses layers with too many weights between them."""
    units = [int(size) for size in sizes if isinstance(size, numbers.Integral)]
    if sum(a * b for a, b in pairwise(units)) > LARGEST:
        raise BadSetting(f"{where} makes more than {LARGEST:,} weights, expected at most as many")


def _parts(value: Any) -> Iterator[_Planned]:
    """The objects in a checked value."""
    if isinstance(value, _Planned):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _parts(part)


def _made(value: Any) -> Any:
    """A checked value, with its objects made."""
    if isinstance(value, _Planned):
        return value.make()
    if isinstance(value, dict):
        return {key: _made(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_made(part) for part in value])
    return value
