"""The transformer learner's own promises: steps, replay, what is reported, living on disk, images."""

from __future__ import annotations

import contextlib
import gc
import os

import numpy as np
import pytest
import torch

import prequential.learners.transformer.steps as module
from prequential.errors import BadCheckpoint, BadInput, BadSetting, DamageWarning
from prequential.evaluation.evaluate import evaluate
from prequential.learners.transformer.learner import Learner
from prequential.storage.checkpoint import same_state
from prequential.streams.datasets.digits import digits

SMALL = {"width": 16, "num_query_heads": 2, "depth": 1, "window": 20, "chunk_size": 16, "num_streams": 3}


def make(classes=10, **changes):
    return Learner(classes, **{**SMALL, **changes})


@pytest.mark.parametrize("updates", ["sequential", "joint"])
@pytest.mark.parametrize("streams", [1, 2, 5])
@pytest.mark.parametrize("length", [1, 16, 50])
def test_number_of_steps(updates, streams, length):
    learner = make(updates=updates, num_streams=streams)
    evaluate(digits(tasks=1, task_length=length), learner)
    turns = -(-length // 16)
    assert learner._parts.trainer.num_steps == (turns if updates == "joint" else turns * streams)


@pytest.mark.parametrize("model", ["pi", "two-token"])
def test_the_reported_loss_is_from_before_the_step_on_its_labels(model, monkeypatch):
    stream = digits(tasks=1, task_length=48)
    chunks = [stream.read(start, start + 16) for start in (0, 16, 32)]
    honest, misled = (make(model=model, engine="torch") for _ in range(2))
    for learner in (honest, misled):
        learner.replay_from(stream)
        learner.observe(chunks[0].x, chunks[0].y)
    expected = honest.observe(chunks[1].x, chunks[1].y)
    loss = module.F.nll_loss
    monkeypatch.setattr(module.F, "nll_loss", lambda log_p, y: loss(log_p, (y + 1) % 10))
    reported = misled.observe(chunks[1].x, chunks[1].y)
    assert np.array_equal(reported.log_loss, expected.log_loss)
    after = misled.observe(chunks[2].x, chunks[2].y).log_loss
    assert not np.array_equal(after, honest.observe(chunks[2].x, chunks[2].y).log_loss)


def test_a_replay_stream_that_goes_back_has_an_empty_cache_and_the_others_do_not():
    learner = make(num_streams=20)
    stream = digits(tasks=1, task_length=200)
    learner.replay_from(stream)
    seen = {"back": 0, "on": 0}
    for start in range(0, 192, 16):
        chunk = stream.read(start, start + 16)
        learner.observe(chunk.x, chunk.y)
        parts = learner._parts
        for context, position in zip(parts.trainer.contexts[1:], parts.replay.positions.chunk, strict=True):
            seen["back" if position == 1 else "on"] += 1
            if position > 1:  # one that has gone back is cleared when it reads again
                lengths = [len(cache.committed()[0][0, 0]) for cache in (context.tokens, context.examples)]
                assert lengths == [min(20, 16 * (position - 1))] * 2
    assert seen["back"] > 30
    assert seen["on"] > 30


def test_replay_reads_the_chunks_the_readers_stand_at(monkeypatch):
    learner = make(num_streams=4)
    stream = digits(tasks=1, task_length=160)
    learner.replay_from(stream)
    read = []
    original = learner._memory._source.read
    monkeypatch.setattr(
        learner._memory._source, "read", lambda start, stop: read.append((start, stop)) or original(start, stop)
    )
    for turn in range(1, 11):
        read.clear()
        at = list(learner._parts.replay.positions.chunk) if turn > 1 else []
        expected = [((c - 1) * 16, c * 16) for c in at]
        chunk = stream.read(turn * 16 - 16, turn * 16)
        learner.observe(chunk.x, chunk.y)
        assert read == expected
        if turn > 1:
            assert max(stop for _, stop in read) <= turn * 16 - 16


def test_flush_in_the_middle_of_a_chunk_never_replays_the_present():
    learner = make(num_streams=6)
    stream = digits(tasks=1, task_length=200)
    for t in range(0, 200, 5):
        chunk = stream.read(t, t + 5)
        learner.observe(chunk.x, chunk.y)
        if t % 3 == 0:
            learner.flush()
            assert max(learner._parts.replay.positions.chunk) <= max(1, learner.num_committed // 16)
    assert learner.position == 200


@pytest.mark.parametrize("updates", ["sequential", "joint"])
def test_frozen_parameters_stay_and_the_context_goes_on(updates):
    learner = make(freeze_at=32, updates=updates)
    stream = digits(tasks=1, task_length=96)
    evaluate(stream, learner, stop=32)
    before = [parameter.clone() for parameter in learner.model.parameters()]
    cached = learner._parts.trainer.prediction_context.committed().tokens[0].clone()
    evaluate(stream, learner, start=32)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))
    assert not torch.equal(cached, learner._parts.trainer.prediction_context.committed().tokens[0])


