"""Files: nothing is written or deleted through a symbolic link, and locks empty nothing."""

import copy
import os
import pickle
import subprocess
import sys
import time

import pytest

from prequential.errors import BadInput
from prequential.storage.files import (
    DirectoryLock,
    LockHeld,
    locked,
    new_file,
    open_own,
    refuse_links,
    remove_temporaries,
    temporary_name,
    write_all,
    write_atomically,
)


@pytest.fixture
def precious(tmp_path):
    """A file of somebody else."""
    path = tmp_path / "precious"
    path.write_bytes(b"somebody else's")
    return path


class TestLinks:
    def test_a_lock_that_is_a_link_is_refused_and_empties_nothing(self, tmp_path, precious):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / ".lock").symlink_to(precious)
        with pytest.raises(BadInput, match=r"\.lock is a symbolic link to .*precious, expected a file"):
            DirectoryLock(tmp_path / "run").take()
        with pytest.raises(BadInput, match="is a symbolic link"), locked(tmp_path / "run" / ".lock"):
            pass
        assert precious.read_bytes() == b"somebody else's"

    def test_a_lock_empties_nothing(self, tmp_path):
        (tmp_path / ".lock").write_bytes(b"kept")
        with DirectoryLock(tmp_path):
            pass
        assert (tmp_path / ".lock").read_bytes() == b"kept"

    def test_a_link_in_the_place_of_a_file_is_replaced(self, tmp_path, precious):
        (tmp_path / "f").symlink_to(precious)
        write_atomically(tmp_path / "f", b"new")
        assert (tmp_path / "f").read_bytes() == b"new"
        assert not (tmp_path / "f").is_symlink()
        assert precious.read_bytes() == b"somebody else's"

    def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(self, tmp_path, precious):
        temporary_name(tmp_path / "f").symlink_to(precious)
        with new_file(tmp_path / "f") as handle:
            write_all(handle, b"new")
        assert precious.read_bytes() == b"somebody else's"
        assert (tmp_path / "f").read_bytes() == b"new"

    def test_links_below_a_directory_are_refused_but_it_may_be_one(self, tmp_path):
        (tmp_path / "real" / "records").mkdir(parents=True)
        (tmp_path / "run").symlink_to(tmp_path / "real")
        refuse_links(tmp_path / "run", tmp_path / "run" / "records" / "part")
        (tmp_path / "real" / "workers").symlink_to(tmp_path / "real" / "records")
        with pytest.raises(BadInput, match="workers is a symbolic link to"):
            refuse_links(tmp_path / "run", tmp_path / "run" / "workers" / "me")

    @pytest.mark.parametrize("kind", ["folder", "pipe"])
    def test_what_is_no_file_is_refused_at_once(self, tmp_path, kind):
        (tmp_path / "log").mkdir() if kind == "folder" else os.mkfifo(tmp_path / "log")
        with pytest.raises(BadInput, match=r"expected (a file|one)"):
            open_own(tmp_path / "log", os.O_RDWR | os.O_APPEND)


class TestLocks:
    def test_waiting_ends_when_the_other_process_is_gone(self, tmp_path):
        code = f"""
import pathlib, sys, time
from prequential.storage.files import DirectoryLock
lock = DirectoryLock(pathlib.Path({str(tmp_path)!r}))
lock.take(), print("taken", flush=True), time.sleep(60)
"""
        other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert other.stdout is not None
        assert other.stdout.readline() == b"taken\n"
        lock = DirectoryLock(tmp_path)
        begun = time.monotonic()
        with pytest.raises(LockHeld):
            lock.wait(0.3)
        assert time.monotonic() - begun >= 0.3
        other.kill()
        other.wait()
        lock.wait(10)
        assert lock.held
        lock.free()

    def test_a_copy_holds_nothing(self, tmp_path):
        lock = DirectoryLock(tmp_path)
        lock.take()
        for copied in (copy.deepcopy(lock), pickle.loads(pickle.dumps(lock))):
            assert not copied.held
            del copied
        with pytest.raises(LockHeld):
            DirectoryLock(tmp_path).take()
        del lock
        DirectoryLock(tmp_path).take()


class TestTemporaries:
    def test_those_of_killed_processes_go_and_nothing_else(self, tmp_path, precious):
        process = subprocess.Popen([sys.executable, "-c", "pass"])
        process.wait()
        for name in (f".a.json.{process.pid}.tmp", f".b.{os.getppid()}.tmp", "c.tmp", ".d"):
            (tmp_path / name).write_text("x")
        (tmp_path / ".link.1.tmp").symlink_to(precious)
        remove_temporaries(tmp_path, shared=True)
        left = {path.name for path in tmp_path.iterdir()}
        assert f".a.json.{process.pid}.tmp" not in left
        assert left >= {f".b.{os.getppid()}.tmp", "c.tmp", ".d", "precious"}
        remove_temporaries(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"c.tmp", ".d", "precious"}
        assert precious.read_bytes() == b"somebody else's"
