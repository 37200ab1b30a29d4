"""The transformer learner without a number of classes: it grows where a chunk needs it, to the bit, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from prequential import ArrayStream, evaluate
from prequential.errors import BadCheckpoint
from prequential.learners.transformer.learner import Learner
from prequential.learners.transformer.optimizer import Optimizer
from prequential.learners.transformer.trainer import Trainer
from prequential.registry import make_learner
from prequential.settings import Settings
from prequential.storage.checkpoint import same_state
from prequential.testing.class_checks import make_many_labels

SMALL = {"width": 16, "depth": 1, "window": 16, "chunk_size": 8, "num_streams": 2, "device": "cpu"}


@pytest.mark.parametrize("changes", [{}, {"model": "two-token"}, {"async_steps": True}], ids=str)
def test_where_it_grows_depends_on_the_examples_alone(changes):
    x, y = make_many_labels(56)
    whole, one_by_one, asked = (Learner(**SMALL, **changes) for _ in range(3))
    whole.learn_many(x, y)
    for t in range(len(y)):
        one_by_one.learn(x[t], y[t])
        asked.predict(x[t])  # whose result has fewer class ids than learning may need
        asked.learn(x[t], y[t])
    assert len(whole.labels) > 16
    assert same_state(whole.state_dict(), one_by_one.state_dict())
    assert same_state(whole.state_dict(), asked.state_dict())


def test_free_class_ids_stay_alike_and_the_others_as_they_were():
    x, y = make_many_labels(56)
    learner = Learner(**SMALL)
    learner.learn_many(x, y)
    seen = len(learner.labels)
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    with learner._alone():
        learner._make_room(np.array([100]))
    after = learner.model.state_dict()
    assert after["output_heads.softmax.readout.weight"].shape == (128, 16)
    for name, value in before.items():
        assert after[name][: len(value)].equal(value) if value.ndim else after[name].equal(value), name
    readout = after["output_heads.softmax.readout.weight"]
    assert (readout[seen:] == readout[seen]).all()
    assert readout[seen].abs().max() > 0  # it was learned that they do not come
    labels = after["blocks.0.key_labels.weight"]
    assert len({tuple(row.tolist()) for row in labels}) == 128  # each has an embedding of its own


@pytest.mark.parametrize("part", [(Optimizer, "grown_moments"), (Trainer, "train_chunk")], ids=lambda part: part[1])
def test_a_call_that_fails_while_it_grows_is_undone(part, monkeypatch, tmp_path):
    x, y = make_many_labels(60)
    learner = Learner(home=tmp_path / "home", **SMALL)
    learner.learn_many(x[:30], y[:30])
    learner.save()
    before = learner.state_dict()

    def fails(*_, **__):
        raise RuntimeError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(*part, fails)
        with pytest.raises(RuntimeError, match="no room"):
            learner.learn_many(x[30:38], [f"new {i}" for i in range(8)])  # completes a chunk
    assert same_state(before, learner.state_dict())
    assert learner.labels.capacity == 16
    learner.learn_many(x[30:], y[30:])
    expected = Learner(**SMALL)
    expected.learn_many(x, y)
    assert np.array_equal(expected.predict_log_proba_many(x), learner.predict_log_proba_many(x))
    learner.close()


def test_a_home_is_opened_again_after_it_has_grown(tmp_path):
    x, y = make_many_labels(60)
    learner = Learner(home=tmp_path / "home", **SMALL)
    for t in range(len(y)):
        learner.learn(x[t], y[t])
        if t == 12:
            learner.save()  # with room for 8 labels; what came after is learned again from the journal
    expected = learner.predict_log_proba_many(x)
    learner.close()
    again = Learner.open(tmp_path / "home", device="cpu")
    assert again.labels.capacity == 32
    assert np.array_equal(expected, again.predict_log_proba_many(x))
    again.close()


def test_a_state_without_a_number_is_not_one_with_a_number():
    x, y = make_many_labels(20)
    learner, given = Learner(**SMALL), Learner(8, **SMALL)
    learner.learn_many(x, y)
    with pytest.raises(BadCheckpoint, match="saved with classes None, expected 8"):
        given.load_state_dict(learner.state_dict())
    with pytest.raises(BadCheckpoint, match="saved with classes 8, expected None"):
        learner.load_state_dict(given.state_dict())


def test_labels_that_come_cost_about_what_they_do_with_their_number_given():
    x, y = make_many_labels(200)
    y = [label % 6 for label in y]
    losses = {classes: Learner(classes, **SMALL).observe(x, y).log_loss[100:].mean() for classes in (6, None)}
    assert losses[None] == pytest.approx(losses[6], abs=0.1)


@pytest.mark.parametrize("protocol", [{"delay": 7}, {"label_batches": 10}], ids=str)
@pytest.mark.parametrize("spec", ["transformer", "er(batch=8)", "kalman(block=8)"])
def test_it_grows_while_predictions_wait_for_their_labels(spec, protocol):
    x, y = make_many_labels(60)
    settings = Settings(**{name: value for name, value in SMALL.items() if name != "device"})
    learner = make_learner(spec, settings=settings)
    scores = evaluate(ArrayStream(x, y), learner, **protocol)
    assert (scores.count, scores.classes, learner.labels.capacity) == (60, 17, 32)
    assert np.isfinite(scores.log_loss)
