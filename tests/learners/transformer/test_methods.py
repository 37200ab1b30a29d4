"""The two ways to predict, mixed or each alone: what the paper's method gives is as it always was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.shared.battery import checks_of

import prequential.learners.transformer.steps as module
from prequential.errors import BadSetting
from prequential.evaluation.evaluate import evaluate
from prequential.learners.transformer.learner import Learner
from prequential.storage.checkpoint import same_state
from prequential.streams.datasets.digits import digits

SMALL = {"width": 16, "num_query_heads": 2, "depth": 2, "window": 20, "chunk_size": 16, "num_streams": 3}
TABULAR = {"num_trees": 0, "recent_labels": False, "change_half_life": 0}  # what mixed has for tables, switched off
ONLY_HEADS = {"mlp_width": 64, "ema_decay": 0.0, "num_neighbors": 0, **TABULAR}  # and what else it has beside its heads
VARIANTS = {
    "paper": {"method": "paper"},
    "paper-two-token": {"method": "paper", "model": "two-token"},
    "paper-joint": {"method": "paper", "updates": "joint"},
    "copy": {"method": "copy"},
    "copy-two-token-joint": {"method": "copy", "model": "two-token", "updates": "joint", "window": 9},
    "mixed-two-token-joint": {"model": "two-token", "updates": "joint", "window": 9},
    "mixed-long-window": {"window": 60, "chunk_size": 7},
    "mixed-only-heads": ONLY_HEADS,
    "mixed-few-neighbours": {"num_neighbors": 30, "ema_decay": 0.5},
}
AS_IT_WAS = {  # losses of examples 0, 40, 80, 110 and 119 before there were heads to choose from
    "pi": ({}, [2.4849066734, 2.1117537022, 1.8825167418, 1.5490901470, 1.9742585421]),
    "two-token": ({"model": "two-token"}, [2.4849066734, 1.9781472683, 1.9278669357, 1.5918395519, 1.9910159111]),
    "joint": ({"updates": "joint"}, [2.4849066734, 2.2134890556, 2.2920737267, 2.1003630161, 2.2629401684]),
    "no-attention": ({"window": 0}, [2.4849066734, 2.0371119976, 2.0911979675, 1.5424165726, 1.6883049011]),
}


def make(classes=10, **changes):
    return Learner(classes, **{**SMALL, **changes})


@checks_of(VARIANTS, whole={"paper", "mixed-few-neighbours"})
def test_battery(check, variant):
    check(lambda classes: make(classes, **VARIANTS[variant]))


@pytest.mark.parametrize("variant", AS_IT_WAS)
def test_the_paper_s_method_computes_what_it_did(variant):
    changes, expected = AS_IT_WAS[variant]
    chunk = digits(tasks=1, task_length=120).read(0, 120)
    losses = make(12, method="paper", **changes).observe(chunk.x, chunk.y).log_loss
    np.testing.assert_allclose(losses[[0, 40, 80, 110, 119]], expected, rtol=1e-4)  # other machines round otherwise


def test_the_transformer_starts_with_the_same_weights_in_every_method():
    x = np.zeros((1, 4), np.float32)
    started = {}
    for method in ("paper", "mixed"):
        learner = make(method=method, num_streams=1, learning_rate=0.0, **ONLY_HEADS)
        learner.learn_many(x, [0])
        started[method] = dict(learner.model.named_parameters())
    assert set(started["paper"]) < set(started["mixed"])
    assert all(torch.equal(parameter, started["mixed"][name]) for name, parameter in started["paper"].items())


def test_without_a_window_there_is_nothing_to_copy_from():
    stream = digits(tasks=1, task_length=64)
    a, b = (make(window=0, method=method, **ONLY_HEADS) for method in ("mixed", "paper"))
    assert evaluate(stream, a).log_loss == evaluate(stream, b).log_loss
    one_token = make(window=1, model="two-token")  # holds half an example
    evaluate(stream, one_token)
    assert list(one_token.model.output_heads) == ["softmax"]
    with pytest.raises(BadSetting, match=r"window \(0\) must hold at least 1 example"):
        make(window=0, method="copy")
    with pytest.raises(BadSetting, match="method is 'plain', expected one of mixed, paper, copy"):
        make(method="plain")


@pytest.mark.parametrize("model", ["pi", "two-token"])
def test_every_head_is_trained_on_its_own_loss_alone(model, monkeypatch):
    """So the copy path cannot make the transformer lazy: without its loss the transformer's head stands still."""
    chunk = digits(tasks=1, task_length=64).read(0, 64)
    loss = module.F.nll_loss
    calls = []

    def only_the_first(log_p, y):
        calls.append(1)
        return loss(log_p, y) * (1.0 if len(calls) % 3 == 1 else 0.0)

    monkeypatch.setattr(module.F, "nll_loss", only_the_first)
    alone = make(model=model, engine="torch", **ONLY_HEADS)
    alone.learn_many(chunk.x, chunk.y)
    monkeypatch.undo()
    paper = make(model=model, method="paper", engine="torch")
    paper.learn_many(chunk.x, chunk.y)
    trained = dict(alone.model.named_parameters())
    assert len(calls) == 3 * 4 * 3  # heads, chunks, streams
    for name, parameter in paper.model.named_parameters():
        torch.testing.assert_close(trained[name], parameter, atol=1e-6, rtol=1e-5)
    assert trained["output_heads.copy.recency_slope"] == make_first(model)["output_heads.copy.recency_slope"]


