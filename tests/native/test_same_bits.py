"""The libraries for different CPUs give the same bits: all sums have one order, and the same products are fused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from tests.native.helpers import SHAPES, Case, stream_input

from prequential.learners.transformer.optimizer import Optimizer
from prequential.models.kv_cache import KVState
from prequential.native import library as native
from prequential.native.build import AVX512_NAME, FOLDER, NAME
from prequential.native.transformer import NativeTransformer

GENERAL, AVX512 = (native.load_library(FOLDER / name) for name in (NAME, AVX512_NAME))
pytestmark = [pytest.mark.skipif(found.library is None, reason=found.reason) for found in (GENERAL, AVX512)]

SIZES = {
    **SHAPES,
    "wide_and_odd": {"width": 270, "num_query_heads": 5, "mlp_width": 331, "depth": 1, "K": 77, "F": 45, "S": 57},
    "paper_wide": {"method": "paper", "width": 192, "num_query_heads": 3, "K": 100, "F": 70, "S": 64, "window": 100},
}
WHOLE = """
import hashlib, sys
import numpy as np
import torch
from prequential import Learner
from prequential.native.library import library

torch.set_num_threads(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(400, 7)).astype(np.float32)
y = (np.abs(x).argmax(1) + (np.arange(400) > 200)) % 7
learner = Learner(10, width=32, num_query_heads=2, depth=2, window=48, engine="native")
seen = hashlib.sha256()
for start in range(0, 300, 60):  # as tables, then one by one
    seen.update(np.asarray(learner.observe(x[start : start + 60], y[start : start + 60].tolist()).log_proba).tobytes())
for row, label in zip(x[300:], y[300:].tolist(), strict=True):
    seen.update(repr(learner.predict_proba_one(row)).encode())
    learner.learn(row, label)
def add(value):
    if isinstance(value, dict):
        for name in sorted(value, key=str):
            add(value[name])
    elif isinstance(value, (list, tuple)):
        for each in value:
            add(each)
    else:
        seen.update(np.asarray(value).tobytes() if hasattr(value, "shape") else repr(value).encode())
add(learner.state_dict())
print(library().describe().split("-march=")[1], seen.hexdigest())
"""


def tensors(state: KVState) -> list[torch.Tensor]:
    return [*state.tokens, *state.examples]


def compute(found: native.Found, shape: str, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What passes, predictions and steps give, and the parameters behind them."""
    monkeypatch.setattr(native, "_found", found)
    case = Case(**SIZES[shape])
    optimizer = Optimizer(case.model, case.model.settings)
    core = NativeTransformer(case.model, optimizer.adamw)
    assert core._functions is found.library
    contexts = [case.model.new_context() for _ in range(2)]
    results: list[torch.Tensor | None] = []
    for i, lengths in enumerate([(case.S, case.S), (case.S, 7), (1, case.S), (33, 25)]):
        optimizer.set_learning_rate(i)
        streams = [stream_input(case.batch(length), context) for length, context in zip(lengths, contexts, strict=True)]
        step = core.step(streams)
        assert step.finite
        for passed, context in zip(step.passes, contexts, strict=True):
            results += [passed.log_probs, *tensors(passed.new)]
            context.commit(passed.new)
        for length in (1, 3, 20, 64):
            batch = case.batch(length)
            predicted = core.predict_next(batch.x, batch.num_seen, contexts[0].current())
            results.append(predicted.log_probs)
    results += [parameter.detach().clone() for parameter in case.model.parameters()]
    moments = [optimizer.adamw.state[parameter] for parameter in case.model.parameters()]
    results += [moment[name].clone() for moment in moments for name in ("exp_avg", "exp_avg_sq")]
    found_all = [result for result in results if result is not None]
    assert len(found_all) > 30
    return found_all


@pytest.mark.parametrize("shape", SIZES)
def test_passes_and_steps(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    general, avx512 = (compute(found, shape, monkeypatch) for found in (GENERAL, AVX512))
    for ours, theirs in zip(general, avx512, strict=True):
        assert torch.equal(ours, theirs)


def test_whole_learners() -> None:
    """With kNN, trees, mixer and normalizer; in processes of their own, as these keep the library they have found."""
    said = {}
    for name in (NAME, AVX512_NAME):
        environment = {**os.environ, native.PATH_VARIABLE: str(FOLDER / name)}
        done = subprocess.run([sys.executable, "-c", WHOLE], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        said[name] = done.stdout.split()
    assert (said[NAME][0], said[AVX512_NAME][0]) == ("x86-64-v3", "x86-64-v4")
    assert said[NAME][-1] == said[AVX512_NAME][-1]
