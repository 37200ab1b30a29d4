"""Supervised online continual learning with transformers: predict, score, learn."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers take it as true; `typing` itself would be the slowest import here
if TYPE_CHECKING:
    from typing import Any

    from prequential.baselines import ACM as ACM
    from prequential.baselines import CapyMOALearner as CapyMOALearner
    from prequential.baselines import ExperienceReplay as ExperienceReplay
    from prequential.baselines import Kalman as Kalman
    from prequential.baselines import KalmanNetwork as KalmanNetwork
    from prequential.baselines import LastLabel as LastLabel
    from prequential.baselines import Majority as Majority
    from prequential.baselines import Refit as Refit
    from prequential.baselines import ReplayStreams as ReplayStreams
    from prequential.baselines import RiverLearner as RiverLearner
    from prequential.baselines import SklearnLearner as SklearnLearner
    from prequential.evaluation.evaluate import evaluate as evaluate
    from prequential.evaluation.scores import Scores as Scores
    from prequential.learners.base import OnlineLearner as OnlineLearner
    from prequential.learners.transformer.learner import Learner as Learner
    from prequential.registry import make_learner as make_learner
    from prequential.runs.open_learner import open as open
    from prequential.serve.client import AsyncClient as AsyncClient
    from prequential.serve.client import Client as Client
    from prequential.settings import Settings as Settings
    from prequential.streams.datasets.digits import digits as digits
    from prequential.streams.datasets.photos import PhotoStream as PhotoStream
    from prequential.streams.formats.arrays import ArrayStream as ArrayStream
    from prequential.streams.formats.schema import Schema as Schema
    from prequential.streams.formats.tables import TableStream as TableStream
    from prequential.streams.journal.journal import Journal as Journal
    from prequential.streams.open import open_stream as open_stream
    from prequential.streams.stream import Chunk as Chunk
    from prequential.streams.stream import Stream as Stream
    from prequential.streams.tasks import SplitStream as SplitStream
    from prequential.testing.learners import check_learner as check_learner
    from prequential.testing.streams import check_stream as check_stream

    __version__: str

_PLACES = {
    "ACM": "baselines",
    "ArrayStream": "streams.formats.arrays",
    "AsyncClient": "serve.client",
    "CapyMOALearner": "baselines",
    "Chunk": "streams.stream",
    "Client": "serve.client",
    "ExperienceReplay": "baselines",
    "Journal": "streams.journal.journal",
    "Kalman": "baselines",
    "KalmanNetwork": "baselines",
    "LastLabel": "baselines",
    "Learner": "learners.transformer.learner",
    "Majority": "baselines",
    "OnlineLearner": "learners.base",
    "PhotoStream": "streams.datasets.photos",
    "Refit": "baselines",
    "ReplayStreams": "baselines",
    "RiverLearner": "baselines",
    "Schema": "streams.formats.schema",
    "Scores": "evaluation.scores",
    "Settings": "settings",
    "SklearnLearner": "baselines",
    "SplitStream": "streams.tasks",
    "Stream": "streams.stream",
    "TableStream": "streams.formats.tables",
    "check_learner": "testing.learners",
    "check_stream": "testing.streams",
    "digits": "streams.datasets.digits",
    "evaluate": "evaluation.evaluate",
    "make_learner": "registry",
    "open": "runs.open_learner",
    "open_stream": "streams.open",
}
# without open: `from prequential import *` must not hide Python's own
__all__ = sorted([*(name for name in _PLACES if name != "open"), "__version__"])


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: the command line must not wait for torch to print its help."""
    if name == "__version__":
        return _version()
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value  # the next time it is found without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES, "__version__"})


def _version() -> str:
    """The version that is installed, which pyproject.toml alone says."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("prequential")
    except PackageNotFoundError:  # the sources are on the path, but the package is not installed
        return "0+unknown"
