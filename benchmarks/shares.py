"""Where the time of a learner goes, by torch's profiler.

Operations of the forward pass belong to the part of the network that called them, those of the backward pass to the part
whose gradient they compute. What is in no operation is Python. The profiler itself takes time, most of it in
Python: the shares of small models lean to that side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch.profiler import ProfilerActivity, profile, record_function

from prequential.learners.inputs import Inputs
from prequential.learners.memory import Memory
from prequential.learners.transformer.learner import Learner
from prequential.learners.transformer.optimizer import Optimizer
from prequential.models import block as blocks
from prequential.models.block import Block
from prequential.models.transformer import Transformer

ATTENTION, PROJECTIONS, EXTRACTOR = "attention", "projections and MLP", "extractor"
HEADS, OPTIMIZER, DATA, PYTHON = "input map and heads", "optimizer", "data", "Python and other"
PARTS = (ATTENTION, PROJECTIONS, EXTRACTOR, HEADS, OPTIMIZER, DATA, PYTHON)
MARK = "part: "
BACKWARD = "autograd::engine::evaluate_function"
CALLS: list[tuple[Any, str, str]] = [  # what is called, and to which part that belongs; the innermost one counts
    (blocks, "attend", ATTENTION),
    (Block, "forward", PROJECTIONS),
    (Transformer, "_embed", HEADS),
    (Transformer, "_run_heads", HEADS),
    (Optimizer, "step", OPTIMIZER),
    (Inputs, "commit", DATA),
    (Inputs, "transform_replayed", DATA),
    (Memory, "write", DATA),
    (Memory, "read", DATA),
]


def time_shares(learner: Learner, work: Callable[[], object]) -> dict[str, float]:
    """The share of each part in the time of a piece of work of a learner that has its network."""
    assert learner.model is not None
    extractor = [(type(learner.model.extractor), "forward", EXTRACTOR)] if learner.model.extractor else []
    with (
        _marked([*CALLS, *extractor]),
        profile(activities=[ProfilerActivity.CPU]) as profiler,
        record_function(MARK + PYTHON),
    ):
        work()
    events = list(profiler.events() or [])
    whole = max((event for event in events if event.name == MARK + PYTHON), key=_duration)
    spent = dict.fromkeys(PARTS, 0.0)
    forward: dict[int, str] = {}  # the part of the operation with a number that the backward pass refers to
    for event in events:
        if event.sequence_nr >= 0 and not _in_backward(event):
            forward[event.sequence_nr] = _part(event, {})  # of several with the same number, the last made the gradient
    for event in events:
        if event.name.startswith(MARK):
            if event.name == MARK + DATA and _part(event.cpu_parent, {}) != DATA:
                spent[DATA] += _duration(event)  # reading is done by numpy and Python, all of it counts
            continue
        part = _part(event, forward)
        if part not in (DATA, PYTHON):
            spent[part] += event.self_cpu_time_total
    total = _duration(whole)
    spent[PYTHON] = max(0.0, total - sum(spent.values()))
    return {part: time / total for part, time in spent.items()}


@contextmanager
def _marked(calls: list[tuple[Any, str, str]]) -> Iterator[None]:
    """Has these calls leave a mark in the profile."""
    with ExitStack() as stack:
        for owner, name, part in calls:
            stack.enter_context(patch.object(owner, name, _marking(getattr(owner, name), MARK + part)))
        yield


def _marking(call: Callable[..., Any], mark: str) -> Callable[..., Any]:
    def marked(*args: Any, **kwargs: Any) -> Any:
        with record_function(mark):
            return call(*args, **kwargs)

    return marked


def _part(event: Any, forward: dict[int, str]) -> str:
    """That of the innermost mark around an event; in the backward pass, of what its gradient belongs to."""
    while event is not None:
        if event.name.startswith(MARK):
            return str(event.name.removeprefix(MARK))
        if event.name.startswith(BACKWARD):
            return forward.get(event.sequence_nr, PYTHON)
        event = event.cpu_parent
    return PYTHON


def _in_backward(event: Any) -> bool:
    while event is not None and not event.name.startswith(BACKWARD):
        event = event.cpu_parent
    return event is not None


def _duration(event: Any) -> float:
    return float(event.time_range.elapsed_us())