def make_first(model):
    learner = make(model=model, learning_rate=0.0, **TABULAR)
    learner.learn_many(np.zeros((16, 64), np.float32), [0] * 16)
    return dict(learner.model.named_parameters())


def test_a_new_map_of_labels_is_copied_at_once():
    """Two clusters whose labels are swapped: after one example of each, the next ones are right."""
    random = np.random.default_rng(0)
    cluster = random.integers(2, size=200)
    x = np.where(cluster, 3.0, -3.0)[:, None] + random.normal(size=(200, 3)) * 0.3
    y = np.where(np.arange(200) < 100, cluster, 1 - cluster)
    correct = {}
    for method in ("paper", "mixed"):
        correct[method] = make(2, method=method, window=64, width=32).observe(x, y.tolist()).correct
    assert correct["mixed"][5:100].mean() > 0.95
    assert correct["mixed"][:40].mean() > correct["paper"][:40].mean()


def test_the_weights_of_the_heads_are_part_of_what_is_saved(tmp_path):
    chunk = digits(tasks=1, task_length=90).read(0, 90)
    learner = make()
    learner.observe(chunk.x[:40], chunk.y[:40])  # in the middle of a chunk
    state = learner.state_dict()["learner"]["parts"]["ensemble"]["mixer"]
    assert not np.array_equal(state["committed"]["log_weights"], state["current"]["log_weights"])
    learner.save(tmp_path / "saved")
    loaded = Learner.load(tmp_path / "saved")
    assert np.array_equal(loaded.predict_log_proba_many(chunk.x[40:45]), learner.predict_log_proba_many(chunk.x[40:45]))
    assert same_state(loaded.state_dict(), learner.state_dict())


@pytest.mark.parametrize("updates", ["sequential", "joint"])
@pytest.mark.parametrize("extractor", ["convnet", "vgg"])
def test_images_in_both_methods(extractor, updates):
    """Also where what is reported takes a pass of its own (vgg has dropout), and the extractor learns from copying."""
    chunk = digits(tasks=1, task_length=40, images=True).read(0, 40)
    x = np.kron(chunk.x, np.ones((1, 2, 2), np.uint8))
    whole, single = (make(extractor=extractor, updates=updates, num_streams=2) for _ in range(2))
    losses = whole.observe(x, chunk.y).log_loss
    one_by_one = [single.observe(x[t : t + 1], chunk.y[t : t + 1]).log_loss for t in range(40)]
    np.testing.assert_allclose(np.concatenate(one_by_one), losses, atol=2e-4)
    copying = make(extractor=extractor, updates=updates, num_streams=1, method="copy")
    copying.learn_many(x[:16], chunk.y[:16])
    before = [parameter.clone() for parameter in copying.model.extractor.parameters()]
    copying.learn_many(x[16:32], chunk.y[16:32])
    assert not all(torch.equal(a, b) for a, b in zip(before, copying.model.extractor.parameters(), strict=True))


