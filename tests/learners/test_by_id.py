"""Labels by id: late, in any order, twice, early, never, and after their prediction has expired."""

from __future__ import annotations

import copy
import itertools
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from prequential import Learner, Majority
from prequential.errors import BadInput, BadSetting, StorageError
from prequential.learners import asked
from prequential.storage.checkpoint import same_state

SMALL = {"width": 8, "num_query_heads": 2, "depth": 1, "window": 16, "chunk_size": 8, "num_streams": 2}
X = np.random.default_rng(0).normal(size=(80, 4))


def make(home: Path | None = None) -> Learner:
    return Learner(5, home=home, **SMALL)


def work(learner, start: int = 0, stop: int = 40) -> None:
    """Asks by id; of each the label comes five later, but of every fourth never."""
    for t in range(start, stop):
        learner.predict(X[t], id=f"a{t}")
        if t >= 5 and t % 4:
            learner.learn(id=f"a{t - 5}", y="even" if t % 2 else "odd")


class TestLabels:
    def test_the_charge_is_that_of_the_prediction_made_then(self):
        learner = Majority(3)
        learner.learn_many(X[:3], ["a", "a", "b"])
        then = learner.predict_proba(X[0], id="late")
        learner.learn_many(X[:6], ["b"] * 6)
        charges = learner.learn(id="late", y="b")
        assert charges.log_loss[0] == pytest.approx(-np.log(then["b"]))
        assert (charges.predicted[0], charges.correct[0]) == (0, False)
        assert (learner.position, learner.asked.answered, learner.asked.correct) == (10, 1, 0)
        assert learner.asked.log_loss == charges.log_loss[0]

    def test_a_label_that_was_not_known_then_is_charged_as_one(self):
        learner = Majority(3)
        learner.learn(X[0], "a")
        then = learner.predict_proba(X[0], id=7)
        learner.learn(X[0], "b")
        assert learner.learn(id="7", y="b").log_loss[0] == pytest.approx(-np.log(then["b"]))

    def test_it_does_not_matter_how_many_labels_come_in_one_call(self):
        alone, together = make(), make()
        draws = np.random.default_rng(3)
        waiting: list[int] = []
        for t in range(60):
            for learner in (alone, together):
                learner.predict(X[t], id=t)
            waiting.append(t)
            if len(waiting) > draws.integers(0, 6):
                several = waiting[: draws.integers(1, len(waiting) + 1)]
                waiting = waiting[len(several) :]
                ys = ["odd" if late % 2 else "even" for late in several]
                charges = [alone.learn(id=late, y=y).log_loss[0] for late, y in zip(several, ys, strict=True)]
                assert together.learn_many(ids=several, ys=ys).log_loss.tolist() == charges
        assert alone.position > 50
        assert same_state(alone.state_dict()["learner"], together.state_dict()["learner"])

    def test_it_is_learned_as_late_as_it_came(self):
        by_id, by_hand = make(), make()
        at = {}
        for t in range(24):
            by_id.predict(X[t], id=t)
            at[t] = by_hand.position
            for late in (t - 3, t - 2) if t % 5 == 4 else (t,) if t % 5 == 0 else ():
                by_id.learn(id=late, y=late % 2)
                asked_at = None if at[late] == by_hand.position else [at[late]]
                by_hand.learn_many(X[late : late + 1], [late % 2], asked_at)
        state = by_id.state_dict()
        del state["asked"]
        assert same_state(state, by_hand.state_dict())

    def test_several_at_once(self):
        one, many = make(), make()
        for learner in (one, many):
            for t in range(20):
                learner.predict(X[t], id=t)
        for t in range(16):
            one.learn(id=15 - t, y=t % 3)
        charges = many.learn_many(ids=range(15, -1, -1), ys=[t % 3 for t in range(16)])
        assert len(charges.log_loss) == 16
        assert same_state({**one.state_dict(), "asked": 0}, {**many.state_dict(), "asked": 0})
        assert one.asked.log_loss == pytest.approx(many.asked.log_loss)

    def test_the_same_label_again_is_ignored_and_another_refused(self):
        learner = Majority(3)
        learner.predict(X[0], id="a")
        learner.learn(id="a", y="x")
        before = learner.state_dict()
        assert learner.learn(id="a", y="x") is None
        assert same_state(learner.state_dict(), before)
        with pytest.raises(BadInput, match="id 'a' already has the label 'x', but got 'y'"):
            learner.learn(id="a", y="y")
        with pytest.raises(BadInput, match="already has the label 'x'"):  # all or nothing
            learner.learn_many(ids=["new", "a"], ys=["x", "y"])
        assert same_state(learner.state_dict(), before)

    def test_a_label_before_its_prediction_waits(self):
        learner, other = Majority(3), Majority(3)
        assert learner.learn(id="a", y="x") is None
        assert (learner.position, len(learner.asked.labels)) == (0, 1)
        assert learner.learn(id="a", y="x") is None
        with pytest.raises(BadInput, match="already has the label 'x', but got 'y'"):
            learner.learn(id="a", y="y")
        p = learner.predict_proba(X[0], id="a")
        assert p == other.predict_proba(X[0])  # the prediction is made first
        assert (learner.position, len(learner.asked), len(learner.asked.labels)) == (1, 0, 0)
        assert learner.learn(id="a", y="x") is None
        assert learner.asked.log_loss == pytest.approx(-np.log(p["x"]))

    def test_asked_again_it_says_the_same(self):
        learner = Majority(3)
        learner.learn(X[0], "a")
        first = learner.predict_proba(X[1], id="b")
        learner.learn(X[0], "c")
        assert learner.predict_proba(X[1], id="b") == first
        assert learner.predict_log_proba_one(X[1], id="b") == pytest.approx({"a": np.log(first["a"])})
        with pytest.raises(BadInput, match="id 'b' waits for its label and was asked with another x"):
            learner.predict(X[2], id="b")
        learner.learn(id="b", y="c")
        assert learner.predict_proba(X[1], id="b") == learner.predict_proba(X[1])
        assert len(learner.asked) == 0

    def test_an_example_that_comes_with_an_id(self):
        learner = Majority(3)
        assert learner.learn(X[0], "a", id="one") is None
        assert learner.learn(X[0], "a", id="one") is None
        assert learner.position == 1
        learner.predict(X[1], id="two")
        with pytest.raises(BadInput, match="another x"):
            learner.learn(X[2], "a", id="two")
        assert learner.learn(X[1], "a", id="two").log_loss.shape == (1,)
        assert learner.position == 2

    @pytest.mark.parametrize("wrong", ["", "é" * 200, True, None, 1.5, b"a", "\ud800"])
    def test_what_is_no_id_is_refused(self, wrong):
        learner = Majority(3)
        with pytest.raises(BadInput, match=r"id is .*expected a text of 1 to 256 bytes or a number") as error:
            learner.learn_many(ids=[wrong], ys=["a"])
        assert len(str(error.value)) <= 300

    def test_a_prediction_without_an_id_remembers_nothing(self):
        learner = Majority(3)
        before = learner.state_dict()
        learner.predict(X[0])
        assert same_state(learner.state_dict(), before)
        assert "asked" not in before


