"""Homes of live learners: damage, one writer, all or nothing, copies, threads, durability."""

from __future__ import annotations

import copy
import datetime
import errno
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import prequential.storage.files as files
from prequential.baselines.replay_streams import ReplayStreams
from prequential.errors import BadCheckpoint, BadInput, DamageWarning, PrequentialError, StorageError
from prequential.learners.transformer.ensemble import Ensemble
from prequential.learners.transformer.learner import Learner
from prequential.learners.transformer.trainer import Trainer
from prequential.storage.checkpoint import read_checkpoint, same_state
from prequential.streams.journal.journal import Journal
from prequential.streams.journal.log_records import HEAD, scan

SMALL = {
    "width": 8,
    "num_query_heads": 2,
    "depth": 1,
    "window": 6,
    "chunk_size": 4,
    "num_streams": 2,
    "num_neighbors": 0,
    "recent_window": 0,
}
OLD = Path(__file__).parents[1] / "data" / "format-1"


def make(home=None, **changes):
    return Learner(4, home=home, **{**SMALL, **changes})


def example(t):
    return np.array([np.sin(t), np.cos(3 * t)]), "ham" if np.sin(t) > 0 else "spam"


def teach(learner, start, stop):
    for t in range(start, stop):
        learner.learn(*example(t))
    return learner


def live(home, saves=(9, 17), stop=23, **changes):
    """A home of a learner that is gone."""
    learner = make(home, **changes)
    for t in range(stop):
        learner.learn(*example(t))
        if t + 1 in saves:
            learner.save()
    state = learner.state_dict()
    learner.close()
    return state


def places(home):
    """Where the record of each position is in the log, and how long it is."""
    path, journal = home / "journal" / "log.bin", Journal(home / "journal")
    handle = os.open(path, os.O_RDONLY)
    found = [f for f in scan(handle, 0, path.stat().st_size, position=0, tag=journal._log.tag) if f.span]
    os.close(handle)
    return {f.position: (f.offset, f.size) for f in found}


def flip(path, where):
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def labels_of(home):
    journal = Journal(home / "journal")
    return journal.readable(0, len(journal)).y


