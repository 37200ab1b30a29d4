"""Gradient steps by the native core: several streams, threads, long runs, growth, and what it refuses."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest
import torch
from tests.native.helpers import Case, Pair, chunk_input, stream_input

from prequential.learners.transformer.distributed import Ranks
from prequential.learners.transformer.optimizer import Optimizer
from prequential.learners.transformer.trainer import Trainer
from prequential.models.kv_cache import KVState
from prequential.models.lookback import LookBack
from prequential.native.library import library
from prequential.native.streams import StreamInput
from prequential.native.transformer import NativeTransformer, unsupported

pytestmark = pytest.mark.skipif(library().library is None, reason=library().reason)


MODELS = pytest.mark.parametrize("model", ["pi", "two-token"])


@pytest.mark.parametrize("changes", [{}, {"lags": 7}, {"model": "two-token"}], ids=str)
@pytest.mark.parametrize("lengths", [(32, 32, 32), (5, 33, 16)])
def test_joint_steps_equal_those_of_the_trainer(lengths: tuple[int, ...], changes: dict[str, Any]) -> None:
    case = Case(updates="joint", num_streams=3, **changes)
    pair = Pair(case, streams=3)
    for i in range(6):
        if i == 3:  # from here on, pasts are of unequal lengths
            pair.trainer.contexts[1].clear()
            pair.contexts[1].clear()
        pair.step([case.batch(length) for length in lengths], 32 * i)
        pair.check_gradients(2e-3)
    pair.check_parameters(1e-3)


@pytest.mark.parametrize("changes", [{}, {"model": "two-token"}, {"model": "two-token", "window": 0}], ids=str)
@pytest.mark.parametrize("lengths", [(33,), (20, 29, 38), (150,), (40, 7)])
def test_steps_have_the_same_bits_for_any_number_of_threads_and_in_every_run(
    lengths: tuple[int, ...], changes: dict[str, Any]
) -> None:
    results = []
    for threads in (1, 2, 3, 5, 1):
        late = 5 if len(lengths) == 2 and not changes else 0
        case = Case(K=40, width=48, chunk_size=150, label_batches=late, **changes)
        optimizer = Optimizer(case.model, case.model.settings)
        native = NativeTransformer(case.model, optimizer.adamw)
        contexts = [case.model.new_context() for _ in lengths]
        for i in range(4):
            optimizer.set_learning_rate(i)
            batches = [case.batch(length) for length in lengths]
            streams = [stream_input(batch, context) for batch, context in zip(batches, contexts, strict=True)]
            step = native.step(streams, threads=threads, split=True)
            for passed, context in zip(step.passes, contexts, strict=True):
                context.commit(passed.new)
        batch = case.batch(100)
        past = contexts[0].committed()
        passed = native._forward(
            StreamInput(batch.x, batch.class_ids, batch.num_seen, past), state=True, threads=threads
        )
        found = [passed.log_probs, step.passes[0].log_probs, torch.tensor(step.loss), *passed.new.tokens]
        results.append([*found, *(parameter.detach().clone() for parameter in case.model.parameters())])
    for result in results[1:]:
        for ours, first in zip(result, results[0], strict=True):
            assert ours is not None
            assert first is not None
            assert torch.equal(ours, first)


@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"lags": 7}, {"method": "copy"}, {"window": 0}, {"window": 9, "lags": 3}),
        *({"model": "two-token"}, {"model": "two-token", "method": "paper", "window": 9}),
    ],
    ids=str,
)
def test_steps_in_one_call_have_the_same_bits_as_one_by_one(changes: dict[str, Any]) -> None:
    case = Case(num_streams=3, **changes)
    models = [case.model, copy.deepcopy(case.model)]
    averages = [NativeTransformer(copy.deepcopy(model)) for model in models]
    optimizers = [Optimizer(model, model.settings) for model in models]
    natives = [NativeTransformer(m, optimizer.adamw) for m, optimizer in zip(models, optimizers, strict=True)]
    contexts = [[model.new_context() for _ in range(3)] for model in models]
    for turn in range(5):
        batches = [case.batch(33 - turn) for _ in range(3)]
        for optimizer in optimizers:
            optimizer.set_learning_rate(turn)
        for batch, context in zip(batches, contexts[0], strict=True):
            context.commit(natives[0].step([stream_input(batch, context)]).passes[0].new)
        averages[0].update_ema(natives[0], 0.7)
        chunks = [chunk_input(batch, context) for batch, context in zip(batches, contexts[1], strict=True)]
        done = natives[1].train([[chunk] for chunk in chunks], threads=2, average=averages[1], decay=0.7)
        assert [step.finite for step in done] == [True] * 3
    pairs = [(models[0], models[1]), (averages[0].model, averages[1].model)]
    for one, other in pairs:
        for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    for one_by_one, in_one_call in zip(*contexts, strict=True):
        for name in ("tokens", "examples"):
            ours, theirs = one_by_one.state_dict()[name], in_one_call.state_dict()[name]
            assert ours.keys() == theirs.keys()
            assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_a_chunk_behind_an_unfinished_one_is_refused() -> None:
    case = Case()
    native = NativeTransformer(case.model, Optimizer(case.model, case.model.settings).adamw)
    context = case.model.new_context()
    _, state = native.predict_one(case.batch(1).x, 5, context)
    native.append_one(state, 0, context)
    with pytest.raises(ValueError, match="1 of an unfinished chunk"):
        native.train([[chunk_input(case.batch(), context)]])


@MODELS
def test_either_engine_goes_on_from_the_moments_of_the_other(model: str) -> None:
    case = Case(model=model, learning_rate=0.01, weight_decay=0.1)
    pair = Pair(case)
    other = TorchTwin(pair)
    for i in range(12):
        batch = case.batch()
        if i % 3 == 2:  # torch takes this step on the twin, too
            pair.trainer._take(pair.trainer._prepare([{0: batch}], 32 * i))
            other.step(batch, 32 * i)
        else:
            pair.step([batch], 32 * i)
    pair.check_parameters(2e-4)
    steps = {float(state["step"]) for state in pair.optimizer.adamw.state.values()}
    assert steps == {12.0}


class TorchTwin:
    """Takes a step by torch on what the native core trains otherwise."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.trainer = Trainer(pair.twin, pair.twin.settings, Ranks())
        self.trainer.optimizer = self.trainer.steps.optimizer = pair.optimizer  # type: ignore[attr-defined]
        self.trainer.contexts = pair.contexts

    def step(self, batch: object, position: int) -> None:
        self.trainer._take(self.trainer._prepare([{0: batch}], position))  # type: ignore[dict-item]