def test_joint_updates_learn_from_replayed_chunks_in_one_step():
    alone, joint = make(num_streams=1), make(num_streams=3, updates="joint")
    stream = digits(tasks=1, task_length=64)
    a, b = evaluate(stream, alone), evaluate(stream, joint)
    assert alone._parts.trainer.num_steps == joint._parts.trainer.num_steps == 4
    assert a.log_loss != b.log_loss
    weights = [
        dict(learner.model.named_parameters())["output_heads.softmax.readout.weight"] for learner in (alone, joint)
    ]
    assert not torch.equal(*weights)


def test_state_at_a_chunk_border_does_not_depend_on_how_the_examples_came():
    stream = digits(tasks=1, task_length=64)
    x, y = stream.read(0, 64).x, stream.read(0, 64).y
    whole, single = make(), make()
    whole.learn_many(x, y)
    for row, label in zip(x, y, strict=True):
        single.learn(row, label)
    assert same_state(whole.state_dict(), single.state_dict())


def test_learning_goes_on_after_a_stream_ends():
    learner = make()
    stream = digits(tasks=1, task_length=40)
    evaluate(stream, learner)
    more = digits(tasks=1, task_length=60, seed=1).read(0, 60)
    learner.learn_many(more.x, more.y)
    assert len(learner._memory._journal) == 100
    assert np.array_equal(learner._memory._journal.read(0, 40).x, stream.read(0, 40).x)
    scores = evaluate(stream, learner)
    assert scores.count == 40
    assert len(learner._memory._journal) == 140