class TestDamage:
    def test_one_flipped_bit_before_the_save_costs_nothing_that_was_learnt(self, tmp_path):
        state = live(tmp_path)
        flip(tmp_path / "journal" / "log.bin", places(tmp_path)[3][0] + HEAD + 25)
        size = (tmp_path / "journal" / "log.bin").stat().st_size
        with pytest.warns(DamageWarning, match="example 3 is damaged and left out"):
            opened = Learner.open(tmp_path)  # its replay streams have read it
        assert opened.position == 23
        assert (tmp_path / "journal" / "log.bin").stat().st_size == size
        assert opened.state_dict()["labels"] == state["labels"]
        assert "example 3 is damaged" in opened.notes[-1]
        teach(opened, 23, 60)  # replays come by it
        opened.close()
        again = Learner.open(tmp_path)
        assert again.position == 60
        assert labels_of(tmp_path) == [example(t)[1] for t in range(60) if t != 3]

    @pytest.mark.parametrize("updates", ["sequential", "joint"])
    def test_a_replayed_chunk_of_which_nothing_is_left(self, tmp_path, updates):
        live(tmp_path, updates=updates, num_streams=4)
        for t in range(4):
            flip(tmp_path / "journal" / "log.bin", places(tmp_path)[t][0] + HEAD + 25)
        with pytest.warns(DamageWarning, match="examples 0-3 are damaged"):
            opened = teach(Learner.open(tmp_path), 23, 60)
        assert np.isfinite(opened.predict_log_proba_many(example(60)[0][None])).all()

    def test_damage_after_the_save_costs_the_examples_it_hit(self, tmp_path):
        live(tmp_path)
        at, size = places(tmp_path)[20]
        flip(tmp_path / "journal" / "log.bin", at + 2)
        damaged = (tmp_path / "journal" / "log.bin").read_bytes()[at : at + size]
        with pytest.warns(DamageWarning, match="example 20 is lost in .*; those after moved up"):
            opened = Learner.open(tmp_path)
        assert opened.position == 22
        assert labels_of(tmp_path) == [example(t)[1] for t in range(23) if t != 20]
        assert (tmp_path / "journal" / "damaged-000000000020.bin").read_bytes() == damaged
        expected = teach(make(), 0, 20)
        teach(expected, 21, 23)
        assert same_state(
            opened.state_dict()["learner"]["parts"]["trainer"], expected.state_dict()["learner"]["parts"]["trainer"]
        )
        opened.close()
        assert Learner.open(tmp_path).position == 22

    def test_a_journal_shorter_than_the_save_goes_on_at_the_save(self, tmp_path):
        live(tmp_path)
        at = places(tmp_path)[12][0]
        os.truncate(tmp_path / "journal" / "log.bin", at)
        with pytest.warns(DamageWarning, match="examples 12-16 are missing in .*: they stay learnt"):
            opened = Learner.open(tmp_path)
        assert opened.position == 17
        teach(opened, 17, 40)
        opened.close()
        again = Learner.open(tmp_path)
        assert same_state(again.state_dict(), opened.state_dict())
        assert labels_of(tmp_path) == [example(t)[1] for t in (*range(12), *range(17, 40))]

    @pytest.mark.parametrize("fault", ["delete", "empty", "folder"])
    def test_without_its_log_it_goes_on_from_its_save(self, tmp_path, fault):
        live(tmp_path)
        log = tmp_path / "journal" / "log.bin"
        match fault:
            case "delete":
                log.unlink()
            case "empty":
                log.write_bytes(b"")
            case "folder":
                shutil.rmtree(tmp_path / "journal")
        with pytest.warns(DamageWarning, match="examples 0-16 are missing"):
            opened = teach(Learner.open(tmp_path), 17, 30)
        opened.close()
        assert Learner.open(tmp_path).position == 30

    def test_nothing_left_is_one_sentence_and_changes_nothing(self, tmp_path):
        live(tmp_path, saves=())
        (tmp_path / "journal" / "log.bin").unlink()
        before = tree(tmp_path)
        with (
            pytest.warns(DamageWarning, match="is missing"),
            pytest.raises(BadCheckpoint, match=r"log\.bin is missing, and there is no save; nothing is left"),
        ):
            Learner.open(tmp_path)
        after = tree(tmp_path)
        assert {name: after[name] for name in before} == before

    @pytest.mark.parametrize("fault", ["flip", "empty", "delete", "junk", "list"])
    def test_what_it_is_made_with_is_found_in_a_save(self, tmp_path, fault):
        state = live(tmp_path, durability=7)
        path = tmp_path / "learner.json"
        made = path.read_bytes()
        match fault:
            case "flip":
                flip(path, made.index(b'"seed"') + 9)
            case "empty":
                path.write_bytes(b"")
            case "delete":
                path.unlink()
            case "junk":
                path.write_bytes(b"\xff\xfe\x00")
            case "list":
                path.write_bytes(b"[[[]]]")
        with pytest.warns(DamageWarning, match=r"learner\.json is .*; it was made again from a save"):
            opened = Learner.open(tmp_path)
        assert same_state(opened.state_dict(), state)
        assert path.read_bytes() == made

    def test_without_a_save_that_knows_it_is_one_sentence(self, tmp_path):
        live(tmp_path, saves=())
        (tmp_path / "learner.json").write_bytes(b"{")
        with pytest.raises(BadCheckpoint, match=r"learner\.json is damaged: .*, and no save says"):
            Learner.open(tmp_path)

    def test_files_of_another_learner_are_noticed(self, tmp_path):
        state = live(tmp_path / "a")
        live(tmp_path / "b", seed=5)
        whole = tree(tmp_path / "a")
        for name, words in (
            ("journal/log.bin", "belongs to another learner"),
            ("learner.json", "belongs to another learner"),
        ):
            shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
            with pytest.raises(BadInput, match=words):
                Learner.open(tmp_path / "a")
            (tmp_path / "a" / name).write_bytes(whole[name])
        newest = "saves/000000000017.safetensors"
        shutil.copy(tmp_path / "b" / newest, tmp_path / "a" / newest)
        with pytest.warns(DamageWarning, match=r"000000000017\.safetensors .*another learner.*an earlier save is used"):
            opened = Learner.open(tmp_path / "a")
        assert same_state(opened.state_dict(), state)
        opened.close()
        shutil.copy(tmp_path / "b" / "journal" / "journal.json", tmp_path / "a" / "journal" / "journal.json")
        (tmp_path / "a" / newest).write_bytes(whole[newest])
        with pytest.warns(DamageWarning, match=r"journal\.json belonged to another journal"):
            assert same_state(Learner.open(tmp_path / "a").state_dict(), state)

    def test_links_are_refused(self, tmp_path):
        live(tmp_path / "a")
        live(tmp_path / "b")
        for name in (
            "learner.json",
            "journal",
            "saves",
            "journal/log.bin",
            "journal/index.bin",
            "journal/journal.json",
        ):
            shutil.rmtree(tmp_path / "c", ignore_errors=True)
            shutil.copytree(tmp_path / "a", tmp_path / "c")
            place = tmp_path / "c" / name
            shutil.rmtree(place) if place.is_dir() else place.unlink()
            place.symlink_to(tmp_path / "b" / name)
            before = tree(tmp_path / "b")
            with pytest.raises(PrequentialError, match="symbolic link"):
                Learner.open(tmp_path / "c")
            assert tree(tmp_path / "b") == before

    def test_all_saves_refused_everything_is_learnt_again(self, tmp_path):
        state = live(tmp_path)
        for path in (tmp_path / "saves").iterdir():
            path.write_bytes(b"junk")
        with pytest.warns(DamageWarning, match="everything is learnt again"):
            opened = Learner.open(tmp_path)
        assert len(opened.notes) == 2
        assert same_state(opened.state_dict(), state)

    def test_a_save_that_is_whole_but_none_of_ours(self, tmp_path):
        from prequential.storage.checkpoint import write_checkpoint

        state = live(tmp_path)
        newest = tmp_path / "saves" / "000000000017.safetensors"
        saved = read_checkpoint(newest)
        for change in ({"learner": {}}, {"position": -1}, {"position": "x"}, {"labels": 3}, {"shape": [2**40]}):
            write_checkpoint(newest, {**saved, **change})
            with pytest.warns(DamageWarning, match="an earlier save is used"):
                opened = Learner.open(tmp_path)
            assert same_state(opened.state_dict(), state)
            opened.close()

    def test_what_was_saved_before_it_went_back_is_not_used(self, tmp_path):
        learner = teach(make(tmp_path), 0, 8)
        early = learner.state_dict()
        teach(learner, 8, 12)
        learner.save()
        learner.load_state_dict(early)
        teach(learner, 30, 34)
        state = learner.state_dict()
        learner.close()
        with pytest.warns(DamageWarning, match="the journal was cut back or closed up before example 12"):
            opened = Learner.open(tmp_path)
        assert opened.position == 12
        assert same_state(opened.state_dict()["learner"]["parts"]["trainer"], state["learner"]["parts"]["trainer"])


