"""Steps behind the predictions: exactly one chunk late, never waited for, and resumed to the bit."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from tests.shared.battery import checks_of

from prequential.errors import BadSetting
from prequential.evaluation.evaluate import evaluate
from prequential.learners.transformer import parts
from prequential.learners.transformer.distributed import Ranks
from prequential.learners.transformer.learner import Learner
from prequential.learners.transformer.trainer import Trainer
from prequential.storage.checkpoint import same_state
from prequential.streams.datasets.digits import digits

SMALL = {"width": 16, "num_query_heads": 2, "depth": 1, "window": 20, "chunk_size": 16, "num_streams": 3}
VARIANTS = {
    "pi": {},
    "two-token": {"model": "two-token"},
    "joint": {"updates": "joint"},
    "frozen": {"freeze_at": 64},
    "paper": {"method": "paper", "num_streams": 1},
}


def make(classes=10, **changes):
    return Learner(classes, async_steps=True, **{**SMALL, **changes})


def examples(n, seed=0):
    chunk = digits(tasks=1, task_length=n, seed=seed).read(0, n)
    return chunk.x, chunk.y


@checks_of(VARIANTS, whole={"pi"})
def test_battery(check, variant):
    check(lambda classes: Learner(classes, async_steps=True, **{**SMALL, **VARIANTS[variant]}))


def shown(learner):
    """The parameters that predict."""
    return learner._parts.trainer.prediction_model.parameters()


def trainer_state(learner):
    return learner.state_dict()["learner"]["parts"]["trainer"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_predictions_are_those_of_parameters_exactly_one_chunk_older(variant):
    """By hand: an ordinary learner is trained; another, never trained, predicts with the parameters it had before."""
    changes = {**SMALL, **VARIANTS[variant]}
    stream = digits(tasks=1, task_length=128)
    trained = Learner(10, **changes)
    predicting = Learner(10, **{**changes, "freeze_at": 0})
    late = make(**VARIANTS[variant])
    trained.replay_from(stream)
    late.replay_from(stream)
    older = newer = None  # the parameters after the turn before the last one, and after the last one
    for start in range(0, 128, 16):
        chunk = stream.read(start, start + 16)
        if older is not None:
            for parameter, value in zip(shown(predicting), older, strict=True):
                parameter.data.copy_(value)
        expected = predicting.observe(chunk.x, chunk.y)
        assert np.allclose(late.observe(chunk.x, chunk.y).log_loss, expected.log_loss, atol=1e-6), start
        if older is None:
            older = [parameter.clone() for parameter in shown(predicting)]
        if newer is not None:
            older = newer
        trained.observe(chunk.x, chunk.y)
        newer = [parameter.clone() for parameter in shown(trained)]
    state, ordinary = trainer_state(late), trainer_state(trained)
    assert state["num_steps"] == ordinary["num_steps"] > 0
    for name, value in ordinary["model"].items():
        assert torch.allclose(state["model"][name], value, atol=1e-6), name
    learnt = [torch.equal(a, b) for a, b in zip(state["prediction_model"].values(), newer, strict=True)]
    assert all(learnt) == (variant == "frozen")  # once nothing is learnt any more, the predictions are not late either


def test_examples_one_by_one_give_the_state_of_whole_chunks():
    x, y = examples(70)
    whole, single = make(), make()
    whole.learn_many(x[:64], y[:64])
    for row, label in zip(x[:64], y[:64], strict=True):
        single.learn(row, label)
    assert same_state(whole.state_dict(), single.state_dict())
    assert not same_state(Learner(10, **SMALL).state_dict(), whole.state_dict())


class Held:
    """Steps that begin when they are let: a gate in front of the steps of all trainers."""

    def __init__(self, monkeypatch):
        self.begun, self.gate = threading.Event(), threading.Event()
        take = Trainer._take

        def held(trainer, *args, **kwargs):
            self.begun.set()
            assert self.gate.wait(60)
            return take(trainer, *args, **kwargs)

        monkeypatch.setattr(Trainer, "_take", held)


def test_nothing_waits_while_steps_are_under_way(monkeypatch):
    x, y = examples(64)
    free, held = make(), make()
    expected = free.observe(x[:31], y[:31])
    after = free.predict_log_proba_many(x[31:33])
    hold = Held(monkeypatch)
    losses = [held.observe(x[:16], y[:16]).log_loss]
    assert hold.begun.wait(60)
    losses += [held.observe(x[t : t + 1], y[t : t + 1]).log_loss for t in range(16, 31)]
    predicted = held.predict_log_proba_many(x[31:33])
    assert held._parts.trainer.busy  # all of this was done before the first step ended
    assert np.allclose(np.concatenate(losses), expected.log_loss, atol=1e-5)
    assert np.allclose(predicted, after, atol=1e-5)
    hold.gate.set()
    held.learn(x[31], y[31])
    free.learn(x[31], y[31])
    assert same_state(held.state_dict(), free.state_dict())


@pytest.mark.parametrize(
    "finish", [lambda learner, x, y: learner.learn(x, y), lambda learner, x, y: learner.state_dict()]
)
def test_a_complete_chunk_and_a_state_wait_for_the_steps_under_way(monkeypatch, finish):
    x, y = examples(32)
    learner = make()
    hold = Held(monkeypatch)
    learner.learn_many(x[:31], y[:31])
    done = threading.Event()

    def last():
        finish(learner, x[31], y[31])
        done.set()

    thread = threading.Thread(target=last)
    thread.start()
    assert hold.begun.wait(60)
    assert not done.wait(0.05)
    hold.gate.set()
    thread.join(60)
    assert done.is_set()


def test_what_goes_wrong_behind_comes_up_as_itself(monkeypatch):
    x, y = examples(40)
    learner = make()
    learner.learn_many(x[:16], y[:16])

    class Broken(Exception):
        pass

    def fail(*args, **kwargs):
        raise Broken("the step went wrong")

    learner.state_dict()
    monkeypatch.setattr(Trainer, "_take", fail)
    learner.learn_many(x[16:32], y[16:32])
    with pytest.raises(Broken, match="the step went wrong"):
        learner.state_dict()
    for call in (
        lambda: learner.predict(x[32]),
        lambda: learner.learn(x[32], y[32]),
        lambda: learner.observe(x[32:], y[32:]),
        learner.state,
    ):
        with pytest.raises(Broken, match="the step went wrong"):
            call()


def test_killed_and_opened_again_it_goes_on_exactly(tmp_path):
    x, y = examples(120)
    learner, plain = make(home=tmp_path / "home"), make()
    for t in range(72):
        learner.learn(x[t], y[t])
        plain.learn(x[t], y[t])
        if t == 40:
            learner.save()
    learner.close()
    opened = Learner.open(tmp_path / "home")  # the save at 41, and what the journal holds after it
    assert opened.settings.async_steps
    assert opened.position == 72
    for other in (opened, plain):
        other.learn_many(x[72:112], y[72:112])
    assert same_state(opened.state_dict()["learner"]["parts"], plain.state_dict()["learner"]["parts"])
    a, b = opened.observe(x[112:], y[112:]), plain.observe(x[112:], y[112:])
    assert np.array_equal(a.log_loss, b.log_loss)


def test_saved_while_steps_are_under_way_it_goes_on_exactly(tmp_path, monkeypatch):
    x, y = examples(100)
    learner = make()
    hold = Held(monkeypatch)
    learner.learn_many(x[:20], y[:20])
    threading.Timer(0.02, hold.gate.set).start()
    learner.save(tmp_path / "saved")
    loaded = Learner.load(tmp_path / "saved")
    a, b = learner.observe(x[20:], y[20:]), loaded.observe(x[20:], y[20:])
    assert np.array_equal(a.log_loss, b.log_loss)
    assert same_state(learner.state_dict(), loaded.state_dict())


def test_flush_takes_the_steps_of_an_unfinished_chunk():
    stream = digits(tasks=1, task_length=200)
    late, ordinary = make(num_streams=6), Learner(10, **{**SMALL, "num_streams": 6})
    for t in range(0, 200, 5):
        chunk = stream.read(t, t + 5)
        for learner in (late, ordinary):
            learner.observe(chunk.x, chunk.y)
            if t % 3 == 0:
                learner.flush()
    parts, expected = (learner.state_dict()["learner"]["parts"] for learner in (late, ordinary))
    assert parts["replay"]["chunk"] == expected["replay"]["chunk"]
    trained, expected = parts["trainer"], expected["trainer"]
    assert trained["num_steps"] == expected["num_steps"]
    assert all(torch.allclose(trained["model"][n], v, atol=1e-5) for n, v in expected["model"].items())


def test_it_learns_from_a_stream_and_goes_on_with_other_examples():
    learner = make()
    scores = evaluate(digits(tasks=1, task_length=400), learner)
    assert scores.log_loss < np.log(10)
    x, y = examples(40, seed=1)
    learner.learn_many(x, y)
    assert learner.position == 440
    assert len(learner._memory._journal) == 440


def test_dropout_and_images_resume_exactly(tmp_path):
    stream = digits(tasks=1, task_length=64, images=True)
    x, y = np.kron(stream.read(0, 64).x, np.ones((1, 2, 2), np.uint8)), stream.read(0, 64).y
    learner = make(extractor="vgg", num_streams=2)
    learner.learn_many(x[:40], y[:40])
    learner.save(tmp_path / "saved")
    loaded = Learner.load(tmp_path / "saved")
    a, b = learner.observe(x[40:], y[40:]), loaded.observe(x[40:], y[40:])
    assert np.array_equal(a.log_loss, b.log_loss)
    assert same_state(learner.state_dict(), loaded.state_dict())


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


@pytest.mark.parametrize("call", ["predict", "forward"])
def test_predictions_use_one_core(threads, monkeypatch, call):
    """Of torch; the native core is told the number of threads."""
    x, y = examples(24)
    learner = make(engine="torch")
    learner.learn_many(x[:16], y[:16])
    used = []
    passes = type(learner._parts.ensemble.network.passes)
    original = getattr(passes, call)

    def watched(*args, **named):
        used.append(torch.get_num_threads())
        return original(*args, **named)

    monkeypatch.setattr(passes, call, watched)
    learner.observe(x[16:], y[16:])
    learner.predict_many(x[:2])  # one alone is computed on one core in any case
    assert used == [1]
    assert torch.get_num_threads() == threads


def test_its_thread_leaves_the_number_of_threads_alone_and_ends_with_it(threads):
    x, y = examples(40)
    learner = make()
    learner.learn_many(x, y)
    learner.state_dict()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert [torch.get_num_threads(), *seen] == [threads, threads]
    assert learner._parts.trainer._worker.submit(torch.get_num_threads).result() == threads - 1
    (worker,) = learner._parts.trainer._worker._threads
    del learner
    worker.join(60)
    assert not worker.is_alive()


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(parts, "here", lambda: Ranks(0, 2))
    with pytest.raises(BadSetting, match=r"async_steps \(True\) needs one process, but 2 share the streams"):
        make().learn([1.0], 0)
