"""Homes of live learners: files of earlier versions, saving, copies."""

from __future__ import annotations

import copy
import datetime
import multiprocessing
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from prequential.baselines.replay_streams import ReplayStreams
from prequential.errors import BadCheckpoint, BadInput
from prequential.learners.transformer.learner import Learner
from prequential.storage.checkpoint import read_checkpoint, same_state
from shared.homes import example, labels_of, live, make, teach, tree

OLD = Path(__file__).parents[1] / "data" / "format-1"


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
