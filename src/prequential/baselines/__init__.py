"""Baselines: simple, published and widely used learners with the same interface as the transformer."""

from prequential.baselines.acm import ACM
from prequential.baselines.capymoa import CapyMOALearner
from prequential.baselines.experience_replay import ExperienceReplay
from prequential.baselines.kalman import Kalman
from prequential.baselines.kalman_network import KalmanNetwork
from prequential.baselines.last_label import LastLabel
from prequential.baselines.majority import Majority
from prequential.baselines.oracle import Oracle, oracle_accuracy
from prequential.baselines.oracle_row import OracleRow
from prequential.baselines.refit import Refit
from prequential.baselines.replay_streams import ReplayStreams
from prequential.baselines.river import RiverLearner
from prequential.baselines.sklearn import SklearnLearner

__all__ = [
    "ACM",
    "CapyMOALearner",
    "ExperienceReplay",
    "Kalman",
    "KalmanNetwork",
    "LastLabel",
    "Majority",
    "Oracle",
    "OracleRow",
    "Refit",
    "ReplayStreams",
    "RiverLearner",
    "SklearnLearner",
    "oracle_accuracy",
]