class TestFormats:
    def test_a_home_of_the_first_version_opens(self, tmp_path):
        shutil.copytree(OLD / "home", tmp_path / "home")
        opened = Learner.open(tmp_path / "home")
        assert opened.position == 14
        x = np.load(OLD / "home-x.npy")
        expected = np.load(OLD / "home-log-p.npy")
        assert np.allclose(opened.predict_log_proba_many(x[:3]), expected, atol=1e-4)
        assert opened.labels.known == ["spam", "ham", datetime.date(2024, 5, 1), ("a", 1)]
        opened.learn(x[0], "ham")
        opened.save()
        opened.close()
        again = Learner.open(tmp_path / "home")
        assert (again.position, again.notes) == (15, [])
        assert not (tmp_path / "home" / "journal" / "x.bin").exists()

    def test_a_save_of_the_first_version_loads(self, tmp_path):
        loaded = Learner.load(OLD / "learner")
        assert loaded.position == len(loaded._memory.journal) > 0
        loaded.save(tmp_path / "learner")
        assert same_state(Learner.load(tmp_path / "learner").state_dict(), loaded.state_dict())

    def test_saved_over_one_of_the_first_version_the_old_files_go(self, tmp_path):
        shutil.copy(OLD / "learner", tmp_path / "learner")
        shutil.copytree(OLD / "learner.journal", tmp_path / "learner.journal")
        loaded = Learner.load(tmp_path / "learner")
        loaded.save(tmp_path / "learner")
        names = {path.name for path in (tmp_path / "learner.journal").iterdir()}
        assert len(names - {".lock"}) == 1
        assert same_state(Learner.load(tmp_path / "learner").state_dict(), loaded.state_dict())


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
                        told.append("learnt")
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
        assert all("this process was forked" in sentence or "was given up" in sentence for sentence in told), told
        for learner in learners:
            teach(learner, 6, 12)
            assert learner.position == 12
        with pytest.raises(BadInput, match="is working in"):
            Learner.open(tmp_path / "home")