def test_fifty_steps_lose_as_much_as_those_of_torch() -> None:
    case = Case(width=48, num_query_heads=4, depth=3, window=40, F=6, K=4, learning_rate=0.01, ema_decay=0.0)
    pair, teacher = Pair(case), case.rng.normal(size=(6, 4))
    losses: list[tuple[float, float]] = []
    for i in range(50):
        batch = case.batch()
        batch.class_ids[:] = (batch.x @ teacher).argmax(1)
        passed = pair.trainer._take(pair.trainer._prepare([{0: batch}], 32 * i))
        assert passed is not None
        pair.trainer.contexts[0].commit(passed.new)
        pair.optimizer.set_learning_rate(32 * i)
        result = pair.native.step([stream_input(batch, pair.contexts[0])])
        pair.contexts[0].commit(result.passes[0].new)
        theirs = -sum(float(of_head[np.arange(32), batch.class_ids].mean()) for of_head in passed.log_probs)
        losses.append((result.loss, theirs))
    assert losses[-1][0] < 0.8 * losses[0][0]  # it learns
    assert max(abs(ours - theirs) / theirs for ours, theirs in losses) < 2e-3


@MODELS
@pytest.mark.parametrize("length", [1, 2, 8, 9, 15, 16, 17, 31, 33])
def test_chunks_of_any_length_behind_pasts_that_still_fill(length: int, model: str) -> None:
    case = Case(S=length, window=11, depth=1, model=model)
    pair = Pair(case)
    for i in range(3):
        pair.step([case.batch()], length * i)
        pair.check_gradients(2e-3)


