"""Supervised online continual learning with transformers: predict, be charged, learn."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prequential.learners.base import OnlineLearner as OnlineLearner
    from prequential.learners.transformer import Learner as Learner
    from prequential.scoring.evaluate import evaluate as evaluate
    from prequential.scoring.scores import Scores as Scores
    from prequential.settings import Settings as Settings
    from prequential.streams.digits import digits as digits
    from prequential.streams.journal import Journal as Journal
    from prequential.streams.stream import Chunk as Chunk
    from prequential.streams.stream import Stream as Stream

_PLACES = {
    "Chunk": "streams.stream",
    "Journal": "streams.journal",
    "Learner": "learners.transformer",
    "OnlineLearner": "learners.base",
    "Scores": "scoring.scores",
    "Settings": "settings",
    "Stream": "streams.stream",
    "digits": "streams.digits",
    "evaluate": "scoring.evaluate",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: the command line must not wait for torch to print its help."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
