"""A folder of features whose files are damaged, linked, left over or cut off by a power loss."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from prequential.errors import BadInput
from prequential.features import Network, extract
from prequential.streams.formats.feature_folder import FeatureStream
from prequential.streams.formats.feature_shards import FolderLock
from prequential.streams.formats.feature_writer import COPY, FeatureWriter

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


class Photos:
    """Small images in two tasks, of which every seventh is bad."""

    def __init__(self, n=40, offset=0, every=7):
        self.x = np.random.default_rng(0).integers(0, 256, (n, 4, 4, 3), dtype=np.uint8)
        self.offset, self.every = offset, every

    def __len__(self):
        return len(self.x)

    def attempt(self, start, stop):
        good = [i for i in range(start, stop) if i % self.every]
        return self.x[good], [i % 5 for i in good], {i: f"photo {i}" for i in range(start, stop) if i not in good}

    def columns(self, start, stop):
        return {"user": np.arange(start, stop, dtype=np.int32) + self.offset}

    def task_starts(self):
        return np.array([0, 20])

    def fingerprint(self):
        return "photos"


def run(directory, source=None, **settings):
    network = Network("colors", lambda x: x.mean((2, 3)), width=3, size=4)
    return extract(source or Photos(), network, directory, batch=4, rows_per_shard=16, **settings)


def stop_at(number):
    def stop(done, total, skipped):
        if done == number:
            raise KeyboardInterrupt

    return stop


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if not path.is_symlink()}


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGES = {
    "flip": flip,
    "truncate": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "empty": lambda path: path.write_bytes(b""),
    "delete": lambda path: path.unlink(),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    run(directory)
    return directory


@pytest.fixture
def finished(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "out"))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name", [COPY, "manifest.json", "skipped.jsonl", "position.npy", "user.npy", "task_starts.npy"]
)
def test_what_the_source_gives_is_made_again(finished, name, damage):
    expected = contents(finished)
    DAMAGES[damage](finished / name)
    run(finished)
    assert contents(finished) == expected


@pytest.mark.parametrize("name", [COPY, "manifest.json", "position.npy"])
def test_a_link_in_the_place_of_a_file_is_replaced(finished, tmp_path, name):
    expected = contents(finished)
    (tmp_path / "other").write_bytes(b"other")
    (finished / name).unlink()
    (finished / name).symlink_to(tmp_path / "other")
    run(finished)
    assert contents(finished) == expected
    assert (tmp_path / "other").read_bytes() == b"other"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["x-00000.npy", "y-00001.npy"])
def test_damaged_features_are_refused(finished, name, damage):
    DAMAGES[damage](finished / name)
    before = contents(finished)
    for use in (lambda: run(finished), lambda: FeatureStream(finished).verify()):
        with pytest.raises(BadInput, match=f"{name} (is damaged|cannot be read): .*; delete its folder and extract"):
            use()
    assert contents(finished) == before


@pytest.mark.parametrize(
    ("name", "source", "sentence"),
    [
        ("skipped.jsonl", Photos(every=9), "of its source 5 images cannot be used now, expected 6; delete"),
        ("user.npy", Photos(offset=1), "user.npy cannot be made again, as its source has another user now; delete"),
    ],
)
def test_what_the_source_no_longer_gives_is_refused(finished, name, source, sentence):
    flip(finished / name)
    before = contents(finished)
    with pytest.raises(BadInput, match=sentence):
        run(finished, source)
    assert contents(finished) == before


def test_links_are_refused_before_anything_is_changed(finished, tmp_path):
    (tmp_path / "other").write_bytes(b"")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "half", progress=stop_at(28))
    for folder, name in (
        (finished, "skipped.jsonl"),
        (tmp_path / "half", "skipped.jsonl"),
        (tmp_path / "half", "x.part"),
    ):
        data = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / name).symlink_to(tmp_path / "other")
        (folder / ".position.npy.1.tmp").write_bytes(b"left over")
        before = contents(folder)
        with pytest.raises(BadInput, match=f"{name} is a symbolic link to .*other, expected a file; remove it"):
            run(folder)
        assert contents(folder) == before
        (folder / name).unlink()
        (folder / name).write_bytes(data)
    assert (tmp_path / "other").read_bytes() == b""
    run(tmp_path / "half")
    run(finished)
    assert contents(tmp_path / "half") == contents(finished)


def test_what_a_kill_at_the_very_end_leaves_is_removed(finished):
    """The manifest is complete, and its copy was being written."""
    expected = contents(finished)
    (finished / COPY).write_bytes(b"the one before")
    for name in (f".{COPY}.1.tmp", "x.part", "y.part"):
        (finished / name).write_bytes(b"left over")
    before = contents(finished)
    lock = FolderLock(finished)
    lock.take()  # by the process that is at its end
    with pytest.raises(BadInput, match="is being written by another process"):
        run(finished)
    assert contents(finished) == before
    lock.free()
    run(finished)
    assert contents(finished) == expected
    lock.take()  # nothing is to be changed any more
    run(finished)


def test_a_manifest_that_is_damaged_does_not_hide_other_settings(finished):
    (finished / "manifest.json").unlink()
    before = contents(finished)
    with pytest.raises(ValueError, match="was begun with dtype 'float16', not 'float32'"):
        run(finished, dtype="float32")
    assert contents(finished) == before


def test_interrupted_between_the_list_and_the_rows(finished, tmp_path, monkeypatch):
    append = FeatureWriter.append

    def interrupted(writer, *arguments, **named):
        if writer.position == 28:
            raise KeyboardInterrupt
        append(writer, *arguments, **named)

    monkeypatch.setattr(FeatureWriter, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "half")
    monkeypatch.undo()
    run(tmp_path / "half")
    assert contents(tmp_path / "half") == contents(finished)


def as_earlier(directory):
    """Makes a folder what an earlier version has written: no copy and no checksums but those of shards."""
    (directory / COPY).unlink()
    manifest = json.loads((directory / "manifest.json").read_text())
    for name in ("sha256", "skipped_sha256", "columns", "part_sha256", "border"):
        manifest.pop(name, None)
    (directory / "manifest.json").write_text(json.dumps(manifest))


def test_folders_of_earlier_versions(finished, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "half", progress=stop_at(28))
    as_earlier(tmp_path / "half")
    run(tmp_path / "half")
    found, expected = contents(tmp_path / "half"), contents(finished)
    for files in (found, expected):
        manifests = [json.loads(files.pop(name)) for name in ("manifest.json", COPY)]
        assert manifests[0] == manifests[1]
    assert found == expected
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", progress=stop_at(28))
    as_earlier(tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", progress=stop_at(32))
    flip(tmp_path / "cut" / "x.part")  # where the last shard ends is not known
    with pytest.raises(BadInput, match=r"x.part is damaged or cut off; delete .* to extract anew"):
        run(tmp_path / "cut")
    as_earlier(finished)
    before = contents(finished)
    assert len(run(finished)) == 34
    assert contents(finished) == before


@pytest.fixture
def power(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("power_disk")
    del sys.modules["power_disk"]


def test_the_power_is_cut(power, finished, tmp_path, monkeypatch):
    monkeypatch.setattr("prequential.features.metadata_files.ROWS", 9)  # several pieces
    monkeypatch.setattr(sys.modules["prequential.features.extract"], "SECONDS_BETWEEN_COMMITS", -1.0)
    root = tmp_path / "root"
    root.mkdir()
    with power.Disk(root) as disk:
        run(root / "out")
    assert disk.violations == []
    expected = contents(finished)
    assert contents(root / "out") == expected
    moments = disk.moments()
    assert len(moments) > 100
    for i, moment in enumerate(moments[:: len(moments) // 30]):
        target = tmp_path / "cut"
        disk.cut(moment, power.MODES[i % len(power.MODES)], i, target)
        run(target / "out")
        assert contents(target / "out") == expected
        shutil.rmtree(target)
