"""The battery: what every learner must do, as checks that any learner can be put through.

Each check takes a function that makes a new learner: `make(classes)`, where classes is a number of labels, a list of
them, or None. The learner must accept vectors of `FEATURES` numbers. A check that fails raises AssertionError with a
sentence. The docstring of a check is its specification.

    from prequential.testing import check_learner
    check_learner(lambda classes: MyLearner(classes))
"""

from __future__ import annotations

from collections.abc import Callable

from prequential.testing.class_checks import (
    check_classes_left_out,
    check_grown_state,
    check_growth,
    check_unseen_labels,
)
from prequential.testing.examples import FEATURES, Make
from prequential.testing.input_checks import (
    check_all_or_nothing,
    check_bad_input,
    check_broken_values,
    check_conversions,
    check_gate,
    check_inputs_are_copied,
)
from prequential.testing.prediction_checks import (
    check_evaluate,
    check_late_labels,
    check_new_classes,
    check_no_future,
    check_no_future_replay,
    check_one_and_many,
    check_one_by_one,
    check_past_counts,
    check_predict_is_pure,
    check_probabilities,
)
from prequential.testing.row_checks import check_rows
from prequential.testing.state_checks import (
    check_copies,
    check_ids,
    check_learners_share_nothing,
    check_memory,
    check_same_again,
    check_save_load,
    check_snapshots,
    check_state_is_a_snapshot,
    check_threads,
)

__all__ = ["CHECKS", "FEATURES", "Make", "check_learner"]

CHECKS: list[Callable[[Make], None]] = [
    check_predict_is_pure,
    check_probabilities,
    check_one_and_many,
    check_no_future,
    check_past_counts,
    check_no_future_replay,
    check_one_by_one,
    check_state_is_a_snapshot,
    check_same_again,
    check_learners_share_nothing,
    check_inputs_are_copied,
    check_save_load,
    check_new_classes,
    check_classes_left_out,
    check_unseen_labels,
    check_growth,
    check_grown_state,
    check_bad_input,
    check_gate,
    check_conversions,
    check_rows,
    check_broken_values,
    check_all_or_nothing,
    check_copies,
    check_snapshots,
    check_ids,
    check_threads,
    check_evaluate,
    check_late_labels,
    check_memory,
]


def check_learner(make: Make) -> None:
    """Puts a learner through every check."""
    for check in CHECKS:
        check(make)
