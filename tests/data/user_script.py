"""What a user writes, for the type checker: never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import prequential
from prequential import ArrayStream, Learner, OnlineLearner, Settings, evaluate, make_learner
from prequential.baselines import Refit

if TYPE_CHECKING:
    from typing import reveal_type


def main() -> None:
    learner = Learner(classes=["spam", "ham"], settings=Settings(width=32))
    p = learner.predict_proba([0.1, 5.0])
    spam: float = p["spam"]
    learner.learn([0.1, 5.0], "spam")
    x = np.zeros((4, 2))
    charges = learner.observe(x, ["a", "b", "a", "b"])
    losses: np.ndarray = charges.log_loss
    scores = evaluate(ArrayStream(x, ["a", "b", "a", "b"]), make_learner("refit(lightgbm)"), label_batches=2)
    accuracy: float = scores.accuracy
    other: OnlineLearner = Refit(2, lags=5)
    version: str = prequential.__version__
    reveal_type(learner)  # prequential.learners.transformer.learner.Learner
    reveal_type(scores.accuracy)  # float
    reveal_type(make_learner("majority"))  # prequential.learners.base.OnlineLearner
    learner.close()
