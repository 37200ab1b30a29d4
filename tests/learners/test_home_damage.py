"""Homes of live learners: damaged, missing and foreign files."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from prequential.errors import BadCheckpoint, BadInput, DamageWarning, PrequentialError
from prequential.learners.transformer.learner import Learner
from prequential.storage.checkpoint import read_checkpoint, same_state
from prequential.streams.journal.log_records import HEAD
from shared.homes import example, labels_of, live, make, places, teach, tree
from shared.journals import flip


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
        with pytest.warns(DamageWarning, match="examples 12-16 are missing in .*: they stay learned"):
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
        with pytest.warns(DamageWarning, match="everything is learned again"):
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
