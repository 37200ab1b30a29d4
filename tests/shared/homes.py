"""Small live learners, the examples they learn from, and a look into their homes."""

from __future__ import annotations

import numpy as np

from prequential.learners.transformer.learner import Learner
from prequential.streams.journal.journal import Journal
from shared.journals import record_places

SMALL = {
    "width": 8,
    "num_query_heads": 2,
    "depth": 1,
    "window": 6,
    "chunk_size": 4,
    "num_streams": 2,
    "num_neighbors": 0,
    "recent_window": 0,
}


def make(home=None, **changes):
    return Learner(4, home=home, **{**SMALL, **changes})


def example(t):
    return np.array([np.sin(t), np.cos(3 * t)]), "ham" if np.sin(t) > 0 else "spam"


def teach(learner, start, stop):
    for t in range(start, stop):
        learner.learn(*example(t))
    return learner


def live(home, saves=(9, 17), stop=23, **changes):
    """A home of a learner that is gone."""
    learner = make(home, **changes)
    for t in range(stop):
        learner.learn(*example(t))
        if t + 1 in saves:
            learner.save()
    state = learner.state_dict()
    learner.close()
    return state


def places(home):
    """Where the record of each position is in the log, and how long it is."""
    return record_places(Journal(home / "journal"))


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def labels_of(home):
    journal = Journal(home / "journal")
    return journal.readable(0, len(journal)).y