class TestExpiry:
    def test_by_number(self):
        learner = Majority(3)
        learner.limit_asked(max_pending=3)
        for t in range(5):
            learner.predict(X[t], id=t)
        assert list(learner.asked.pending) == ["2", "3", "4"]
        for t in (0, 1):
            with pytest.raises(BadInput, match=r"has expired: at most 3 predictions wait for labels") as error:
                learner.learn(id=t, y="a")
            assert len(str(error.value)) <= 300
        assert (learner.asked.expired, learner.asked.refused, learner.position) == (2, 2, 0)
        for t in range(10, 15):
            learner.learn(id=t, y="a")
        assert list(learner.asked.labels) == ["12", "13", "14"]

    def test_by_age(self, monkeypatch):
        clock = [1000.0]
        monkeypatch.setattr("prequential.learners.by_id.now", lambda: clock[0])
        learner = Majority(3)
        learner.limit_asked(max_seconds=60)
        learner.predict(X[0], id="old")
        clock[0] += 50
        learner.predict(X[1], id="new")
        clock[0] += 20
        with pytest.raises(BadInput, match="'old' has expired: at most 100,000 predictions and 60 s"):
            learner.learn(id="old", y="a")
        assert learner.learn(id="new", y="a") is not None

    def test_by_size(self):
        learner = Majority(3)
        learner.predict(X[0], id=0)
        learner.limit_asked(max_bytes=3 * learner.asked.nbytes)
        for t in range(1, 6):
            learner.predict(X[t], id=t)
        assert list(learner.asked.pending) == ["3", "4", "5"]

    def test_what_is_remembered_of_answers_is_bounded(self, monkeypatch):
        monkeypatch.setattr(asked, "REMEMBERED", 3)
        learner = Majority(3)
        for t in range(5):
            learner.predict(X[t], id=t)
            learner.learn(id=t, y="a")
        assert [learner.asked.class_id(str(t)) for t in range(5)] == [None, None, 0, 0, 0]

    def test_limits_that_are_none(self):
        with pytest.raises(BadSetting, match=r"max_pending \(0\) must be a number above 0"):
            Majority(3).limit_asked(max_pending=0)


