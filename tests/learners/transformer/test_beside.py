"""Steps that are taken while the chunk is predicted, where there is a second core."""

import threading

import numpy as np
import pytest
import torch

from prequential.learners.transformer.beside import Beside
from prequential.learners.transformer.learner import Learner
from prequential.learners.transformer.trainer import Trainer
from prequential.storage.checkpoint import same_state
from shared.engines import NO_LIBRARY

native_only = pytest.mark.skipif(bool(NO_LIBRARY), reason=NO_LIBRARY)
SMALL = {"width": 16, "num_query_heads": 2, "depth": 2, "window": 24, "chunk_size": 10, "num_streams": 3}


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def examples(n):
    random = np.random.default_rng(0)
    y = random.integers(0, 4, n)
    return random.normal(y[:, None], 1.5, (n, 3)).astype(np.float32), y.tolist()


def teach(threads, x, y, **changes):
    torch.set_num_threads(threads)
    learner = Learner(4, **SMALL, **changes, engine="native")
    losses = learner.observe(x[:45], y[:45]).log_loss
    learner.learn_many(x[45:70], y[45:70], asked_at=np.arange(45, 70) - np.arange(25) % 5)
    return learner, np.concatenate([losses, learner.observe(x[70:], y[70:]).log_loss])


@native_only
@pytest.mark.parametrize("changes", [{}, {"updates": "joint"}, {"async_steps": True}, {"method": "paper"}])
def test_a_learner_has_the_same_bits_for_any_number_of_threads(two_threads, changes):
    x, y = examples(100)
    (one, losses), (two, same_losses) = (teach(threads, x, y, **changes) for threads in (1, 2))
    assert np.array_equal(losses, same_losses)
    assert same_state(one.state_dict(), two.state_dict())


@native_only
def test_steps_run_while_the_chunk_is_predicted(two_threads, monkeypatch):
    learner = Learner(4, **SMALL, engine="native")
    x, y = examples(20)
    learner.learn_many(x[:10], y[:10])
    begun, forward, take = threading.Event(), learner._parts.ensemble.network.forward, Trainer._take
    seen = []

    def held(trainer, *given):
        begun.set()
        return take(trainer, *given)

    def watched(batch):
        seen.append(begun.wait(60))
        return forward(batch)

    monkeypatch.setattr(Trainer, "_take", held)
    monkeypatch.setattr(learner._parts.ensemble.network, "forward", watched)
    learner.learn_many(x[10:], y[10:])
    assert seen == [True]


@native_only
@pytest.mark.parametrize("where", ["forward", "commit", "steps"])
def test_what_goes_wrong_is_raised_when_no_step_is_under_way(two_threads, monkeypatch, where):
    learner = Learner(4, **SMALL, engine="native")
    x, y = examples(20)
    learner.learn_many(x[:10], y[:10])
    trainer, network = learner._parts.trainer, learner._parts.ensemble.network
    average = [parameter.clone() for parameter in trainer.ema_model.parameters()]

    def fail(*given, **named):
        raise ZeroDivisionError(where)

    monkeypatch.setattr(
        *{"steps": (Trainer, "_take"), "forward": (network, "forward"), "commit": (network, "commit")}[where], fail
    )
    with pytest.raises(ZeroDivisionError, match=where):
        learner.learn_many(x[10:], y[10:])
    assert all(thread.name != "beside" for thread in threading.enumerate())
    moved = any(not torch.equal(a, b) for a, b in zip(average, trainer.ema_model.parameters(), strict=True))
    assert moved == (where == "commit")


def test_an_interrupt_waits_for_what_is_under_way(monkeypatch):
    gate, done = threading.Event(), []
    beside = Beside(lambda: done.append(gate.wait(60)))
    join, interrupted = beside._thread.join, []

    def once():
        if not interrupted:
            interrupted.append(True)
            gate.set()
            raise KeyboardInterrupt
        join()

    monkeypatch.setattr(beside._thread, "join", once)
    with pytest.raises(KeyboardInterrupt):
        beside.join()
    assert done == [True]
