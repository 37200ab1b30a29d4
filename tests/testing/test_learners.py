"""The battery itself: what it is there to find, it finds."""

from __future__ import annotations

import pytest

from prequential.baselines.majority import Majority
from prequential.testing.learners import check_memory


class Hoarder(Majority):
    """Keeps a reference for every example, and nothing of it in its state."""

    def _learn(self, x, class_ids):
        super()._learn(x, class_ids)
        self.__dict__.setdefault("hoard", []).extend([None] * len(class_ids))


def test_one_reference_kept_for_every_example_is_too_much():
    check_memory(lambda classes: Majority(classes))
    with pytest.raises(AssertionError, match=r"2,400 more examples took \d+ more bytes"):
        check_memory(lambda classes: Hoarder(classes))
