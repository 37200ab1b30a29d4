"""Homes of live learners: one process writes, and several threads use the learner."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

import prequential.storage.files as files
from prequential.baselines.replay_streams import ReplayStreams
from prequential.errors import BadInput
from prequential.learners.transformer.learner import Learner
from prequential.learners.transformer.trainer import Trainer
from prequential.storage.checkpoint import same_state
from prequential.streams.journal.journal import Journal
from shared.homes import SMALL, example, labels_of, make, teach


class TestOneWriter:
    def test_a_second_learner_is_refused_here_and_in_another_process(self, tmp_path):
        learner = teach(make(tmp_path), 0, 5)
        with pytest.raises(BadInput, match="another learner of this process is working in"):
            Learner.open(tmp_path)
        with pytest.raises(BadInput, match="is working in"):
            Journal(tmp_path / "journal", write=True)
        code = f"from prequential import Learner; Learner.open({str(tmp_path)!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "another process or learner is working in" in other.stderr
        teach(learner, 5, 7)
        del learner  # collected, it is free again
        assert Learner.open(tmp_path).position == 7

    def test_a_closed_one_predicts_and_learns_no_more(self, tmp_path):
        learner = teach(make(tmp_path), 0, 5)
        learner.close()
        learner.predict(example(0)[0])
        before = learner.state_dict()
        with pytest.raises(BadInput, match="was opened to read"):
            learner.learn(*example(5))
        assert same_state(before, learner.state_dict())

    def test_a_lock_that_was_let_go_and_a_journal_that_went_on_elsewhere(self, tmp_path, monkeypatch):
        monkeypatch.setattr(files, "HELD", 1)
        first = teach(make(tmp_path / "first"), 0, 4)
        teach(make(tmp_path / "second"), 0, 1)  # the lock of the first is let go
        code = f"from prequential import Learner; Learner.open({str(tmp_path / 'first')!r}).learn([1.0, 2.0], 'ham')"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
        before = first.state_dict()
        with pytest.raises(BadInput, match="another process has written to"):
            first.learn(*example(4))
        assert same_state(before, first.state_dict())
        assert len(Journal(tmp_path / "first" / "journal")) == 5

    def test_many_homes_with_few_handles(self, tmp_path):
        code = f"""
import resource
import prequential.storage.files as files
from pathlib import Path
from prequential import Learner
files.HELD = 8
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
small = {SMALL!r}
learners = [Learner(2, home=Path({str(tmp_path)!r}) / str(i), durability="save", **small) for i in range(60)]
for t in range(2):
    for learner in learners:
        learner.learn([1.0, t], t)
assert all(learner.position == 2 for learner in learners)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert Learner.open(tmp_path / "30").position == 2

    def test_a_forked_process_predicts_and_does_not_learn(self, tmp_path):
        learners = [
            teach(make(tmp_path / "home"), 0, 6),
            teach(make(), 0, 6),
            ReplayStreams(4, chunk_size=2, num_streams=2),
        ]
        teach(learners[2], 0, 6)
        read, write = os.pipe()
        process = os.fork()
        if process == 0:  # pragma: no cover (another process)
            told = []
            try:
                for learner in learners:
                    learner.predict(example(0)[0])
                    try:
                        learner.learn(*example(6))
                        told.append("learned")
                    except BadInput as error:
                        told.append(str(error))
                try:
                    learners[0].save()
                    told.append("saved")
                except BadInput as error:
                    told.append(str(error))
                del learner, learners  # what is collected here must not take the parent's files along
            except BaseException as error:
                told.append(repr(error))
            os.write(write, "\n".join(told).encode())
            os._exit(0)
        os.close(write)
        os.waitpid(process, 0)
        told = os.read(read, 100_000).decode().splitlines()
        os.close(read)
        assert len(told) == 4
        assert all("this process was forked" in sentence for sentence in told), told
        for learner in learners:
            teach(learner, 6, 12)
            assert learner.position == 12
        with pytest.raises(BadInput, match="is working in"):
            Learner.open(tmp_path / "home")


class TestThreads:
    def test_predictions_beside_a_learner_with_a_home_are_those_of_some_moment(self, tmp_path):
        probe = example(100)[0]
        alone = make()
        moments = set()
        for t in range(60):
            alone.learn(*example(t))
            moments.add(tuple(sorted(alone.predict_proba(probe).items())))
        learner = teach(make(tmp_path), 0, 1)
        over, wrong = threading.Event(), []

        def predict():
            while not over.is_set():
                try:
                    if tuple(sorted(learner.predict_proba(probe).items())) not in moments:
                        wrong.append("no moment")
                except Exception as error:
                    wrong.append(error)

        threads = [threading.Thread(target=predict) for _ in range(4)]
        for thread in threads:
            thread.start()
        teach(learner, 1, 60)
        learner.save()
        over.set()
        for thread in threads:
            thread.join()
        assert not wrong
        assert same_state(
            learner.state_dict()["learner"]["parts"]["trainer"], alone.state_dict()["learner"]["parts"]["trainer"]
        )

    def test_several_threads_learn(self, tmp_path):
        learner = make(tmp_path)
        threads = [threading.Thread(target=teach, args=(learner, 10 * i, 10 * i + 10)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert learner.position == 30
        learner.close()
        assert sorted(labels_of(tmp_path)) == sorted(example(t)[1] for t in range(30))
        assert same_state(Learner.open(tmp_path).state_dict(), learner.state_dict())

    @pytest.mark.parametrize("call", ["learn", "state", "flush"])
    def test_steps_behind_never_keep_a_prediction_waiting(self, monkeypatch, call):
        begun, gate = threading.Event(), threading.Event()
        take = Trainer._take

        def held(trainer, *args, **kwargs):
            begun.set()
            assert gate.wait(60)
            return take(trainer, *args, **kwargs)

        learner = teach(make(async_steps=True), 0, 3)
        monkeypatch.setattr(Trainer, "_take", held)
        teach(learner, 3, 7)  # from example 4 on, steps are under way
        assert begun.wait(60)
        calls = {"learn": lambda: learner.learn(*example(7)), "state": learner.state, "flush": learner.flush}
        waiting = threading.Thread(target=calls[call])
        waiting.start()
        time.sleep(0.05)
        predicted = threading.Thread(target=lambda: learner.predict(example(50)[0]))
        predicted.start()
        predicted.join(30)
        assert not predicted.is_alive()
        assert waiting.is_alive()
        gate.set()
        waiting.join(60)
