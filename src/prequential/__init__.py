"""Supervised online continual learning with transformers: predict, be charged, learn."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prequential.evaluation.evaluate import evaluate as evaluate
    from prequential.evaluation.scores import Scores as Scores
    from prequential.learners.base import OnlineLearner as OnlineLearner
    from prequential.learners.transformer.learner import Learner as Learner
    from prequential.settings import Settings as Settings
    from prequential.streams.datasets.digits import digits as digits
    from prequential.streams.datasets.photos import PhotoStream as PhotoStream
    from prequential.streams.formats.arrays import ArrayStream as ArrayStream
    from prequential.streams.formats.tables import TableStream as TableStream
    from prequential.streams.journal.journal import Journal as Journal
    from prequential.streams.open import open_stream as open_stream
    from prequential.streams.stream import Chunk as Chunk
    from prequential.streams.stream import Stream as Stream
    from prequential.streams.tasks import SplitStream as SplitStream

_PLACES = {
    "ArrayStream": "streams.formats.arrays",
    "Chunk": "streams.stream",
    "Journal": "streams.journal.journal",
    "Learner": "learners.transformer.learner",
    "OnlineLearner": "learners.base",
    "PhotoStream": "streams.datasets.photos",
    "Scores": "evaluation.scores",
    "Settings": "settings",
    "SplitStream": "streams.tasks",
    "Stream": "streams.stream",
    "TableStream": "streams.formats.tables",
    "digits": "streams.datasets.digits",
    "evaluate": "evaluation.evaluate",
    "open_stream": "streams.open",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: the command line must not wait for torch to print its help."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