class TestHome:
    def test_opened_again_it_is_where_it_was(self, tmp_path):
        chunk = digits(tasks=1, task_length=100).read(0, 100)
        learner = make(home=tmp_path / "home")
        for t in range(70):
            learner.learn(chunk.x[t], chunk.y[t])
            if t == 40:
                learner.save()
        learner.close()
        opened = Learner.open(tmp_path / "home")
        assert opened.position == 70
        p, q = learner.predict_proba(chunk.x[80]), opened.predict_proba(chunk.x[80])
        assert p.keys() == q.keys()
        assert max(abs(p[label] - q[label]) for label in p) < 1e-5
        for t in range(70, 96):
            opened.learn(chunk.x[t], chunk.y[t])
        state = opened.state_dict()
        opened.close()
        again = Learner.open(tmp_path / "home")
        assert same_state(state, again.state_dict())

    def test_a_damaged_save_is_passed_over(self, tmp_path):
        chunk = digits(tasks=1, task_length=64).read(0, 64)
        learner = make(home=tmp_path)
        learner.learn_many(chunk.x[:16], chunk.y[:16])
        learner.save()
        learner.learn_many(chunk.x[16:], chunk.y[16:])
        learner.save()
        newest = sorted((tmp_path / "saves").iterdir())[-1]
        newest.write_bytes(newest.read_bytes()[:-100])
        learner.close()
        with pytest.warns(DamageWarning, match="is damaged: .*; an earlier save is used"):
            opened = Learner.open(tmp_path)
        assert newest.name in opened.notes[0]
        assert same_state(opened.state_dict(), learner.state_dict())

    def test_it_keeps_what_it_learns_from_a_stream_too(self, tmp_path):
        stream = digits(tasks=1, task_length=100)
        learner = make(home=tmp_path / "home")
        evaluate(stream, learner)
        learner.close()
        opened = Learner.open(tmp_path / "home")
        assert opened.position == 100
        assert same_state(opened.state_dict(), learner.state_dict())

    def test_labels_known_beforehand_keep_their_places(self, tmp_path):
        Learner(["a", "b", "c"], home=tmp_path, **SMALL).learn([1.0], "c")
        assert Learner.open(tmp_path).labels.known == ["a", "b", "c"]

    def test_a_label_that_cannot_be_kept_changes_nothing(self, tmp_path):
        class Colour:
            pass

        learner = make(home=tmp_path)
        learner.learn([1.0], "red")
        before = learner.state_dict()
        with pytest.raises(BadInput, match=r"example 1: label .* of type Colour cannot be kept on disk"):
            learner.learn([1.0], Colour())
        assert same_state(before, learner.state_dict())
        learner.learn([1.0], "blue")
        learner.close()
        assert Learner.open(tmp_path).position == 2

    @pytest.mark.parametrize("moment", range(1, 12))
    def test_a_home_whose_maker_was_killed_can_be_made_again(self, tmp_path, moment, monkeypatch):
        """Killed before any of the files of a new home takes its place or is synced."""
        home, count = tmp_path / "home", 0

        class Killed(BaseException):
            pass

        def counted(original):
            def call(*arguments, **named):
                nonlocal count
                count += 1
                if count >= moment:  # from then on nothing happens any more, not even cleaning up
                    raise Killed
                return original(*arguments, **named)

            return call

        with monkeypatch.context() as patch:
            for name in ("replace", "fsync", "unlink"):
                patch.setattr(os, name, counted(getattr(os, name)))
            with contextlib.suppress(Killed):
                make(home=home).close()
        gc.collect()
        learner = make(home=home) if not (home / "learner.json").exists() else Learner.open(home)
        learner.learn(np.zeros(4), 0)
        learner.close()
        assert Learner.open(home).position == 1
        assert not [path for path in home.rglob("*") if path.name.endswith(".tmp")]

    def test_a_save_removes_what_killed_ones_have_left(self, tmp_path):
        learner = make()
        learner.learn(np.zeros(4), 0)
        (tmp_path / ".learner.999999999.tmp").write_bytes(b"half")
        (tmp_path / ".other.999999999.tmp").write_bytes(b"of somebody else")
        (tmp_path / f".learner.{os.getppid()}.tmp").write_bytes(b"being written")
        learner.save(tmp_path / "learner")
        left = {path.name for path in tmp_path.glob(".*.tmp")}
        assert left == {".other.999999999.tmp", f".learner.{os.getppid()}.tmp"}

    def test_a_home_that_is_taken_is_refused(self, tmp_path):
        make(home=tmp_path).learn(np.zeros(4), 0)
        with pytest.raises(BadInput, match=r"is not empty; Learner\.open"):
            make(home=tmp_path)
        with pytest.raises(BadInput, match="holds no learner"):
            Learner.open(tmp_path / "elsewhere")

    def test_two_loaded_from_one_file_do_not_share_their_examples(self, tmp_path):
        chunk = digits(tasks=1, task_length=60).read(0, 60)
        learner = make()
        learner.learn_many(chunk.x[:20], chunk.y[:20])
        learner.save(tmp_path / "saved")
        first, second = Learner.load(tmp_path / "saved"), Learner.load(tmp_path / "saved")
        first.learn_many(chunk.x[20:], chunk.y[20:])
        second.learn_many(-chunk.x[20:], chunk.y[20:])
        learner.learn_many(chunk.x[20:], chunk.y[20:])
        assert same_state(first.state_dict(), learner.state_dict())
        assert not same_state(first.state_dict(), second.state_dict())

    def test_one_saved_on_a_stream_asks_for_it(self, tmp_path):
        stream = digits(tasks=1, task_length=64)
        learner = make()
        evaluate(stream, learner, stop=32)
        learner.save(tmp_path / "saved")
        loaded = Learner.load(tmp_path / "saved")
        with pytest.raises(BadInput, match="replay_from"):
            loaded.learn(stream.read(0, 1).x[0], 0)
        a, b = evaluate(stream, loaded, start=32), evaluate(stream, learner, start=32)
        assert a.log_loss == b.log_loss

    def test_a_foreign_file_is_refused(self, tmp_path):
        (tmp_path / "file").write_text("not a learner")
        with pytest.raises(BadCheckpoint, match="damaged"):
            Learner.load(tmp_path / "file")