class TestKept:
    def test_a_home_that_is_opened_again_is_where_it_was(self, tmp_path):
        whole = make(tmp_path / "whole")
        work(whole)
        for cut in (17, 30):
            learner = make(tmp_path / f"{cut}")
            work(learner, 0, cut)
            if cut == 30:
                learner.save()
            learner.learn(id="early", y="even")
            then = learner.state_dict()
            del learner  # without a word, as after a kill
            learner = Learner.open(tmp_path / f"{cut}")
            assert same_state(learner.state_dict(), then)
            work(learner, cut)
            assert learner.predict_log_proba_many(X[:3]).tobytes() == whole.predict_log_proba_many(X[:3]).tobytes()
            assert learner.asked.log_loss == whole.asked.log_loss
            assert learner.learn(id="a1", y="odd") is None  # it knows what it was answered
            learner.close()

    def test_saves_and_copies_have_it_and_snapshots_do_not(self, tmp_path):
        learner = make()
        work(learner)
        learner.save(tmp_path / "file")
        loaded, copied = Learner.load(tmp_path / "file"), copy.deepcopy(learner)
        for other in (loaded, copied):
            assert same_state(other.state_dict(), learner.state_dict())
            assert other.learn(id="a39", y="odd").log_loss == copy.deepcopy(learner).learn(id="a39", y="odd").log_loss
        in_home = Learner.load(tmp_path / "file", home=tmp_path / "home")
        del in_home
        assert len(Learner.open(tmp_path / "home").asked) == len(learner.asked)
        taken = learner.snapshot()
        assert len(taken.asked) == 0
        with pytest.raises(BadInput, match="snapshot"):
            taken.predict(X[0], id="a")

    def test_rows_that_are_asked_decide_how_rows_are_read(self, tmp_path):
        learner = make(tmp_path / "home")
        learner.predict({"price": 3.5, "shop": "a"}, id="first")
        learner.predict({"price": 1.5, "shop": None}, id="second")
        schema = learner.schema
        del learner
        learner = Learner.open(tmp_path / "home")
        assert learner.schema == schema
        learner.learn(id="second", y="cheap")
        learner.learn(id="first", y="dear")
        learner.learn({"price": 2.0, "shop": "b"}, "cheap")
        then = learner.state_dict()
        del learner
        assert same_state(Learner.open(tmp_path / "home").state_dict(), then)

    def test_the_log_does_not_grow_with_the_stream(self, tmp_path, monkeypatch):
        monkeypatch.setattr("prequential.streams.journal.asked_log.LARGEST", 5_000)
        monkeypatch.setattr(asked, "REMEMBERED", 20)
        learner = make(tmp_path / "home")
        sizes = []
        for t in range(90):
            learner.predict(X[t % 80], id=t)
            if t >= 3:
                learner.learn(id=t - 3, y=t % 2)
            sizes.append(sum(path.stat().st_size for path in (tmp_path / "home" / "asked").iterdir()))
        assert max(sizes) < 10_000 < sum(b - a for a, b in itertools.pairwise(sizes) if b > a)
        then = learner.state_dict()
        del learner
        assert same_state(Learner.open(tmp_path / "home").state_dict(), then)

    def test_only_what_the_two_saves_need_is_kept(self, tmp_path):
        learner = make(tmp_path / "home")
        for t in range(12):
            learner.predict(X[t], id=t)
            learner.learn(id=t, y=t % 2)
            learner.save()
        assert len(list((tmp_path / "home" / "asked").iterdir())) <= 2
        learner.predict(X[50], id="waits")
        learner.close()
        newest = sorted((tmp_path / "home" / "saves").iterdir())[-1]
        newest.write_bytes(newest.read_bytes()[:-9])
        with pytest.warns(match="an earlier save is used"):
            learner = Learner.open(tmp_path / "home")
        assert (learner.position, list(learner.asked.pending)) == (12, ["waits"])

    def test_damage_is_said(self, tmp_path):
        learner = make(tmp_path / "home")
        for t in range(5):
            learner.predict(X[t], id=t)
        learner.close()
        (file,) = (tmp_path / "home" / "asked").iterdir()
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        with pytest.warns(match="are no event and were left out"):
            learner = Learner.open(tmp_path / "home")
        assert list(learner.asked.pending) == ["0", "1", "3", "4"]

    def test_a_full_disk_remembers_nothing(self, tmp_path, monkeypatch):
        learner = make(tmp_path / "home")
        learner.predict(X[0], id="a")
        with monkeypatch.context() as context:
            context.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(StorageError, match="No space left"):
                learner.predict(X[1], id="b")
        assert list(learner.asked.pending) == ["a"]
        learner.predict(X[1], id="b")
        then = learner.state_dict()
        del learner
        assert same_state(Learner.open(tmp_path / "home").state_dict(), then)

    def test_from_several_threads(self, tmp_path):
        learner = make(tmp_path / "home")
        found = []

        def client(first: int) -> None:
            try:
                for t in range(first, 60, 3):
                    learner.predict(X[t], id=t)
                    learner.learn(id=t, y=t % 2)
            except Exception as error:
                found.append(error)

        threads = [threading.Thread(target=client, args=(first,)) for first in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == []
        assert (learner.position, learner.asked.answered, len(learner.asked)) == (60, 60, 0)