@pytest.mark.parametrize(("K", "length"), [(63, 16), (64, 8), (65, 24), (300, 40)])
def test_steps_with_many_classes(K: int, length: int) -> None:
    # their sums are made in parts of 64 classes
    case = Case(K=K, S=length, window=20, depth=1)
    pair = Pair(case)
    for i in range(3):
        pair.step([case.batch()], length * i)
        pair.check_gradients(5e-4)
        pair.align()


@MODELS
def test_classes_grow_between_steps(model: str) -> None:
    case = Case(K=4, seen=2, model=model)
    pair = Pair(case)
    pair.step([case.batch()], 0)
    pair.trainer.grow(9, like=3)
    tables = pair.twin.grown_tables(9, like=3)
    moments = pair.optimizer.grown_moments(tables, 9, like=3)
    pair.twin.grow(9, tables)
    pair.optimizer.grow(moments)
    case.seen = 5
    for i in (1, 2):
        pair.step([case.batch()], 32 * i)
        pair.check_gradients(2e-3)
    pair.check_parameters(1e-3)
    batch = case.batch(1)
    assert pair.native.predict_one(batch.x, 5, pair.contexts[0])[0].shape == (3, 1, 9)


def test_free_classes_stay_equal_to_the_bit() -> None:
    # the rows that are added when classes grow are copies of a free one's
    case = Case(K=23, seen=6)
    optimizer = Optimizer(case.model, case.model.settings)
    native, context = NativeTransformer(case.model, optimizer.adamw), case.model.new_context()
    optimizer.set_learning_rate(0)
    torch.nn.init.zeros_(case.model.output_heads["softmax"].readout.weight)  # type: ignore[arg-type]
    for _ in range(3):
        result = native.step([stream_input(case.batch(), context)])
        context.commit(result.passes[0].new)
    readout = case.model.output_heads["softmax"].readout.weight  # type: ignore[union-attr]
    assert all(torch.equal(readout[k], readout[6]) for k in range(7, 23))
    one = case.batch(1)
    log_probs, _ = native.predict_one(one.x, 6, context)
    assert len(set(log_probs[0, 0, 6:].tolist())) == 1
    assert np.allclose(np.exp(log_probs).sum(-1), 1, atol=1e-5)


