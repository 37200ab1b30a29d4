"""What a snapshot of the transformer learner is made of: only what predicts, without optimizer, replay or journal."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from prequential.learners.transformer.async_trainer import AsyncTrainer, on_one_thread

if TYPE_CHECKING:
    from prequential.learners.inputs import Inputs
    from prequential.learners.transformer.ensemble import Ensemble
    from prequential.learners.transformer.trainer import Trainer
    from prequential.models.transformer import Transformer


def copy_predictor(inputs: Inputs, ensemble: Ensemble) -> tuple[Inputs, Ensemble]:
    """Copies of the input statistics and of all experts, with their contexts."""
    ranks = ensemble.network.ranks  # the processes are the same
    return copy.deepcopy((inputs, ensemble), {id(ranks): ranks})


class IdleTrainer:
    """Stands in for the trainer of a snapshot, which takes no steps.

    Parameters
    ----------
    model
        What the snapshot predicts with.
    trainer
        That of the learner: predictions are computed as there.
    """

    def __init__(self, model: Transformer, trainer: Trainer) -> None:
        self.model, self.separate, self.skipped_steps = model, trainer.separate, trainer.skipped_steps
        self.engine, self.busy = trainer.engine, False
        self._one_thread = isinstance(trainer, AsyncTrainer)

    def predicting(self) -> AbstractContextManager[None]:
        """To be held while something is predicted."""
        return on_one_thread() if self._one_thread else nullcontext()

    def check(self) -> None:
        """There is no step that could have failed."""

    def wait(self) -> None:
        """There is nothing to wait for."""
