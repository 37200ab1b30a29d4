"""The rivals: simple, published and everyday learners behind the same interface as the transformer."""

from prequential.learners.baselines.acm import ACM
from prequential.learners.baselines.experience_replay import ExperienceReplay
from prequential.learners.baselines.kalman import Kalman
from prequential.learners.baselines.kalman_network import KalmanNetwork
from prequential.learners.baselines.last_label import LastLabel
from prequential.learners.baselines.majority import Majority
from prequential.learners.baselines.oracle import Oracle, oracle_accuracy
from prequential.learners.baselines.oracle_row import OracleRow
from prequential.learners.baselines.replay_streams import ReplayStreams
from prequential.learners.baselines.river import RiverLearner
from prequential.learners.baselines.sklearn import SklearnLearner

__all__ = [
    "ACM",
    "ExperienceReplay",
    "Kalman",
    "KalmanNetwork",
    "LastLabel",
    "Majority",
    "Oracle",
    "OracleRow",
    "ReplayStreams",
    "RiverLearner",
    "SklearnLearner",
    "oracle_accuracy",
]
