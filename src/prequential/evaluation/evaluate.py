"""The prequential loop: predict, be charged, learn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from prequential.errors import BadInput
from prequential.evaluation.scores import Scores
from prequential.learners.base import Charges, OnlineLearner
from prequential.streams.stream import Chunk, Stream

# Called after each piece with the position behind it, the examples and their charges; returning True ends the run.
After = Callable[[int, Chunk, Charges], bool | None]


def evaluate(
    stream: Stream,
    learner: OnlineLearner,
    *,
    start: int = 0,
    stop: int | None = None,
    scores: Scores | None = None,
    after: After | None = None,
) -> Scores:
    """Runs a learner over a stream: each example is predicted, charged, and only then learnt.

    Parameters
    ----------
    stream
        Where the examples come from.
    learner
        What predicts and learns. It goes on from whatever it has learnt before.
    start, stop
        The part of the stream to run over; by default all of it.
    scores
        Scores to go on with; by default new ones.
    after
        Called as `after(position, chunk, charges)` after each piece; returning True ends the run there.

    Examples
    --------
    >>> from prequential import Learner, digits, evaluate
    >>> learner = Learner(classes=10, width=32, depth=1, num_streams=2)
    >>> evaluate(digits(tasks=2), learner).count
    400
    """
    stop = len(stream) if stop is None else min(stop, len(stream))
    if start >= stop:
        raise BadInput(f"there is nothing to evaluate: examples {start} to {stop} of a stream of {len(stream)}")
    if scores is None:
        starts = stream.task_starts()
        if starts is not None:
            starts = np.unique(np.maximum(starts[starts < stop] - start, 0))
        scores = Scores(learner.labels.capacity, starts)
    # what the learner has learnt so far is this stream's beginning, or something else
    learner.replay_from(stream if learner.position == start else None)
    piece = learner.stride if learner.stride > 1 else 64  # one by one inside, but with less ado outside
    position = start
    try:
        while position < stop:
            chunk = stream.read(position, min(position + piece - position % learner.stride, stop))
            charges = learner.observe(chunk.x, chunk.y)
            scores.update(scores.count, charges)
            position += len(chunk)
            if after is not None and after(position, chunk, charges):
                return scores
        learner.flush()
    finally:
        learner.replay_from(None)  # whatever comes next is not from here
    return scores