class TestCopies:
    def test_a_copy_has_no_home_and_its_own_examples(self, tmp_path):
        learner = teach(make(tmp_path / "home"), 0, 10)
        copied = copy.deepcopy(learner)
        assert copied.home is None
        before = tree(tmp_path)
        teach(copied, 10, 30)
        assert tree(tmp_path) == before
        teach(learner, 10, 30)
        assert same_state(copied.state_dict(), learner.state_dict())

    def test_pickling_is_refused_also_for_another_process(self, tmp_path):
        learner = teach(make(tmp_path / "home"), 0, 4)
        baseline = ReplayStreams(2, chunk_size=2, num_streams=2)
        for one in (learner, baseline):
            for call in (pickle.dumps, copy.copy):
                with pytest.raises(BadInput, match=r"cannot be pickled: save\(path\) and \w+\.load\(path\)"):
                    call(one)
        with pytest.raises(BadInput, match="cannot be pickled"):
            multiprocessing.get_context("spawn").Process(target=print, args=(learner,)).start()


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
        if call in ("open", "pwrite") or (call == "fsync" and home):
            assert refused == 24
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
            if len(calls) == 4:
                raise StorageError("no")
            return read(journal, start, stop)

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "readable", fail)
            with pytest.raises(StorageError):
                learner.learn_many(xs, ys)
        assert same_state(before, learner.state_dict())
        for one in (learner, other):
            one.learn_many(xs, ys)
        assert same_state(other.state_dict(), learner.state_dict())

    @pytest.mark.parametrize("where", ["_step", "extend"])
    @pytest.mark.parametrize("error", [MemoryError, RuntimeError, KeyboardInterrupt])
    def test_a_step_that_breaks_off(self, tmp_path, monkeypatch, where, error):
        owner = Trainer if where == "_step" else Ensemble
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
            patch.setattr(Ensemble, "extend", lambda *_: (_ for _ in ()).throw(RuntimeError("no")))
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


