"""What every expert is: something that predicts labels and moves on with each example."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from prequential.learners.transformer.batch import Batch, Queries


class Predicted(NamedTuple):
    """A prediction of an expert, and what it can reuse when this very example is learned next."""

    log_probs: np.ndarray  # (M, n, K): an expert may give several predictions of each example
    reuse: Any = None  # for one example alone


class Expert(Protocol):
    """Predicts labels beside other experts; the mixer weighs them by how well each of them did.

    A new one is a file here and a line in `make_experts`. It keeps two versions of what it knows, committed and current
    (`learners/versioned.py`), and its state is of arrays, tensors and JSON values. One that says little alone has
    `auxiliary = True`: the mixer then starts with less of it.
    """

    num_predictions: int  # M, of each example

    def predict(self, queries: Queries) -> Predicted:
        """Predicts n inputs, each from the labels that had arrived when it was asked. Changes nothing."""
        ...

    def extend(self, batch: Batch, predicted: Predicted | None = None) -> np.ndarray:
        """Predicts examples after the chunk boundary, each as it was asked, and learns them.

        `predicted` is what `predict` gave for this very example, if it did.
        """
        ...

    def commit(self, batch: Batch) -> np.ndarray:
        """Predicts a whole chunk from the last boundary on, and moves the boundary behind it."""
        ...

    def grow(self, num_classes: int) -> None:
        """Gives probabilities to so many class ids from now on."""
        ...

    def macs(self) -> float:
        """Multiply-accumulates of predicting one example."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
