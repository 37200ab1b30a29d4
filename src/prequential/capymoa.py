"""The learner as a classifier of CapyMOA: `from prequential.capymoa import OnlineClassifier`."""

from __future__ import annotations

from typing import Any

import numpy as np

from prequential.errors import MissingExtra
from prequential.learners.transformer.learner import Learner

try:
    from capymoa.base import Classifier
except ImportError:
    raise MissingExtra("prequential.capymoa", "capymoa") from None


class OnlineClassifier(Classifier):  # type: ignore[misc]
    """The transformer learner for CapyMOA: works in `prequential_evaluation` and wherever a classifier is taken.

    Nominal attributes come as the numbers of their values, as CapyMOA gives them; missing ones may be NaN.

    Parameters
    ----------
    schema
        That of the stream.
    random_seed
        Seed of the initial weights and of the replay.
    settings
        Those of `prequential.Settings`, by name.
    """

    def __init__(self, schema: Any, random_seed: int = 1, **settings: Any) -> None:
        super().__init__(schema=schema, random_seed=random_seed)
        labels = list(range(schema.get_num_classes()))
        self.learner = Learner(labels, missing=True, seed=random_seed, **settings)

    def __str__(self) -> str:
        return "prequential"

    def train(self, instance: Any) -> None:
        """Learns from one instance."""
        self.learner.learn_one(instance.x, int(instance.y_index))

    def predict_proba(self, instance: Any) -> np.ndarray:
        """The probability of each label of the schema."""
        p = self.learner.predict_proba_one(instance.x)
        return np.array([p[label] for label in range(self.schema.get_num_classes())])