class TestSaving:
    def test_durability_is_kept_and_changed(self, tmp_path):
        make(tmp_path, durability="sync").close()
        opened = Learner.open(tmp_path)
        assert opened._memory.journal.durability == "sync"
        opened.close()
        Learner.open(tmp_path, durability=3).close()
        assert Learner.open(tmp_path)._memory.journal.durability == 3
        with pytest.raises(BadInput, match=r"durability \('never'\) must be"):
            make(tmp_path / "other", durability="never")

    def test_every_learn_is_synced_where_that_is_promised(self, tmp_path, monkeypatch):
        counts = {}
        original = os.fsync
        for durability in ("sync", 5, "save"):
            learner = teach(make(tmp_path / str(durability), durability=durability), 0, 1)
            learner.save()
            synced = []
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", lambda handle, synced=synced: synced.append(handle) or original(handle))
                teach(learner, 1, 21)
            counts[durability] = len(synced)
        assert counts == {"sync": 20, 5: 4, "save": 0}

    @pytest.mark.parametrize("kind", [Learner, ReplayStreams])
    def test_a_save_that_is_killed_leaves_the_earlier_one(self, tmp_path, monkeypatch, kind):
        learner = make() if kind is Learner else ReplayStreams(4, chunk_size=2, num_streams=2)
        path = tmp_path / "saved"
        for name in ("open", "fsync", "replace", "mkdir", "pwrite", "write"):
            teach(learner, learner.position, learner.position + 3)
            learner.save(path)
            saved = learner.state_dict()
            teach(learner, learner.position, learner.position + 3)
            original = getattr(os, name)
            for after in range(40):
                calls = []

                def killed(*args, original=original, calls=calls, after=after, **kwargs):
                    calls.append(1)
                    if len(calls) > after:
                        raise KeyboardInterrupt
                    return original(*args, **kwargs)

                with monkeypatch.context() as patch:
                    patch.setattr(os, name, killed)
                    # and nothing is tidied up, as by a process that is killed
                    patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
                    try:
                        learner.save(path)
                    except KeyboardInterrupt:
                        pass
                    else:
                        break
                found = kind.load(path).state_dict()
                assert same_state(found, saved) or same_state(found, learner.state_dict())
        learner.save(path)
        assert same_state(kind.load(path).state_dict(), learner.state_dict())
        left = {p.name for p in (tmp_path / "saved.journal").iterdir()} - {".lock"}
        assert len(left) == 1

    def test_a_save_is_synced_before_it_takes_its_place(self, tmp_path, monkeypatch):
        learner = teach(make(), 0, 6)
        done = []
        for name in ("fsync", "replace"):
            original = getattr(os, name)

            def noted(*args, name=name, original=original):
                done.append(
                    (name, str(Path(f"/proc/self/fd/{args[0]}").readlink()) if name == "fsync" else str(args[1]))
                )
                return original(*args)

            monkeypatch.setattr(os, name, noted)
        learner.save(tmp_path / "saved")
        names = [f"{name} {Path(path).name}" for name, path in done]
        assert names.index("replace log.bin") < names.index("replace saved")
        assert any(name == "fsync" and ".log.bin" in path for name, path in done)
        assert names[-1] == f"fsync {tmp_path.name}"  # the directory, after the last rename

    def test_a_saved_learner_names_no_journal_elsewhere(self, tmp_path):
        from prequential.storage.checkpoint import write_checkpoint

        learner = teach(make(), 0, 6)
        learner.save(tmp_path / "saved")
        saved = read_checkpoint(tmp_path / "saved")
        for name in ("../../elsewhere", "/etc", 3, ""):
            write_checkpoint(tmp_path / "saved", {**saved, "journal": name})
            with pytest.raises(BadCheckpoint, match="as its journal, which is no name of one"):
                Learner.load(tmp_path / "saved")

    def test_loaded_into_a_home_it_is_there_again(self, tmp_path):
        learner = teach(make(), 0, 10)
        learner.save(tmp_path / "saved")
        loaded = Learner.load(tmp_path / "saved", home=tmp_path / "home", durability=5)
        teach(loaded, 10, 15)
        loaded.close()
        opened = Learner.open(tmp_path / "home")
        assert same_state(opened.state_dict(), teach(learner, 10, 15).state_dict())
        assert labels_of(tmp_path / "home") == [example(t)[1] for t in range(15)]

    def test_what_killed_processes_left_is_removed(self, tmp_path):
        live(tmp_path)
        left = [tmp_path / ".learner.json.99.tmp", tmp_path / "saves" / ".x.99.tmp", tmp_path / "journal" / ".y.99.tmp"]
        for path in left:
            path.write_bytes(b"half")
        Learner.open(tmp_path).close()
        assert not any(path.exists() for path in left)


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
        train_chunk = Trainer.train_chunk

        def held(trainer, *args, **kwargs):
            begun.set()
            assert gate.wait(60)
            return train_chunk(trainer, *args, **kwargs)

        learner = teach(make(async_steps=True), 0, 3)
        monkeypatch.setattr(Trainer, "train_chunk", held)
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
