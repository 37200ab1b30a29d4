"""The oracle as a row of a comparison."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import numpy as np

from prequential.baselines.oracle import Oracle
from prequential.errors import BadInput
from prequential.learners.base import OnlineLearner, check_seed
from prequential.learners.charges import Charges


class OracleRow(OnlineLearner):
    """Right iff the label is among the last `window` labels: a row to compare with, and no predictor.

    It uses the label that it "predicts", so it can only `observe` and `learn`, and has no score: its log-loss is
    infinite, which tables leave out.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    window
        How many labels it looks back.
    missing
        Whether features may be NaN.
    seed
        Not used: nothing here is random. Taken so that all learners are built alike.

    Examples
    --------
    >>> learner = OracleRow(3, window=2)
    >>> learner.observe([[0.0]] * 4, ["a", "b", "a", "c"]).correct.tolist()
    [False, False, True, False]
    """

    names: ClassVar = {"oracle": {}}
    stride = 1024
    small_state = True

    def __init__(
        self, classes: int | Sequence[Hashable] | None = None, *, window: int = 1, missing: bool = False, seed: int = 0
    ) -> None:
        super().__init__(classes, missing=missing)
        check_seed(seed)
        self.window, self.seed = window, seed
        self.counts = Oracle([window])

    def _charged(self, x: np.ndarray, class_ids: np.ndarray) -> Charges:
        correct = self.counts.observe(class_ids)[:, 0]
        return Charges(
            np.full(len(class_ids), np.inf),
            np.where(correct, class_ids, -1),
            correct,
            correct.astype(float),
            num_labels=len(self.labels),
        )

    def macs_per_example(self) -> float:
        return 0.0

    def _predict(self, x: np.ndarray) -> np.ndarray:
        raise BadInput("the oracle cannot predict: it is right where the label itself was among the last ones")

    def _learn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        self.counts.observe(class_ids)

    def _state_dict(self) -> dict[str, Any]:
        return self.counts.state_dict()

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts.load_state_dict(state)
