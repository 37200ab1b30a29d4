"""What a step and a prediction cost, in operations rather than seconds: counts do not depend on the machine.

Where a count here grows on purpose, raise it; where it falls, lower it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from prequential.learners.transformer.learner import Learner

SMALL: dict[str, Any] = {"width": 16, "depth": 2, "window": 16, "chunk_size": 8, "num_streams": 1, "num_neighbors": 16}
SLACK = 1.03
# operations, and tensors that were allocated for their results: of two turns, and of predicting one example
MOST = {
    ("pi", "paper"): ((612, 228), (120, 54)),
    ("pi", "mixed"): ((1580, 768), (282, 154)),
    ("two-token", "paper"): ((624, 226), (122, 55)),
    ("two-token", "mixed"): ((1592, 758), (284, 155)),
}


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations inside its block by name, and the results that got memory of their own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: Counter[str] = Counter()
        self.allocated = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations[str(func)] += 1
        given = {_storage(a) for a in args if isinstance(a, Tensor)}
        out = func(*args, **(kwargs or {}))
        made = [out] if isinstance(out, Tensor) else out if isinstance(out, (tuple, list)) else []
        self.allocated += sum(isinstance(t, Tensor) and t.numel() > 0 and _storage(t) not in given for t in made)
        return out


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def counted(work: Callable[[], object]) -> Counting:
    counting = Counting()
    with counting:
        work()
    return counting


def chunk(seed: int = 0, n: int = 8) -> tuple[np.ndarray, list[int]]:
    random = np.random.default_rng(seed)
    return random.normal(size=(n, 4)).astype(np.float32), random.integers(0, 3, n).tolist()


def made(turns: int = 4, **changes: Any) -> Learner:
    """A learner that has taken so many turns."""
    learner = Learner([0, 1, 2], **{**SMALL, "engine": "torch", **changes})
    for turn in range(turns):
        learner.learn_many(*chunk(turn))
    return learner


def turn_of(learner: Learner) -> Counting:
    return counted(lambda: learner.learn_many(*chunk(99)))


def two_turns_of(learner: Learner) -> Counting:
    """Every second turn of these sizes also moves the tokens in the cache."""
    return counted(lambda: [learner.learn_many(*chunk(99 + turn)) for turn in range(2)])


def prediction_of(learner: Learner) -> Counting:
    return counted(lambda: learner.predict_log_proba_many(chunk(98, n=1)[0]))


@pytest.mark.skipif(torch.__version__ < "2.13", reason="other versions of torch count other operations")
@pytest.mark.parametrize(("model", "method"), list(MOST))
def test_neither_a_step_nor_a_prediction_takes_more_operations_than_it_did(model: str, method: str) -> None:
    learner = made(model=model, method=method, num_neighbors=16 if method == "mixed" else 0)
    for counting, (operations, allocated) in zip(
        (two_turns_of(learner), prediction_of(learner)), MOST[model, method], strict=True
    ):
        total = counting.operations.total()
        assert total <= SLACK * operations, f"{total} operations, {operations} before: {counting.operations}"
        assert counting.allocated <= SLACK * allocated, f"{counting.allocated} allocations, {allocated} before"


@pytest.mark.parametrize("updates", ["sequential", "joint"])
def test_work_does_not_depend_on_how_long_the_stream_has_been(updates: str) -> None:
    early, late = (made(turns, updates=updates) for turns in (4, 30))  # the window is full after two
    assert two_turns_of(early).operations == two_turns_of(late).operations
    assert prediction_of(early).operations == prediction_of(late).operations


def test_the_cache_moves_its_tokens_seldom() -> None:
    learner = made(model="pi", method="paper", num_neighbors=0)
    counts = [turn_of(learner).operations["aten.clone.default"] for _ in range(4)]
    assert min(counts) < max(counts), "a window of 16 tokens in a buffer of 32 is moved every second chunk of 8"


@pytest.mark.parametrize("model", ["pi", "two-token"])
def test_tables_are_made_once(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = made(model=model, num_neighbors=0)
    learner.predict_log_proba_many(chunk(98, n=1)[0])
    network = learner.model
    assert network is not None

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a table was made again")

    monkeypatch.setattr("prequential.models.transformer.sliding_window_bias", refuse)
    table = network.rotary.table
    tables = turn_of(learner).operations + prediction_of(learner).operations
    assert network.rotary.table is table
    assert not any(name.startswith(("aten.polar", "aten.repeat_interleave", "aten.masked_fill_")) for name in tables)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("updates", ["sequential", "joint"])
def test_the_optimizer_is_one_kernel_for_each_group_of_parameters(updates: str, streams: int) -> None:
    learner = made(updates=updates, num_streams=streams)
    assert learner._parts is not None
    groups = len(learner._parts.trainer.optimizer._adamw.param_groups)
    steps = streams if updates == "sequential" else 1
    operations = turn_of(learner).operations
    assert operations["aten._fused_adamw_.default"] == groups * steps
    assert not any(name.startswith(("aten._foreach_addcdiv", "aten.addcdiv")) for name in operations)


def test_joint_streams_share_their_products() -> None:
    def products(streams: int) -> int:
        operations = turn_of(made(updates="joint", num_streams=streams, method="paper")).operations
        return sum(operations[f"aten.{name}.default"] for name in ("mm", "addmm", "bmm", "baddbmm"))

    assert products(1) == products(4)


def test_predicting_keeps_nothing_for_a_backward_pass() -> None:
    kept: list[Tensor] = []
    learner = made()
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda packed: packed):
        prediction_of(learner)
    assert not kept