class TestImages:
    @pytest.mark.parametrize("extractor", ["convnet", "vgg"])
    @pytest.mark.parametrize("model", ["pi", "two-token"])
    def test_images_are_learnt_with_their_own_rate_and_go_on_exactly(self, extractor, model, tmp_path):
        stream = digits(tasks=1, task_length=48, images=True)
        big = np.kron(stream.read(0, 48).x, np.ones((1, 2, 2), np.uint8))
        y = stream.read(0, 48).y
        learner = make(extractor=extractor, model=model, num_streams=2, extractor_learning_rate=0.0)
        learner.learn_many(big[:16], y[:16])
        before = {name: p.clone() for name, p in learner.model.named_parameters()}
        learner.learn_many(big[16:32], y[16:32])
        changed = {name for name, p in learner.model.named_parameters() if not torch.equal(p, before[name])}
        assert changed
        assert not any(name.startswith("extractor.") for name in changed)  # its rate is 0
        learner.save(tmp_path / "saved")
        loaded = Learner.load(tmp_path / "saved")
        a, b = learner.observe(big[32:], y[32:]), loaded.observe(big[32:], y[32:])
        assert np.array_equal(a.log_loss, b.log_loss)
        assert same_state(learner.state_dict(), loaded.state_dict())

    def test_dropout_is_off_in_what_is_reported(self):
        stream = digits(tasks=1, task_length=32, images=True)
        x, y = np.kron(stream.read(0, 32).x, np.ones((1, 2, 2), np.uint8)), stream.read(0, 32).y
        learner = make(extractor="vgg", num_streams=1)
        learner.learn_many(x[:16], y[:16])
        expected = [learner.predict_log_proba_many(x[16:17])[0, learner.labels.class_id(y[16])]]
        reported = learner.observe(x[16:], y[16:])
        assert -reported.log_loss[0] == pytest.approx(expected[0], abs=1e-5)

    def test_bad_images(self):
        learner = make(extractor="convnet")
        learner.learn(np.zeros((16, 16), np.uint8), 0)
        before = learner.state_dict()
        for x, words in (
            (np.zeros((16, 17), np.uint8), r"shape \(16, 17\), but the first example had shape \(16, 16\)"),
            (np.zeros((16, 16)), "the image is float64, but the first one was uint8"),
            (np.zeros(256), r"shape \(256,\)"),
        ):
            with pytest.raises(BadInput, match=words):
                learner.learn(x, 1)
        assert same_state(before, learner.state_dict())


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"width": 100, "num_query_heads": 3}, r"width \(100\) must be divisible by num_query_heads \(3\)"),
            ({"num_streams": 0}, r"num_streams \(0\) must be at least 1"),
            ({"chunk_size": -5}, r"chunk_size \(-5\) must be at least 1"),
            ({"widht": 3}, "did you mean 'width'"),
            ({"model": "rnn"}, r"model is 'rnn', expected one of pi, two-token"),
            ({"beta2": 1.0}, r"beta2 \(1.0\) must be at least 0 and below 1"),
            ({"learning_rate": float("nan")}, r"learning_rate \(nan\) must be at least 0"),
        ],
    )
    def test_a_setting_out_of_range_is_one_sentence(self, changes, words):
        with pytest.raises(BadSetting, match=words):
            make(**changes)

    def test_classes(self):
        with pytest.raises(BadSetting, match=r"classes \(0\) must be at least 1"):
            Learner(0)
        learner = Learner(["a", "b"])
        assert learner.predict_proba([0.0]) == {"a": 0.5, "b": 0.5}

    def test_an_extractor_needs_images(self):
        learner = make(extractor="convnet")
        before = learner.state_dict()
        with pytest.raises(BadSetting, match="needs images"):
            learner.learn([1.0, 2.0], 0)
        assert same_state(before, learner.state_dict())

    def test_device(self):
        with pytest.raises(BadSetting, match="device 'nowhere'"):
            make(device="nowhere")
        if not torch.cuda.is_available():
            with pytest.raises(BadSetting, match="no CUDA device"):
                make(device="cuda")


def test_missing_values_count_as_the_mean():
    learner = Learner(2, **SMALL, missing=True)
    random = np.random.default_rng(0)
    x = random.normal(size=(64, 3)) * [1, 100, 1e6] + [0, 5, 1e9]
    x[random.random(x.shape) < 0.2] = np.nan
    charges = learner.observe(x, (np.nan_to_num(x[:, 0]) > 0).tolist())
    assert np.isfinite(charges.log_loss).all()
    with pytest.raises(BadSetting, match="standardize"):
        Learner(2, **SMALL, missing=True, standardize=False).learn([1.0, np.nan], 0)


def test_after_a_stream_was_left_early_its_future_is_out_of_reach():
    stream = digits(tasks=1, task_length=160)
    learner = make()
    evaluate(stream, learner, after=lambda position, chunk, charges: position >= 32)
    more = digits(tasks=1, task_length=64, seed=1).read(0, 64)
    learner.learn_many(more.x, more.y)
    assert np.array_equal(learner._memory.read(32, 96).x, more.x)


