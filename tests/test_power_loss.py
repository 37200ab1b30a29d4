"""Simulated power cuts: by themselves they lose what was not synced and keep what was; learners and runs keep what they
promise. The last part is a short version of benchmarks/power.py.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prequential.storage.files import write_atomically

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def disk_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("power_disk")
    del sys.modules["power_disk"]


@pytest.fixture
def left(disk_module: Any, tmp_path: Path) -> Callable[[Callable[[Path], None]], set[bytes | None]]:
    """What power cuts at all moments of some work leave of the file `name`, which held b"old" before."""

    def cut(work: Callable[[Path], None], name: str = "name") -> set[bytes | None]:
        root = tmp_path / "root"
        root.mkdir()
        (root / name).write_bytes(b"old")
        with disk_module.Disk(root) as disk:
            work(root / name)
        found: set[bytes | None] = set()
        for moment in [0, *disk.moments()]:
            for mode in disk_module.MODES:
                for seed in range(3):
                    target = tmp_path / "cut"
                    disk.cut(moment, mode, seed, target)
                    found.add((target / name).read_bytes() if (target / name).exists() else None)
                    shutil.rmtree(target)
        return found

    return cut


NEW = bytes(range(1, 256)) * 5  # three sectors


def test_written_atomically_it_is_the_old_or_the_new(left):
    assert left(lambda path: write_atomically(path, NEW)) == {b"old", NEW}


def test_renamed_without_a_sync_it_can_be_empty_zeros_or_in_parts(left):
    def naive(path: Path) -> None:
        path.with_suffix(".tmp").write_bytes(NEW)
        path.with_suffix(".tmp").replace(path)

    found = left(naive)
    assert {b"old", NEW, b"", bytes(len(NEW))} <= found
    assert any(part not in (None, b"old", NEW) and any(part) for part in found)


def test_written_in_place_it_can_be_anything(left):
    found = left(lambda path: path.write_bytes(NEW))
    assert b"" in found
    assert NEW in found


def test_synced_but_with_a_name_that_was_not(left):
    def nameless(path: Path) -> None:
        path.unlink()
        handle = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.write(handle, NEW)
        os.fsync(handle)
        os.close(handle)

    found = left(nameless)
    assert None in found
    assert b"old" in found


def test_what_was_synced_stays(disk_module, tmp_path):
    """Records are appended and synced one by one: after each sync it is there, whatever else is lost."""
    root = tmp_path / "root"
    root.mkdir()
    with disk_module.Disk(root) as disk:
        handle = os.open(root / "log", os.O_WRONLY | os.O_CREAT)
        folder = os.open(root, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        for i in range(20):
            os.pwrite(handle, bytes([i + 1]) * 100, 100 * i)
            if i % 2:
                os.fsync(handle)
                disk.mark(synced=100 * (i + 1))
        os.close(handle)
    assert not disk.violations
    losses = 0
    for moment in disk.moments():
        promised = max((mark["synced"] for mark in disk.marks(moment)), default=0)
        for mode in disk_module.MODES:
            disk.cut(moment, mode, 1, tmp_path / "cut")
            path = tmp_path / "cut" / "log"
            kept = path.read_bytes() if path.exists() else b""
            assert kept[:promised] == b"".join(bytes([i + 1]) * 100 for i in range(promised // 100))
            losses += kept[promised : promised + 100] in (b"", bytes(100))
            shutil.rmtree(tmp_path / "cut")
    assert losses > 10


def test_directories_moves_and_removals(disk_module, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    with disk_module.Disk(root) as disk:
        (root / "a").mkdir()
        write_atomically(root / "a" / "one", b"1")
        disk.mark(done="one")  # durable, but the directory it is in is not
        shutil.copytree(root / "a", root / "b")
        (root / "a").rename(root / "c")
        shutil.rmtree(root / "c")
    assert all("b/one" in violation for violation in disk.violations)
    end = disk.moments()[-1]
    disk.cut(end, "names", 0, tmp_path / "names")
    assert sorted(path.name for path in (tmp_path / "names").iterdir()) == ["b"]
    disk.cut(end, "dropped", 0, tmp_path / "dropped")
    assert list((tmp_path / "dropped").iterdir()) == []


def test_every_way_of_writing_is_seen(disk_module, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    with disk_module.Disk(root, lambda name: name != "picture.png") as disk:
        (root / "picture.png").write_bytes(b"none of ours")
        (root / "text").write_text("one\ntwo\n")
        with open(root / "text", "a") as file:
            file.write("three\n")
        with open(root / "both", "w+b") as both:
            both.write(b"12345")
            both.seek(1)
            assert both.read(2) == b"23"
            both.truncate(3)
        np.save(root / "array.npy", np.arange(5))
        np.lib.format.open_memmap(root / "map.npy", mode="w+", dtype=np.int64, shape=(5,))[:] = 7
    assert (root / "text").read_text() == "one\ntwo\nthree\n"
    assert (root / "both").read_bytes() == b"123"
    assert np.load(root / "array.npy").tolist() == [0, 1, 2, 3, 4]
    named = " ".join(disk.violations)
    for name in ("text", "both", "array.npy", "map.npy"):
        assert name in named
    assert "picture.png" not in named
    disk.cut(disk.moments()[-1], "names", 0, tmp_path / "cut")
    assert (tmp_path / "cut" / "text").read_bytes() in (b"", bytes(14))


# a journal that believes in the cache of the system
BROKEN = """
import sys
sys.path.insert(0, {folder!r})
import os
import power
from prequential.streams.journal import log

class Believing:
    def __getattr__(self, name):
        return (lambda handle: None) if name == "fsync" else getattr(os, name)

log.os = Believing()
power.main(sys.argv[1:])
"""


def cut(out: Path, *arguments: str, code: str | None = None) -> dict[str, Any]:
    """What came of some cuts, in a process of their own: it takes over how Python writes files."""
    program = [str(BENCHMARKS / "power.py")] if code is None else ["-c", code]
    command = [sys.executable, *program, "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (out / "power.json").is_file(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads((out / "power.json").read_text())
    return found


@pytest.mark.parametrize(
    ("study", "count"), [("home save", 6), ("home sync", 6), ("home 4", 6), ("save", 4), ("run", 3)]
)
def test_promises_are_kept(tmp_path: Path, study: str, count: int) -> None:
    found = cut(tmp_path, "--study", study, "--count", str(count), "--seed", "1")["studies"][study]
    assert found["found"] == []
    assert found["written"] == []  # everything durable was written so that it was seen
    assert found["cuts"] == count


def test_a_journal_that_is_never_synced_is_found_out(tmp_path: Path) -> None:
    code = BROKEN.format(folder=str(BENCHMARKS))
    found = cut(tmp_path, "--study", "home sync", "--count", "18", "--seed", "1", code=code)
    assert found["total"]["broken"] > 0
