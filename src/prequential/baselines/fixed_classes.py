"""The base of learners around models that cannot get new classes: with too many, a new model learns all of the past."""

from __future__ import annotations

import numpy as np

from prequential.baselines.library_learner import LibraryLearner


class FixedClassesLearner(LibraryLearner):
    """A model that is made for a number of classes and trained anew on the whole past where more come.

    A subclass sets `_names_classes` and `_outputs` in `_make`.
    """

    _names_classes: bool  # whether the model has to be told how many classes there are
    _outputs: int  # the class ids that this model knows

    def _begin_call(self, class_ids: np.ndarray) -> None:
        super()._begin_call(class_ids)
        self._of_this_call: list[tuple[np.ndarray, np.ndarray]] = []  # what was learned in it so far

    def _release_snapshot(self) -> None:
        self._of_this_call = []

    def _learn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        if not (self.labels.open_ended and self._names_classes):
            super()._learn(x, class_ids)
            return
        for i in range(len(class_ids)):
            row, class_id = x[i : i + 1], class_ids[i : i + 1]
            outputs = self.labels.capacity_for(int(class_id[0]) + 1)
            if outputs > self._outputs:
                self._begin_anew(outputs)
            super()._learn(row, class_id)
            self._of_this_call.append((row, class_id))

    def _begin_anew(self, outputs: int) -> None:
        """Trains a new model that knows this many class ids on all examples so far: a model cannot get new ones."""
        self._begin()
        self._outputs, self._num_to_relearn = outputs, self.position
        self._relearn()
        for x, class_ids in self._of_this_call:
            self._take(x, class_ids)
