"""The battery: checks that every learner must pass, public so that learners of one's own can be put through them."""

from prequential.testing.learners import CHECKS, check_learner

__all__ = ["CHECKS", "check_learner"]
