"""The batteries: checks that every learner and every stream must pass, public so that one's own can be put through them."""

from prequential.testing.learners import CHECKS, check_learner
from prequential.testing.streams import check_stream

__all__ = ["CHECKS", "check_learner", "check_stream"]
