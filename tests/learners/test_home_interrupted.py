"""Homes of live learners: a call that fails or is interrupted changes nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from prequential.errors import BadInput, StorageError
from prequential.learners.transformer.learner import Learner
from prequential.learners.transformer.trainer import Trainer
from prequential.storage.checkpoint import same_state
from prequential.streams.journal.journal import Journal
from shared.homes import SMALL, example, make, teach


class TestAllOrNothing:
    @pytest.mark.parametrize("home", [True, False])
    @pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "pread"])
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EIO])
    def test_what_the_disk_refuses_changes_nothing(self, tmp_path, monkeypatch, home, call, code):
        learner = make(tmp_path / "home" if home else None, durability="sync")
        other = make()
        refused = 0
        for t in range(24):
            x, y = example(t)[0], f"label {t % 4}"
            before = learner.state_dict()

            def fail(*args, **kwargs):
                raise OSError(code, os.strerror(code))

            with monkeypatch.context() as patch:
                patch.setattr(os, call, fail)
                try:
                    learner.learn(x, y)
                except StorageError as error:
                    assert os.strerror(code) in str(error)
                    assert "\n" not in str(error)
                    refused += 1
            if learner.position == t:
                assert same_state(before, learner.state_dict())
                learner.learn(x, y)
            other.learn(x, y)
        if home and call != "pread":
            assert refused == 24
        elif call in ("open", "pwrite"):  # what nobody opens again is written some examples at a time
            assert 0 < refused < 24
        assert same_state(
            learner.state_dict()["learner"]["parts"]["trainer"], other.state_dict()["learner"]["parts"]["trainer"]
        )
        assert learner.labels.known == other.labels.known
        if home:
            learner.close()
            assert same_state(Learner.open(tmp_path / "home").state_dict(), learner.state_dict())

    def test_reading_fails_after_other_chunks_of_the_call_were_learnt(self, monkeypatch):
        learner, other = teach(make(), 0, 10), teach(make(), 0, 10)
        xs, ys = zip(*(example(t) for t in range(10, 40)), strict=True)
        before = learner.state_dict()
        read, calls = Journal.readable, []

        def fail(journal, start, stop):
            calls.append(start)
            if len(calls) == 2:
                raise StorageError("no")
            return read(journal, start, stop)

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "readable", fail)
            with pytest.raises(StorageError):
                learner.learn_many(xs, ys)
        assert len(calls) == 2
        assert same_state(before, learner.state_dict())
        for one in (learner, other):
            one.learn_many(xs, ys)
        assert same_state(other.state_dict(), learner.state_dict())

    @pytest.mark.parametrize("where", ["_take", "_extend"])
    @pytest.mark.parametrize("error", [MemoryError, RuntimeError, KeyboardInterrupt])
    def test_a_step_that_breaks_off(self, tmp_path, monkeypatch, where, error):
        owner = Trainer if where == "_take" else Learner
        original, calls = getattr(owner, where), []

        def broken(trainer, *args, **kwargs):
            made = original(trainer, *args, **kwargs)
            calls.append(1)
            if len(calls) >= 2:
                raise error("half way")
            return made

        for home in (tmp_path / "home", None):
            learner = teach(make(home), 0, 10)
            if home:
                learner.save()
            teach(learner, 10, 14)
            before = learner.state_dict()
            calls.clear()
            with monkeypatch.context() as patch:
                patch.setattr(owner, where, broken)
                for t in range(14, 20):
                    before = learner.state_dict()
                    try:
                        learner.learn(*example(t))
                    except error as raised:
                        assert str(raised) == "half way"
                        break
                else:
                    raise AssertionError("nothing was raised")
            if home:
                assert same_state(before, learner.state_dict())
                expected = teach(make(), 0, 24)
                teach(learner, t, 24)
                assert same_state(
                    learner.state_dict()["learner"]["parts"]["trainer"],
                    expected.state_dict()["learner"]["parts"]["trainer"],
                )
            else:
                given = ([[0.0, 1.0]], [[0.0, 1.0], "a"], [])
                for call, arguments in zip((learner.predict, learner.learn, learner.state), given, strict=True):
                    with pytest.raises(BadInput, match=r"stopped inside a step .*half way.*; load an earlier save"):
                        call(*arguments)
                learner.load_state_dict(before)
                learner.learn(*example(t))
                assert learner.position == t + 1

    def test_the_first_example_refused_leaves_nothing_behind(self, monkeypatch):
        learner = make()
        with monkeypatch.context() as patch:
            patch.setattr(Learner, "_extend", lambda *_: (_ for _ in ()).throw(RuntimeError("no")))
            with pytest.raises(RuntimeError):
                learner.learn([1.0, 2.0, 3.0], "ham")
        assert learner.shape is None
        assert learner.labels.known == []
        teach(learner, 0, 6)  # of another width
        assert same_state(learner.state_dict(), teach(make(), 0, 6).state_dict())

    def test_ctrl_c_comes_through_when_the_call_is_done(self, tmp_path, monkeypatch):
        learner = teach(make(tmp_path), 0, 7)
        original = Trainer.train_chunk

        def interrupted(trainer, *args, **kwargs):
            signal.raise_signal(signal.SIGINT)
            return original(trainer, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "train_chunk", interrupted)
            with pytest.raises(KeyboardInterrupt):
                learner.learn(*example(7))
        assert learner.position == len(Journal(tmp_path / "journal")) == 8
        assert same_state(
            learner.state_dict()["learner"]["parts"]["trainer"],
            teach(make(), 0, 8).state_dict()["learner"]["parts"]["trainer"],
        )
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        # between the chunks of a long call it comes through at once, and the call is undone
        before = learner.state_dict()
        xs, ys = zip(*(example(t) for t in range(8, 30)), strict=True)
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "train_chunk", interrupted)
            with pytest.raises(KeyboardInterrupt):
                learner.learn_many(xs, ys)
        assert same_state(before, learner.state_dict())
        assert len(Journal(tmp_path / "journal")) == 8

    def test_interrupted_again_and_again_journal_and_learner_agree(self, tmp_path):
        code = f"""
import os, sys, threading, time
from prequential import Learner
learner = Learner(4, home={str(tmp_path)!r}, **{SMALL!r})
learner.learn([0.0, 0.0], "ham")
over = False
def press():
    while not over:
        time.sleep(0.002)
        os.kill(os.getpid(), 2)
interrupted = 0
thread = threading.Thread(target=press)
try:
    thread.start()
except KeyboardInterrupt:
    pass
while interrupted < 30:
    try:
        learner.learn([1.0, 2.0], "spam")
    except KeyboardInterrupt:
        interrupted += 1
        try:
            assert learner.position == len(learner._memory.journal), (learner.position, len(learner._memory.journal))
        except KeyboardInterrupt:
            pass
import signal
signal.signal(2, signal.SIG_IGN)
over = True
thread.join()
print(learner.position)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        assert Learner.open(tmp_path).position == int(done.stdout)