def test_values_too_large_for_the_network_are_refused():
    learner = make(standardize=False)
    learner.learn([1.0, 2.0], 0)
    before = learner.state_dict()
    with pytest.raises(BadInput, match=r"example 1: feature \(1,\) is 1e\+39, expected at most 3.4e\+38"):
        learner.learn([1.0, 1e39], 0)
    with pytest.raises(BadInput, match=r"example 2: x has shape \(1,\), but the one before has \(2,\)"):
        learner.learn_many([[1.0, 2.0], [3.0]], [0, 1])
    assert same_state(before, learner.state_dict())


def test_half_precision_stays_close():
    stream = digits(tasks=2, task_length=160)
    full, half = make(num_streams=2), make(num_streams=2, precision="bfloat16")
    a, b = evaluate(stream, full), evaluate(stream, half)
    assert a.log_loss != b.log_loss
    assert a.log_loss == pytest.approx(b.log_loss, abs=0.05)


@pytest.mark.parametrize(
    "changes", [{}, {"method": "paper"}, {"window": 0}, {"precision": "bfloat16"}, {"positions": "none"}]
)
def test_learning_what_was_just_predicted_takes_no_other_pass_and_is_the_same(changes, monkeypatch):
    stream = digits(tasks=1, task_length=40)
    chunk = stream.read(0, 40)
    asked, other = make(**changes), make(**changes)
    passes = []
    for learner in (asked, other):
        learner.learn_many(chunk.x[:20], chunk.y[:20])
        engine = learner._parts.ensemble.network.passes
        forward = engine.forward
        monkeypatch.setattr(engine, "forward", lambda *a, f=forward, **named: passes.append(1) or f(*a, **named))
    for x, y in zip(chunk.x[20:31], chunk.y[20:31], strict=True):
        asked.predict(x)
        asked.learn(x, y)
    assert not passes
    asked.predict(chunk.x[3])  # another one than is learnt next
    asked.learn(chunk.x[31], chunk.y[31])
    for x, y in zip(chunk.x[20:32], chunk.y[20:32], strict=True):
        other.learn(x, y)
    assert passes or other.engine.name == "native"  # which predicts what it was not asked, and then appends it
    assert same_state(asked.state_dict(), other.state_dict())


@pytest.mark.parametrize(
    "changes", [{}, {"method": "copy"}, {"model": "two-token"}, {"recent_window": 0}, {"chunk_size": 7}]
)
def test_what_is_predicted_before_it_is_learnt_changes_no_bit_of_what_is_learnt(changes):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 3)).astype(np.float32), random.integers(0, 3, 60).tolist()
    x[::5, 1] = 0.0
    x[4::4] = x[3:-1:4]  # learnt without being asked for, just after it was asked for and learnt
    asked, other, reloaded = (make(**changes, classes=4) for _ in range(3))
    for t in range(60):
        kind = t % 4
        again = predicted = reloaded.predict_log_proba_many(x[t : t + 1])
        if kind > 0:
            predicted = asked.predict_log_proba_many(x[t : t + 1])
        if kind == 1:
            asked.predict_log_proba_many(x[t - 1 : t])  # another one in between
        elif kind == 2:
            asked.predict_log_proba_many(np.where(x[t : t + 1] == 0, -0.0, x[t : t + 1]))  # equal, but not to the bit
            asked.predict_log_proba_many(x[t : t + 3])  # several
        assert np.array_equal(predicted, again)
        predicted[:] = 0  # it is the caller's
        reloaded.load_state_dict(reloaded.state_dict())
        for learner in (asked, other, reloaded):
            learner.learn(x[t], y[t])
        assert same_state(asked.state_dict()["learner"], other.state_dict()["learner"]), f"after example {t}"
        assert same_state(reloaded.state_dict()["learner"], other.state_dict()["learner"]), f"loaded before example {t}"


def test_where_learning_was_stopped_multiply_accumulates_are_those_of_a_pass():
    learner = make(num_streams=3, freeze_at=32, ema_decay=0.0, num_neighbors=0, num_trees=0, recent_labels=False)
    chunk = digits(tasks=1, task_length=64).read(0, 64)
    learner.learn_many(chunk.x[:32], chunk.y[:32])
    learning = learner.macs_per_example()
    learner.learn_many(chunk.x[32:], chunk.y[32:])
    assert learner.macs_per_example() == pytest.approx(learning * (9 + 1) / (2 * 9))