def test_what_copying_costs_is_counted():
    chunk = digits(tasks=1, task_length=16).read(0, 16)
    macs = {}
    for method in ("paper", "mixed", "copy"):
        learner = make(method=method, **ONLY_HEADS)
        learner.learn_many(chunk.x, chunk.y)
        macs[method] = learner.macs_per_example()
    copying = 20 * 16  # examples × width of a key
    assert macs["mixed"] - macs["paper"] == 3 * 3 * (2 * copying + 16 * 16)  # passes, streams; the deep one has a map
    assert macs["copy"] == 3 * 3 * (64 * 2 * 16 + copying)
    whole = make(mlp_width=64, num_neighbors=100, **TABULAR)
    whole.learn_many(chunk.x, chunk.y)
    # one more forward pass, of the average, and what neighbours are compared by
    assert whole.macs_per_example() == macs["mixed"] * 10 / 9 + 100 * 64


class TestAverage:
    """What predicts is a moving average of the parameters that learn."""

    def test_it_follows_what_is_learnt(self):
        chunk = digits(tasks=1, task_length=64).read(0, 64)
        learner = make(ema_decay=0.5)
        learner._prepare(chunk.x[:1])
        trainer = learner._parts.trainer
        expected = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
        for turn in range(1, 5):
            part = slice(16 * (turn - 1), 16 * turn)
            learner.learn_many(chunk.x[part], chunk.y[part])
            share = min(0.5, turn / (turn + 9))
            for name, value in trainer.model.named_parameters():
                expected[name] = share * expected[name] + (1 - share) * value.detach()
        shown = dict(trainer.ema_model.named_parameters())
        for name, value in expected.items():
            torch.testing.assert_close(shown[name], value, atol=1e-6, rtol=1e-4)

    def test_the_steps_are_those_without_it(self):
        chunk = digits(tasks=1, task_length=64).read(0, 64)
        with_it, without = make(ema_decay=0.9), make(ema_decay=0.0)
        for learner in (with_it, without):
            learner.learn_many(chunk.x, chunk.y)
        for a, b in zip(with_it.model.parameters(), without.model.parameters(), strict=True):
            assert torch.equal(a, b)

    def test_predictions_come_from_it(self):
        chunk = digits(tasks=1, task_length=80).read(0, 80)
        learner = make(ema_decay=0.9, num_neighbors=0)
        learner.learn_many(chunk.x[:64], chunk.y[:64])
        before = learner.predict_log_proba_many(chunk.x[64:65])
        with torch.no_grad():
            for parameter in learner.model.parameters():
                parameter.zero_()
        assert np.array_equal(learner.predict_log_proba_many(chunk.x[64:65]), before)
        with torch.no_grad():
            for parameter in learner._parts.trainer.ema_model.parameters():
                parameter.mul_(1.5)
        assert not np.allclose(learner.predict_log_proba_many(chunk.x[64:65]), before)


def test_neighbours_remember_beyond_the_window():
    """A few kinds of rows that come back after more examples than the window holds."""
    random = np.random.default_rng(0)
    kinds, labels = random.normal(size=(32, 3)), random.integers(0, 2, 32)
    order = np.concatenate([random.permutation(32) for _ in range(6)])
    x, y = kinds[order].astype(np.float32), labels[order].tolist()
    charged = {}
    for neighbours in (0, 192):
        learner = make(2, window=8, num_neighbors=neighbours, **TABULAR)
        learner.learn_many(x, y)
        charged[neighbours] = learner.observe(x, y).log_loss.mean()
    assert charged[192] < charged[0] - 0.2


def test_neighbours_need_vectors():
    with pytest.raises(BadSetting, match=r"num_neighbors \(5\) needs vectors, but x has shape \(8, 8\)"):
        make(num_neighbors=5).learn_many(np.zeros((1, 8, 8), np.uint8), [0])


def test_labels_never_met_have_a_share_in_what_is_copied():
    learner = make(1000, method="copy")
    x = np.random.default_rng(0).normal(size=(40, 4))
    charges = learner.observe(x, [t % 2 for t in range(39)] + ["new"])
    assert charges.log_loss[-1] < np.log(3 / 0.02 * 998) + 0.1  # one share of three of the 2 %, for one of 998
    p = learner.predict_proba(x[0])
    assert 0 < p.unseen < p["new"]
