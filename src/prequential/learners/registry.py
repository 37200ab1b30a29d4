"""Learners by name, with their options: `majority(window=100)`, `river:forest.ARFClassifier(n_models=5)`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from prequential.errors import BadSetting
from prequential.learners.base import OnlineLearner
from prequential.renames import OPTIONS, SETTINGS, current_names
from prequential.settings import Settings
from prequential.specs import check_kinds, nearest, parse_call

FROM_THE_RUN = ("classes", "device", "missing")  # what is the same for all learners, and so not an option of one


@dataclass(frozen=True)
class Given:
    """What a learner is made from."""

    classes: int | Sequence[Hashable]
    settings: Settings  # of the transformer, and of no other
    device: str
    missing: bool
    seed: int
    options: dict[str, Any]


def make_learner(
    spec: str,
    classes: int | Sequence[Hashable],
    *,
    settings: Settings | None = None,
    device: str = "cpu",
    missing: bool = False,
    seed: int | None = None,
) -> OnlineLearner:
    """The learner that a text means.

    Parameters
    ----------
    spec
        A name, with options in brackets where they differ from the defaults. `river:` and `sklearn:` stand before any
        classifier of these libraries; its own settings are options too.
    classes
        How many labels there can be, or the labels themselves.
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
    library, colon, path = name.partition(":")
    make = LEARNERS.get(name)
    if make is None and colon and path and library in LIBRARIES:
        make = LIBRARIES[library](path)
    if make is None:
        raise BadSetting(f"unknown learner {name!r}{nearest(name, learner_names())}")
    seed = settings.seed if seed is None else seed
    return make(Given(classes, settings, device, missing, seed, options))


def learner_names() -> list[str]:
    """All names, for help texts; CLASS stands for where a class is inside its library.

    >>> learner_names()[:4]
    ['transformer', 'two-token', 'no-image', 'no-attention']
    """
    return [*LEARNERS, *(f"{library}:CLASS" for library in LIBRARIES)]


def is_transformer(spec: str) -> bool:
    """Whether a text means one of the transformers, which alone have the transformers' settings.

    >>> is_transformer("no-image(width=64)"), is_transformer("kalman")
    (True, False)
    """
    return parse_call(spec)[0] in TRANSFORMERS


def _transformer(**changes: Any) -> Callable[[Given], OnlineLearner]:
    def make(given: Given) -> OnlineLearner:
        from prequential.learners.transformer.learner import Learner

        options = current_names(given.options, SETTINGS)
        check_kinds("transformer", options, typing.get_type_hints(Settings))
        settings = given.settings.changed(**{"seed": given.seed, **changes, **options})
        return Learner(given.classes, settings=settings, device=given.device, missing=given.missing)

    return make


def _baseline(kind: str, **changes: Any) -> Callable[[Given], OnlineLearner]:
    def make(given: Given) -> OnlineLearner:
        from prequential import baselines

        options = {**changes, **current_names(given.options, OPTIONS)}
        return _construct(getattr(baselines, kind), given, options)

    return make


def _of_library(kind: str) -> Callable[[str], Callable[[Given], OnlineLearner]]:
    """Makers of another library's classifiers: options the learner does not have itself are the classifier's."""

    def at(path: str) -> Callable[[Given], OnlineLearner]:
        def make(given: Given) -> OnlineLearner:
            from prequential import baselines

            learner = getattr(baselines, kind)
            options = current_names(given.options, {"standardise": "standardize"})
            own = {name: value for name, value in options.items() if name in _option_names(learner)}
            others = {name: value for name, value in options.items() if name not in own}
            return _construct(learner, given, own, model=path, settings=others)

        return make

    return at


TRANSFORMERS: dict[str, Callable[[Given], OnlineLearner]] = {
    "transformer": _transformer(),
    "two-token": _transformer(model="two-token"),
    "no-image": _transformer(use_input=False),
    "no-attention": _transformer(window=0),
}
LEARNERS: dict[str, Callable[[Given], OnlineLearner]] = {
    **TRANSFORMERS,
    "last-label": _baseline("LastLabel"),
    "majority": _baseline("Majority"),
    "oracle": _baseline("OracleRow"),
    "er": _baseline("ExperienceReplay"),
    "er-polrs": _baseline("ExperienceReplay", polrs=True),
    "er-adrep": _baseline("ExperienceReplay", adrep=True),
    "er-polrs-adrep": _baseline("ExperienceReplay", polrs=True, adrep=True),
    "acm": _baseline("ACM"),
    "replay-streams": _baseline("ReplayStreams"),
    "kalman": _baseline("Kalman"),
    "kalman-network": _baseline("KalmanNetwork"),
}
LIBRARIES = {"river": _of_library("RiverLearner"), "sklearn": _of_library("SklearnLearner")}


def _option_names(kind: type[OnlineLearner]) -> list[str]:
    names = inspect.signature(kind).parameters
    return [name for name in names if name not in (*FROM_THE_RUN, "model", "settings")]


def _construct(kind: type[OnlineLearner], given: Given, options: dict[str, Any], **more: Any) -> OnlineLearner:
    """A baseline, after its options were checked."""
    names = _option_names(kind)
    for name in options:
        if name not in names:
            if name in FROM_THE_RUN:
                raise BadSetting(f"{name} is not an option of a learner: the run sets it, and it is the same for all")
            raise BadSetting(f"{kind.__name__} has no option {name!r}{nearest(name, names)}")
    check_kinds(kind.__name__, options, typing.get_type_hints(kind.__init__))
    if "device" in inspect.signature(kind).parameters:
        from prequential.learners.device import find_device

        more["device"] = str(find_device(given.device))
    return kind(given.classes, missing=given.missing, **{"seed": given.seed, **options}, **more)
