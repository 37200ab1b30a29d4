"""The journal: what it gives back, what it notices, what it never does to the files of others."""

import copy
import datetime
import errno
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from prequential.errors import BadCheckpoint, BadInput, DamageWarning, PrequentialError, StorageError
from prequential.storage.sealed import write_sealed
from prequential.streams.journal.journal import Journal
from prequential.streams.journal.log_records import EXAMPLE, HEAD, SKIPPABLE, record
from prequential.testing.streams import check_stream
from shared.journals import flip, record_places

OLD = Path(__file__).parents[2] / "data" / "format-1"


def fill(directory, n=40, labels=("a", "bcd", 7)):
    """A journal of n examples, x of example t being (t, -t)."""
    journal = Journal(directory, write=True)
    for start in range(0, n, 4):
        t = np.arange(start, min(start + 4, n), dtype=float)
        journal.append(np.stack([t, -t], 1), [labels[int(i) % len(labels)] for i in t])
    return journal


def expected(positions, labels=("a", "bcd", 7)):
    return [[float(t), -float(t)] for t in positions], [labels[t % len(labels)] for t in positions]


def got(chunk):
    return chunk.x.tolist(), list(chunk.y)


def snapshot(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_battery(tmp_path):
    def make(seed=0):
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        journal = Journal(directory, write=True, durability="save")
        random = np.random.default_rng(seed)
        for _ in range(12):
            journal.append(random.normal(size=(25, 3)), random.integers(0, 4, 25).tolist())
        return journal

    made = make()
    check_stream(lambda: Journal(made.directory), changed=lambda: make(1))
    assert made.fingerprint() == Journal(made.directory).fingerprint()


class TestReading:
    def test_opening_to_read_writes_nothing_whatever_is_there(self, tmp_path):
        journal = fill(tmp_path / "j")
        journal.close()
        log = (tmp_path / "j" / "log.bin").read_bytes()
        (tmp_path / "j" / "log.bin").write_bytes(log[:-5])
        for missing in ("index.bin", "journal.json"):
            (tmp_path / "j" / missing).unlink()
            before = snapshot(tmp_path / "j")
            reader = Journal(tmp_path / "j")
            assert len(reader) == 39
            assert got(reader.read(30, 39)) == expected(range(30, 39))
            reader.refresh()
            assert snapshot(tmp_path / "j") == before
        with pytest.raises(BadInput, match="was opened to read"):
            reader.append(np.zeros((1, 2)), ["a"])
        with pytest.raises(BadInput, match="holds no journal"):
            Journal(tmp_path / "nothing")
        assert not (tmp_path / "nothing").exists()

    def test_a_live_journal_is_followed(self, tmp_path):
        journal = fill(tmp_path, 8)
        reader = Journal(tmp_path)
        journal.append(np.array([[8.0, -8.0]]), [7])
        assert len(reader) == 8
        assert reader.refresh() == 9
        assert got(reader.read(0, 9)) == expected(range(9))
        # of a record that is just being written, nothing is seen
        half = record(EXAMPLE, journal._log.tag, 9, b"x" * 50)[:40]
        with open(tmp_path / "log.bin", "ab") as file:
            file.write(half)
        assert reader.refresh() == len(Journal(tmp_path)) == 9

    def test_readers_in_another_process_change_nothing_for_the_writer(self, tmp_path):
        journal = Journal(tmp_path, write=True, durability="save")
        journal.append(np.zeros((1, 2)), [0])
        code = f"""
import numpy as np
from prequential.streams.journal.journal import Journal
reader = Journal({str(tmp_path)!r})
while reader.refresh() < 400:
    n = len(reader)
    chunk = reader.read(max(0, n - 20), n)
    assert [int(x[0]) for x in chunk.x] == chunk.y, (chunk.x, chunk.y)
assert reader.damaged() == []
"""
        process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ})
        for t in range(1, 400):
            journal.append(np.full((1, 2), float(t)), [t])
        assert process.wait(60) == 0
        assert journal.read(0, 400).y == list(range(400))

    def test_memory_holds_no_list_of_positions(self, tmp_path):
        reader = Journal(fill(tmp_path, 400).directory)
        reader.read(0, 400)
        parts = (reader, reader._log, reader._log.index, reader._reader, reader._reader.labels)
        held = sum(sys.getsizeof(value) for part in parts for value in vars(part).values())
        assert held + sum(map(sys.getsizeof, reader._reader.labels._labels)) < 8 * 400

    def test_an_index_is_never_trusted(self, tmp_path):
        fill(tmp_path).close()
        index = tmp_path / "index.bin"
        whole = index.read_bytes()
        for damaged in (
            whole[:40],
            whole[:-8],
            b"",
            whole[:16] + bytes(len(whole) - 16),
            whole[:100] + whole[92:-8],
            whole[:16] + whole[24:] + whole[16:24],
            os.urandom(len(whole)),
            whole[:16] + b"\xff" * (len(whole) - 16),
            whole[: 16 + 8 * 17 + 7] + b"\x80" + whole[16 + 8 * 18 :],
            whole + whole,
        ):
            index.write_bytes(damaged)
            reader = Journal(tmp_path)
            assert (len(reader), got(reader.read(0, 40))) == (40, expected(range(40)))
            writer = Journal(tmp_path, write=True)
            assert got(writer.read(3, 40)) == expected(range(3, 40))
            writer.close()


