"""Prequential (test-then-train) evaluation: predict, score, learn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from prequential.errors import BadInput, BadSetting
from prequential.evaluation.late_labels import LateLabels
from prequential.evaluation.scores import Scores
from prequential.learners.base import OnlineLearner
from prequential.learners.charges import Charges
from prequential.streams.convert import as_stream
from prequential.streams.stream import Chunk

# Called after each piece with the position after it, the examples and their charges; returning True ends the run.
After = Callable[[int, Chunk, Charges], bool | None]

PIECE = 64  # examples handed over at a time to a learner that takes them one by one


def evaluate(
    stream: Any,
    learner: OnlineLearner,
    *,
    label: str | None = None,
    start: int = 0,
    stop: int | None = None,
    scores: Scores | None = None,
    metrics: Iterable[Any] = (),
    after: After | None = None,
    delay: int = 0,
    label_batches: int = 1,
    late: LateLabels | None = None,
) -> Scores:
    """Runs a learner over a stream: each example is predicted and scored, and only then learned.

    Parameters
    ----------
    stream
        Where the examples come from: a `Stream`, the name or path of one, a data frame, a `DataLoader` or a data set of
        torch, or any iterable of (x, y). What cannot be read again is written to a temporary file as it comes, so that
        memory does not grow and learners can replay it.
    learner
        What predicts and learns. It continues from whatever it has learned before.
    label
        The column to predict, if the stream is a table; by default the one called label, y, target or class, or else
        the last one.
    start, stop
        The part of the stream to run over; by default all of it.
    scores
        Scores to continue with; by default new ones.
    metrics
        Additional metrics: River's, or your own functions of the label and the prediction. Their values are in
        `scores.metrics`.
    after
        Called as `after(position, chunk, charges)` after each piece; returning True ends the run there.
    delay
        How late labels are: the label of row t arrives after the prediction of row t + delay. 0: at once.
    label_batches
        This many rows are predicted, then their labels arrive together. 1: at once.
    late
        Predictions that still wait for their labels, to continue with; instead of `delay` and `label_batches`.

    Examples
    --------
    >>> from prequential import Learner, digits, evaluate
    >>> learner = Learner(classes=10, width=32, depth=1, num_streams=2)
    >>> evaluate(digits(tasks=2), learner).count
    400
    >>> from prequential.baselines import Majority
    >>> evaluate(((float(i), i % 2) for i in range(0)), Majority(2))
    Traceback (most recent call last):
    prequential.errors.BadInput: there is nothing to evaluate: examples 0 to 0 of a stream of 0
    """
    examples = as_stream(stream, label=label)
    length = examples.available(start + 1)
    end = length if stop is None else min(stop, length)
    if start >= end:
        raise BadInput(f"there is nothing to evaluate: examples {start} to {end} of a stream of {length}")
    if late is None:
        late = LateLabels(delay=delay, batch=label_batches)
    if scores is None:
        starts = examples.task_starts()
        if starts is not None:
            starts = np.unique(np.maximum(starts[starts < (length if stop is None else stop)] - start, 0))
        how = {"delay": late.delay, "label_batches": late.batch}
        scores = Scores(learner.labels.classes, starts, metrics=metrics, **how)
    elif metrics:
        raise BadSetting("metrics come with new scores; those to go on with have theirs already")
    learner.read_like(examples)
    # what the learner has learned so far is this stream's beginning, or something else
    learner.replay_from(examples if learner.position == start else None)
    piece = learner.stride if learner.stride > 1 else PIECE
    position = start
    try:
        while True:
            end = late.next_stop(position, piece) if late else position + piece - position % learner.stride
            end = end if stop is None else min(end, stop)
            known = examples.available(end + late.delay)
            end = min(end, known)
            if position >= end:
                break
            if late:
                chunk, charges = late.step(
                    examples, learner, position, end, known if stop is None else min(known, stop)
                )
            else:
                chunk = examples.read(position, end)
                charges = learner.observe(chunk.x, chunk.y)
            scores.update(scores.count, charges, chunk.y, learner.labels.known)
            position += len(chunk)
            if after is not None and after(position, chunk, charges):
                return scores
        learner.flush()
    finally:
        learner.replay_from(None)  # whatever comes next is not from here
    return scores
