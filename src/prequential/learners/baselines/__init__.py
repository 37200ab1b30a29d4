"""The rivals: simple, published and everyday learners behind the same interface as the transformer."""

from prequential.learners.baselines.acm import ACM
from prequential.learners.baselines.kalman import Kalman
from prequential.learners.baselines.last_label import LastLabel
from prequential.learners.baselines.majority import Majority
from prequential.learners.baselines.oracle import Oracle, oracle_accuracy

__all__ = ["ACM", "Kalman", "LastLabel", "Majority", "Oracle", "oracle_accuracy"]