class TestDamage:
    @pytest.mark.parametrize("index", [True, False])
    @pytest.mark.parametrize("part", ["header", "x", "label", "length"])
    def test_one_flipped_bit_costs_one_example(self, tmp_path, part, index):
        journal = fill(tmp_path)
        journal.close()
        at, size = record_places(journal)[10]
        flip(tmp_path / "log.bin", at + {"header": 5, "x": HEAD + 30, "label": size - 1, "length": 20}[part])
        if not index:
            (tmp_path / "index.bin").unlink()
        before = (tmp_path / "log.bin").read_bytes()
        for write in (False, True):
            again = Journal(tmp_path, write=write)
            assert len(again) == 40
            with pytest.raises(BadInput, match=r"example 10 is damaged: its checksum is wrong$"):
                again.read(8, 12)
            assert got(again.read(11, 40)) == expected(range(11, 40))
            with pytest.warns(DamageWarning, match="example 10 is damaged and left out"):
                chunk = again.readable(8, 12)
            assert got(chunk) == expected([8, 9, 11])
            assert [position for position, _ in again.damaged()] == [10]
            again.close()
        assert (tmp_path / "log.bin").read_bytes() == before

    @pytest.mark.parametrize("index", [True, False])
    def test_a_piece_overwritten_or_cut_out_costs_what_was_in_it(self, tmp_path, index):
        journal = fill(tmp_path)
        journal.close()
        places = record_places(journal)
        whole = (tmp_path / "log.bin").read_bytes()
        a, b = places[10][0] + 7, places[13][0] + 9
        for changed in (whole[:a] + bytes(b - a) + whole[b:], whole[:a] + whole[b:], whole[:a] + b"x" * 13 + whole[b:]):
            (tmp_path / "log.bin").write_bytes(changed)
            if not index:
                (tmp_path / "index.bin").unlink(missing_ok=True)
            reader = Journal(tmp_path)
            assert len(reader) == 40
            assert [position for position, _ in reader.damaged()] == [10, 11, 12, 13]
            assert got(reader.read(14, 40)) == expected(range(14, 40))

    def test_a_torn_tail_is_cut_by_the_writer_and_said(self, tmp_path):
        journal = fill(tmp_path / "j", 12)
        journal.close()
        whole = (tmp_path / "j" / "log.bin").read_bytes()
        last = record_places(journal)[11][0]
        for cut in range(last + 1, len(whole)):
            shutil.rmtree(tmp_path / "k", ignore_errors=True)
            shutil.copytree(tmp_path / "j", tmp_path / "k")
            (tmp_path / "k" / "log.bin").write_bytes(whole[:cut])
            with pytest.warns(
                DamageWarning, match=rf"the last {cut - last} bytes of .* are no whole record; the journal"
            ):
                again = Journal(tmp_path / "k", write=True)
            assert len(again) == 11
            again.append(np.array([[11.0, -11.0]]), ["bcd"])
            again.close()
            assert got(Journal(tmp_path / "k").read(0, 12)) == (
                [*expected(range(11))[0], [11.0, -11.0]],
                [*expected(range(11))[1], "bcd"],
            )
            assert not list((tmp_path / "k").glob("damaged-*"))

    def test_other_bytes_at_the_end_are_set_aside(self, tmp_path):
        fill(tmp_path, 12).close()
        with open(tmp_path / "log.bin", "ab") as file:
            file.write(b"not a record" * 10)
        with pytest.warns(DamageWarning, match="were moved to damaged-000000000012.bin"):
            again = Journal(tmp_path, write=True)
        assert (tmp_path / "damaged-000000000012.bin").read_bytes() == b"not a record" * 10
        assert len(again) == 12

    @pytest.mark.parametrize("name", ["journal.json", "index.bin"])
    @pytest.mark.parametrize("fault", ["empty", "missing", "flip", "junk"])
    def test_what_can_be_found_again_is(self, tmp_path, name, fault):
        fill(tmp_path).close()
        path = tmp_path / name
        match fault:
            case "empty":
                path.write_bytes(b"")
            case "missing":
                path.unlink()
            case "flip":
                flip(path, path.stat().st_size // 2)
            case "junk":
                path.write_bytes(b"\xff\xfe{[")
        assert got(Journal(tmp_path).read(0, 40)) == expected(range(40))
        if name == "journal.json":
            with pytest.warns(DamageWarning, match=r"journal\.json is .*; it was made anew"):
                again = Journal(tmp_path, write=True)
        else:
            again = Journal(tmp_path, write=True)
        again.append(np.array([[40.0, -40.0]]), ["bcd"])
        assert got(again.read(0, 41)) == expected(range(41))
        again.close()
        Journal(tmp_path, write=True).close()  # and now without a warning

    def test_the_first_record_may_be_damaged(self, tmp_path):
        fill(tmp_path).close()
        flip(tmp_path / "log.bin", 40)
        (tmp_path / "index.bin").unlink()
        assert got(Journal(tmp_path).read(0, 40)) == expected(range(40))
        (tmp_path / "journal.json").unlink()
        with pytest.raises(BadCheckpoint, match=r"journal\.json is missing; the beginning of .* is damaged too"):
            Journal(tmp_path)

    def test_files_of_another_journal_are_noticed(self, tmp_path):
        fill(tmp_path / "a").close()
        fill(tmp_path / "b").close()
        shutil.copy(tmp_path / "b" / "log.bin", tmp_path / "a" / "log.bin")
        with pytest.raises(BadInput, match=r"journal\.json and log\.bin belong to two journals"):
            Journal(tmp_path / "a")

    def test_links_are_not_followed(self, tmp_path):
        fill(tmp_path / "a").close()
        fill(tmp_path / "b").close()
        for name in ("log.bin", "index.bin", "journal.json"):
            shutil.rmtree(tmp_path / "c", ignore_errors=True)
            shutil.copytree(tmp_path / "a", tmp_path / "c")
            (tmp_path / "c" / name).unlink()
            (tmp_path / "c" / name).symlink_to(tmp_path / "b" / name)
            before = snapshot(tmp_path / "b")
            for write in (False, True):
                with pytest.raises(PrequentialError, match="symbolic link"):
                    Journal(tmp_path / "c", write=write)
            assert snapshot(tmp_path / "b") == before

    def test_compacting_closes_holes_and_keeps_what_was_in_them(self, tmp_path):
        journal = fill(tmp_path)
        places = record_places(journal)
        at, size = places[25]
        flip(tmp_path / "log.bin", at + 3)
        flip(tmp_path / "log.bin", places[10][0] + HEAD + 3)
        bytes_of_25 = (tmp_path / "log.bin").read_bytes()[at : at + size]
        assert journal.compact(20) == [25]
        assert len(journal) == 39
        assert (tmp_path / "damaged-000000000025.bin").read_bytes() == bytes_of_25
        assert got(journal.read(11, 39)) == expected([*range(11, 25), *range(26, 40)])
        assert [position for position, _ in journal.damaged()] == [10]  # before the start it stays as it is
        assert journal.holds(0, 25)
        assert not journal.holds(0, 26)
        journal.append(np.zeros((1, 2)), ["new"])
        journal.close()
        assert Journal(tmp_path).read(39, 40).y == ["new"]

    def test_gaps_stand_for_what_is_lost(self, tmp_path):
        journal = fill(tmp_path, 12)
        journal.append_gap(10_000)
        journal.append(np.array([[1.0, 2.0]]), ["after"])
        journal.close()
        for remove in ("", "index.bin"):
            if remove:
                (tmp_path / remove).unlink()
            reader = Journal(tmp_path)
            assert len(reader) == 10_013
            assert reader.read(10_012, 10_013).y == ["after"]
            assert len(reader.readable(8, 500)) == 4
            with pytest.raises(BadInput, match="example 12 is damaged: it was lost"):
                reader.read(8, 20)


class TestWriting:
    def test_kinds_of_numbers(self, tmp_path):
        whole = Journal(tmp_path / "whole", write=True)
        whole.append(np.array([[1, 2]]), [0])
        whole.append(np.array([[0.5, 2.5]]), [1])  # fractions after whole numbers must not be cut
        assert whole.read(1, 2).x.tolist() == [[0.5, 2.5]]
        small = Journal(tmp_path / "small", write=True)
        small.append(np.array([[1, 2]], np.uint8), [0])
        small.append(np.array([[0.5, 300]]), [1])
        assert small.read(1, 2).x.tolist() == [[0.5, 300]]
        images = Journal(tmp_path / "images", write=True)
        images.append(np.full((2, 4, 4), 200, np.uint8), ["a", "a"])
        assert images.read(0, 2).x.dtype == np.uint8
        with pytest.raises(BadInput, match=r"x has shape \(5, 4\), but the examples of .* have \(4, 4\)"):
            images.append(np.zeros((1, 5, 4), np.uint8), ["a"])

    def test_labels_keep_value_and_type(self, tmp_path):
        labels = [1, True, 1.0, "1", b"1", None, (1, "a"), (True, "a"), datetime.date(2024, 1, 1), 10**30, "\ud800"]
        journal = Journal(tmp_path, write=True)
        journal.append(np.zeros((len(labels), 1)), labels)
        journal.close()
        back = Journal(tmp_path).read(0, len(labels)).y
        assert [(type(a), a) for a in back] == [(type(a), a) for a in labels]
        assert type(back[7][0]) is bool

    def test_copies_are_independent(self, tmp_path):
        first = fill(tmp_path / "first", 12)
        first.copy(tmp_path / "second")
        first.copy(tmp_path / "third", identity="another")
        for name in ("second", "third"):
            second = Journal(tmp_path / name, write=True)
            second.append(np.zeros((1, 2)), [4])
            assert (len(first), len(second)) == (12, 13)
            assert got(second.read(0, 12)) == expected(range(12))
            second.truncate(2)
            assert got(second.read(0, 2)) == expected(range(2))
            with pytest.raises(BadInput, match="holds 2 examples, expected at least 5"):
                second.truncate(5)
        assert first.read(0, 12).y == expected(range(12))[1]

    def test_one_writer(self, tmp_path):
        journal = fill(tmp_path, 4)
        with pytest.raises(BadInput, match="is working in"):
            Journal(tmp_path, write=True)
        code = f"from prequential.streams.journal.journal import Journal; Journal({str(tmp_path)!r}, write=True)"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "another process or learner is working in" in other.stderr
        journal.close()
        Journal(tmp_path, write=True).close()

    def test_a_log_that_somebody_else_has_written_to_is_left_alone(self, tmp_path):
        journal = fill(tmp_path, 4)
        with open(tmp_path / "log.bin", "ab") as file:
            file.write(b"theirs")
        before = (tmp_path / "log.bin").read_bytes()
        with pytest.raises(BadInput, match="another process has written to"):
            journal.append(np.zeros((1, 2)), ["a"])
        assert (tmp_path / "log.bin").read_bytes() == before
        assert len(journal) == 4

    @pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "fstat"])
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EIO])
    @pytest.mark.parametrize("after", [0, 1])
    def test_what_the_disk_refuses_changes_nothing(self, tmp_path, monkeypatch, call, code, after):
        journal = Journal(tmp_path, write=True, durability="sync")
        journal.append(np.array([[0.0, 0.0]]), ["a"])
        original, calls = getattr(os, call), []

        def fail(*args, **kwargs):
            calls.append(args)
            if len(calls) > after:
                raise OSError(code, os.strerror(code))
            return original(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            if len(calls) > after or not (call == "fsync" and after):
                with pytest.raises(StorageError, match=rf"^[^\n]*{os.strerror(code)}[^\n]*; nothing was changed$"):
                    journal.append(np.array([[1.0, 1.0], [2.0, 2.0]]), ["ham", "spam"])
                assert len(journal) == 1
        if len(journal) == 1:
            journal.append(np.array([[3.0, 3.0], [4.0, 4.0]]), ["eggs", "ham"])
            assert journal.read(0, 3).y == ["a", "eggs", "ham"]
        journal.close()
        assert Journal(tmp_path).read(0, len(journal)).y == journal.read(0, len(journal)).y
        assert Journal(tmp_path).damaged() == []

    def test_part_of_a_write_is_taken_back(self, tmp_path, monkeypatch):
        journal = fill(tmp_path, 4)
        size = (tmp_path / "log.bin").stat().st_size
        original = os.pwrite

        def some(handle, data, offset):
            if len(data) < 60:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(handle, bytes(data)[:50], offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", some)
            with pytest.raises(StorageError, match="No space left"):
                journal.append(np.zeros((2, 2)), ["a", "b"])
            patch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
            with pytest.raises(StorageError, match="No space left"):
                journal.append(np.zeros((2, 2)), ["a", "b"])
        assert (tmp_path / "log.bin").stat().st_size > size  # even that could not be undone
        journal.append(np.full((1, 2), 9.0), ["c"])
        journal.close()
        assert Journal(tmp_path).read(3, 5).y == [expected([3])[1][0], "c"]

    def test_durability(self, tmp_path, monkeypatch):
        synced = []
        original = os.fsync
        for durability, count in (("sync", 10), (3, 3), ("save", 0)):
            journal = Journal(tmp_path / str(durability), write=True, durability=durability)
            journal.append(np.zeros((1, 2)), ["a"])
            journal.sync()
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", lambda handle: synced.append(handle) or original(handle))
                for _ in range(10):
                    journal.append(np.zeros((1, 2)), ["a"])
                assert len(synced) == count
                journal.sync()
                assert len(synced) == count + 1
            synced.clear()
        for bad in (0, -1, "often", True, 1.5, None):
            with pytest.raises(BadInput, match=r"durability \(.*\) must be 'sync', 'save' or a number"):
                Journal(tmp_path / "bad", write=True, durability=bad)

    def test_a_writer_is_neither_pickled_nor_copied(self, tmp_path):
        journal = fill(tmp_path, 4)
        for make in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(BadInput, match="cannot be pickled or copied"):
                make(journal)
        reader = pickle.loads(pickle.dumps(Journal(tmp_path)))
        assert got(reader.read(0, 4)) == expected(range(4))

    def test_what_killed_processes_left_is_removed(self, tmp_path):
        fill(tmp_path, 4).close()
        (tmp_path / ".log.bin.123.tmp").write_bytes(b"half")
        Journal(tmp_path, write=True).close()
        assert not (tmp_path / ".log.bin.123.tmp").exists()


class TestFormat:
    def test_records_of_a_later_kind_are_skipped_if_they_say_so(self, tmp_path):
        journal = fill(tmp_path, 4)
        with open(tmp_path / "log.bin", "ab") as file:
            file.write(record(9, journal._log.tag, 4, b"asked", SKIPPABLE))
            file.write(record(EXAMPLE, journal._log.tag, 4, _payload(journal, 3)))
        journal.close()
        assert len(Journal(tmp_path)) == 5
        again = Journal(tmp_path, write=True)
        again.append(np.zeros((1, 2)), ["z"])
        again.close()
        assert Journal(tmp_path).read(4, 6).y[1] == "z"
        with open(tmp_path / "log.bin", "ab") as file:
            file.write(record(9, journal._log.tag, 6, b"more"))
        with pytest.raises(BadInput, match="a record of kind 9 at example 6: a later version wrote it"):
            Journal(tmp_path)

    def test_another_format_is_named(self, tmp_path):
        write_sealed(tmp_path / "journal.json", {"format": "prequential-journal-9"})
        with pytest.raises(BadInput, match="has format 'prequential-journal-9', expected 'prequential-journal-2'"):
            Journal(tmp_path)

    @pytest.fixture
    def old(self, tmp_path):
        shutil.copytree(OLD / "home" / "journal", tmp_path / "old")
        return tmp_path / "old"

    def test_the_first_format_is_read_as_it_is(self, old):
        before = snapshot(old)
        journal = Journal(old)
        assert len(journal) == 14
        assert set(journal.known) == {"ham", "spam", datetime.date(2024, 5, 1), ("a", 1)}
        assert snapshot(old) == before

    def test_a_writer_converts_the_first_format(self, old):
        before = Journal(old).read(0, 14)
        journal = Journal(old, write=True)
        assert np.array_equal(journal.read(0, 14).x, before.x)
        assert journal.read(0, 14).y == before.y
        assert sorted(path.name for path in old.iterdir()) == [".lock", "index.bin", "journal.json", "log.bin"]

    def test_a_conversion_that_is_killed_loses_nothing(self, old, monkeypatch):
        before = Journal(old).read(0, 14)
        replace = os.replace

        def killed(source, target):
            if Path(target).name == "journal.json":
                raise KeyboardInterrupt
            replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", killed)
            with pytest.raises(KeyboardInterrupt):
                Journal(old, write=True)
        assert Journal(old).read(0, 14).y == before.y
        journal = Journal(old, write=True)
        assert np.array_equal(journal.read(0, 14).x, before.x)

    @pytest.mark.parametrize("name", ["x.bin", "y.bin", "labels.jsonl", "journal.json"])
    def test_damage_in_the_first_format(self, old, name):
        before = Journal(old).read(0, 14)
        (old / name).write_bytes((old / name).read_bytes()[:-3])
        if name == "journal.json":
            with pytest.raises(BadCheckpoint, match="is damaged"):
                Journal(old, write=True)
            return
        journal = Journal(old, write=True)
        chunk = journal.readable(0, len(journal))
        kept = [label for label in before.y if name != "labels.jsonl" or label != ("a", 1)]
        assert chunk.y == (kept if name == "labels.jsonl" else before.y[:13])

    def test_a_flipped_label_of_the_first_format_costs_one_example(self, old):
        before = Journal(old).read(0, 14)
        flip(old / "y.bin", 4 * 5 + 3)
        journal = Journal(old, write=True)
        assert len(journal) == 14
        assert journal.readable(0, 14).y == [label for t, label in enumerate(before.y) if t != 5]

    def test_the_first_format_without_its_labels_is_left_alone(self, old):
        (old / "labels.jsonl").unlink()
        before = snapshot(old)
        for write in (False, True):
            with pytest.raises(BadCheckpoint, match=r"labels\.jsonl is missing"):
                Journal(old, write=write)
        after = snapshot(old)
        after.pop(".lock")
        assert after == before


def _payload(journal, position):
    at, size = record_places(journal)[position]
    return (journal.directory / "log.bin").read_bytes()[at + HEAD : at + size]


class TestScratch:
    """A journal that need not survive its process keeps its latest records in memory."""

    def make(self, path, count=10):
        journal = Journal(path, write=True, scratch=True)
        for t in range(count):
            journal.append(np.full((1, 2), float(t)), ["even", "odd"][t % 2 :][:1])
        return journal

    def add(self, journal, stop):
        for t in range(len(journal), stop):
            journal.append(np.full((1, 2), float(t)), [t])

    def test_records_wait_in_memory_and_are_read_all_the_same(self, tmp_path):
        journal = self.make(tmp_path)
        size = (tmp_path / "log.bin").stat().st_size
        assert journal._log.end > size
        assert journal.read(7, 10).x[:, 0].tolist() == [7, 8, 9]
        assert (tmp_path / "log.bin").stat().st_size == journal._log.end
        assert journal.read(0, 10).y == ["even", "odd"] * 5
        for t in range(10, 1000):  # many more than wait
            journal.append(np.full((1, 2), float(t)), [t])
            assert len(journal._log._tail) <= 1 << 14
        assert journal.read(0, 1000).x[:, 1].tolist() == list(range(1000))

    @pytest.mark.parametrize("read", [False, True])
    def test_what_is_taken_back_is_gone_wherever_it_is(self, tmp_path, read):
        journal = self.make(tmp_path)
        mark = journal.mark()
        journal.append(np.full((1, 2), 77.0), ["wrong"])
        if read:  # it is in the file now
            assert journal.read(10, 11).y == ["wrong"]
            journal.append(np.full((1, 2), 78.0), ["wrong"])
        journal.rollback(mark)
        journal.append(np.full((1, 2), 10.0), ["even"])
        assert len(journal) == 11
        assert journal.read(0, 11).x[:, 0].tolist() == list(range(11))
        assert journal.damaged() == []

    def test_a_copy_and_a_fingerprint_are_of_all_of_it(self, tmp_path):
        journal = self.make(tmp_path / "one")
        before = journal.fingerprint()
        journal.append(np.full((1, 2), 10.0), ["even"])
        assert journal.fingerprint() != before
        journal.append(np.full((1, 2), 11.0), ["odd"])
        journal.copy(tmp_path / "two")
        assert Journal(tmp_path / "two").read(0, 12).x[:, 0].tolist() == list(range(12))

    def test_what_the_disk_refuses_can_be_written_later(self, tmp_path, monkeypatch):
        journal = self.make(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
            with pytest.raises(StorageError, match="No space left"):
                journal.read(0, 10)
            with pytest.raises(StorageError, match="No space left"):
                self.add(journal, 1000)
        length = len(journal)
        assert 20 < length < 1000
        journal.append(np.full((1, 2), float(length)), [length])
        assert journal.read(0, length + 1).x[:, 0].tolist() == list(range(length + 1))

    def test_a_forked_process_reads_all_and_writes_nothing(self, tmp_path):
        journal = self.make(tmp_path)
        process = os.fork()
        if process == 0:
            good = journal.read(0, 10).x[:, 0].tolist() == list(range(10))
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
        journal.append(np.full((1, 2), 10.0), ["even"])
        assert journal.read(0, 11).x[:, 0].tolist() == list(range(11))

    def test_another_thread_reads_while_records_are_added(self, tmp_path):
        journal, wrong = self.make(tmp_path), []

        def read():
            while len(journal) < 600:
                stop = len(journal)
                found = journal.read(0, stop).x[:, 0].tolist()
                if found != list(range(stop)):
                    wrong.append(stop)

        thread = threading.Thread(target=read)
        thread.start()
        self.add(journal, 600)
        thread.join(60)
        assert not thread.is_alive()
        assert not wrong