@MODELS
def test_a_step_that_is_not_finite_changes_nothing(model: str) -> None:
    case = Case(model=model)
    optimizer = Optimizer(case.model, case.model.settings)
    native, context = NativeTransformer(case.model, optimizer.adamw), case.model.new_context()
    native.step([stream_input(case.batch(), context)])
    before = copy.deepcopy((case.model.state_dict(), optimizer.state_dict()))
    batch = case.batch()
    batch.x[7] = np.inf
    assert not native.step([stream_input(batch, context)]).finite
    torch.testing.assert_close((case.model.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)
    assert native.step([stream_input(case.batch(), context)]).finite


def test_the_average_moves_as_torch_lerp_does() -> None:
    case = Case()
    average = copy.deepcopy(case.model)
    torch.manual_seed(3)
    for parameter in average.parameters():
        parameter.data += torch.randn_like(parameter)
    for decay in (0.98, 0.1):
        expected = [
            torch.lerp(ours, theirs, 1 - decay).detach()
            for ours, theirs in zip(average.parameters(), case.model.parameters(), strict=True)
        ]
        NativeTransformer(average).update_ema(NativeTransformer(case.model), decay)
        for ours, theirs in zip(average.parameters(), expected, strict=True):
            torch.testing.assert_close(ours.detach(), theirs, rtol=1e-6, atol=1e-6)


def test_a_copy_has_parameters_of_its_own() -> None:
    case = Case()
    native = NativeTransformer(case.model)
    copied, context, one = copy.deepcopy(native), case.model.new_context(), case.batch(1)
    before, _ = native.predict_one(one.x, 5, context)
    for parameter in case.model.parameters():
        parameter.data.mul_(2)
    assert np.array_equal(copied.predict_one(one.x, 5, context)[0], before)
    assert not np.array_equal(native.predict_one(one.x, 5, context)[0], before)


def test_threads_predict_at_once_while_another_model_trains() -> None:
    case = Case(width=64, num_query_heads=4)
    trained = copy.deepcopy(case.model)
    optimizer = Optimizer(trained, trained.settings)
    trainer, native = NativeTransformer(trained, optimizer.adamw), NativeTransformer(case.model)
    context, own = case.model.new_context(), trained.new_context()
    batch = case.batch()
    context.commit(native.forward(batch.x, batch.class_ids, batch.num_seen, context.committed()).new)
    queries = case.batch(40).x
    expected = [native.predict_one(x[None], 5, context)[0] for x in queries]
    wrong: list[int] = []

    def predict() -> None:
        for _ in range(5):
            for i, x in enumerate(queries):
                if not np.array_equal(native.predict_one(x[None], 5, context)[0], expected[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=predict) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert trainer.step([stream_input(batch, own)]).finite
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    case = Case()
    native, context = NativeTransformer(case.model), case.model.new_context()
    x, y, seen = case.batch().x, np.zeros(32, int), np.full(32, 5)
    past = context.committed()
    with pytest.raises(ValueError, match="class id"):
        native.forward(x, y + 5, seen, past)
    with pytest.raises(ValueError, match="class id"):
        native.forward(x, y - 1, seen, past)
    with pytest.raises(ValueError, match=r"x has shape \(32, 2\), expected \(32, 3\)"):
        native.forward(x[:, :2], y, seen, past)
    with pytest.raises(ValueError, match="32 examples have"):
        native.forward(x, y[:3], seen, past)
    with pytest.raises(ValueError, match="do not fit"):
        native.forward(x[:0], y[:0], seen[:0], past)
    with pytest.raises(ValueError, match="itself or a later one"):
        native.forward(x, y, seen, past, LookBack(np.arange(32)[None] + 1, np.arange(32), True))
    with pytest.raises(ValueError, match="ranges are given for"):
        native.forward(x, y, seen, past, LookBack.of_lags(np.zeros((1, 3), int)))
    with pytest.raises(ValueError, match="further apart"):
        native.forward(x, y, seen, past, LookBack(np.arange(32)[None], np.arange(32) + 10**6, True))
    wider = Case(width=64).model.new_context().committed()
    with pytest.raises(ValueError, match="past keys have shape"):
        native.forward(x, y, seen, wider)
    assert native.forward(x, y, seen, past).log_probs is not None  # and goes on


def test_past_labels_of_more_classes_than_the_model_has_are_refused() -> None:
    case, larger = Case(), Case(K=9)
    context, batch = larger.model.new_context(), larger.batch()
    native = NativeTransformer(larger.model)
    batch.class_ids[:] = 8
    context.commit(native.forward(batch.x, batch.class_ids, batch.num_seen, context.committed()).new)
    with pytest.raises(ValueError, match="class id"):
        NativeTransformer(case.model).predict_one(batch.x[:1], 5, context)


def test_what_it_cannot_compute_is_said() -> None:
    assert unsupported(Case().model) is None
    assert "float32" in str(unsupported(Case(precision="bfloat16").model))
    with pytest.raises(ValueError, match="bfloat16"):
        NativeTransformer(Case(precision="bfloat16").model)
    assert unsupported(Case(model="two-token").model) is None
    assert "with blocks" in str(unsupported(Case(model="two-token", method="copy").model))


def test_inputs_of_any_layout_are_taken() -> None:
    case = Case(F=6)
    native, context = NativeTransformer(case.model), case.model.new_context()
    batch = case.batch()
    for _ in range(2):
        context.commit(native.forward(batch.x, batch.class_ids, batch.num_seen, context.committed()).new)
    past = context.committed()
    expected = native.forward(batch.x, batch.class_ids, batch.num_seen, past).log_probs
    strided = np.repeat(batch.x, 2, 1)[:, ::2]
    k, v = (part.transpose(2, 3).contiguous().transpose(2, 3) for part in past.tokens)
    ours = native._forward(
        StreamInput(strided, batch.class_ids.astype(np.int32), batch.num_seen, KVState((k, v), past.examples)),
        state=True,
    )
    assert expected is not None
    assert torch.equal(ours.log_probs, expected)  # type: ignore[arg-type]
