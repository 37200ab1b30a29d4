import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from prequential.errors import BadInput, BadSetting
from prequential.storage.sealed import seal, write_sealed
from prequential.streams.formats import feature_shards as feature_files
from prequential.streams.formats.feature_folder import FeatureStream
from prequential.streams.formats.feature_shards import FORMAT, checksum
from prequential.streams.formats.feature_writer import FeatureWriter
from prequential.streams.tasks import SplitStream
from prequential.testing.streams import check_stream


def make_store(directory, n=500, *, dtype="float16", seed=0, rows_per_shard=64, labels=None):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(dtype)
    y = labels or rng.integers(0, 9, n).tolist()
    with FeatureWriter(directory, width=6, dtype=dtype, rows_per_shard=rows_per_shard, classes=9) as writer:
        for start in range(0, n, 50):
            writer.append(x[start : start + 50], y[start : start + 50])
    return x, y


def seal_again(folder):
    """Makes the checksums fit files that were changed, so that what is in them is looked at."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["sha256"]
    for shard in manifest["shards"]:
        shard |= {f"{kind}_sha256": checksum(folder / shard[kind]) for kind in ("x", "y")}
    write_sealed(folder / "manifest.json", manifest)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_battery(tmp_path, dtype):
    make_store(tmp_path / "a", dtype=dtype)
    make_store(tmp_path / "b", dtype=dtype, seed=1)
    make_store(tmp_path / "bad", dtype=dtype)
    x = np.load(tmp_path / "bad" / "x-00001.npy")
    x[7, 3] = np.nan
    np.save(tmp_path / "bad" / "x-00001.npy", x)
    seal_again(tmp_path / "bad")
    check_stream(
        lambda: FeatureStream(tmp_path / "a"),
        lambda: FeatureStream(tmp_path / "b"),
        bad=lambda: FeatureStream(tmp_path / "bad"),
        match=r"bad, example 107: feature 3 is nan, expected a finite number",
    )


def test_labels_the_manifest_does_not_list(tmp_path):
    make_store(tmp_path, 100, labels=["cat", "dog"] * 50)
    y = np.load(tmp_path / "y-00000.npy")
    y[9] = 2
    np.save(tmp_path / "y-00000.npy", y)
    seal_again(tmp_path)
    what = r"example 9: the label has number 2, expected one in 0..1, as manifest.json lists 2 labels"
    with pytest.raises(BadInput, match=what):
        FeatureStream(tmp_path).read(5, 20)
    with pytest.raises(BadInput, match=what):
        FeatureStream(tmp_path).pool()
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    write_sealed(tmp_path / "manifest.json", {k: v for k, v in manifest.items() if k not in ("shards", "sha256")})
    with pytest.raises(BadInput, match=r"manifest.json has no 'shards'; expected width, dtype"):
        FeatureStream(tmp_path)


def test_what_was_written_is_read(tmp_path):
    x, y = make_store(tmp_path)
    stream = FeatureStream(tmp_path)
    assert len(list(tmp_path.glob("x-*.npy"))) == 5  # 100 rows each: a shard is closed with the piece that fills it
    chunk = stream.read(90, 310)  # over four shards
    assert chunk.x.dtype == np.float16
    assert (chunk.x == x[90:310]).all()
    assert chunk.y == y[90:310]
    assert stream.classes == 9
    assert not list(tmp_path.glob("*.part"))
    assert (np.load(tmp_path / "x-00001.npy") == x[100:200]).all()  # plain NumPy files


def test_labels_of_any_kind(tmp_path):
    labels = [["cat", "dog", ("a", 1), None][i % 4] for i in range(100)]
    x, _ = make_store(tmp_path, 100, labels=labels)
    assert FeatureStream(tmp_path).read(3, 9).y == labels[3:9]
    with FeatureWriter(tmp_path / "b", width=6, classes=["cat", "dog"]) as writer:
        writer.append(x[:2], ["dog", "dog"])
    assert FeatureStream(tmp_path / "b").classes == ["cat", "dog"]


def test_the_whole_of_cloc_opens_at_once_and_takes_no_memory(tmp_path):
    """37,093,769 rows of 2048 float16 numbers, in files with holes in place of the numbers."""
    rows, width, shards, left = 37_093_769, 2048, [], 37_093_769
    while left:
        n, i = min(65536, left), len(shards)
        for name, shape, dtype in ((f"x-{i:05d}.npy", (n, width), "<f2"), (f"y-{i:05d}.npy", (n,), "<i4")):
            with (tmp_path / name).open("wb") as file:
                np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
                file.truncate(file.tell() + int(np.prod(shape)) * np.dtype(dtype).itemsize)
        shards.append({"rows": n, "x": f"x-{i:05d}.npy", "y": f"y-{i:05d}.npy"})  # no checksums: taken as they are
        left -= n
    manifest = {"format": FORMAT, "width": width, "dtype": "float16", "rows": rows, "classes": 713, "labels": None}
    manifest |= {"position": rows, "skipped": 0, "complete": True, "shards": shards, "about": {}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    code = f"""
import resource, time
from prequential.streams.formats.feature_folder import FeatureStream
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
stream = FeatureStream({str(tmp_path)!r})
stream.fingerprint()
opened = time.perf_counter() - start
for position in range(0, len(stream), 1_000_000):
    assert stream.read(position, position + 256).x.shape[1] == 2048
assert stream.read({rows} - 1, {rows}).y == [0]
print(opened, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, kilobytes = map(float, done.stdout.split())
    assert seconds < 2  # seconds, on a machine that does other things too
    assert kilobytes < 30_000


def test_reading_leaves_nothing_mapped(tmp_path):
    make_store(tmp_path)
    stream = FeatureStream(tmp_path)
    chunks = [stream.read(i, i + 50) for i in range(0, 450, 10)]
    if sys.platform == "linux":
        with Path("/proc/self/maps").open() as maps:
            assert str(tmp_path) not in maps.read()
    assert len(chunks) == 45


def test_an_unfinished_store_goes_on(tmp_path):
    x, y = make_store(tmp_path / "whole", rows_per_shard=128)
    settings = {"width": 6, "rows_per_shard": 128, "classes": 9}
    for stop in (50, 150, 350, 500):
        writer = FeatureWriter(tmp_path / "parts", **settings)
        for start in range(writer.position, stop, 50):
            writer.append(x[start : start + 50], y[start : start + 50])
        writer.commit()
        if stop < 500:
            writer.append(x[:50] * 0, y[:50])  # never committed, hence forgotten
        writer.close()
        with pytest.raises(BadInput, match=f"is not finished: {stop} examples"):
            FeatureStream(tmp_path / "parts")
    FeatureWriter(tmp_path / "parts", **settings).finish()
    assert folder(tmp_path / "parts") == folder(tmp_path / "whole")


def test_interrupted_just_before_a_shard_is_closed(tmp_path, monkeypatch):
    x, y = make_store(tmp_path / "whole", 100)
    writer = FeatureWriter(tmp_path / "parts", width=6, rows_per_shard=64, classes=9)
    writer.append(x[:50], y[:50])
    monkeypatch.setattr(
        "prequential.streams.formats.feature_shards.PartFile.make_shard",
        lambda *_: (_ for _ in ()).throw(OSError("full")),
    )
    with pytest.raises(OSError, match="full"):
        writer.append(x[50:100], y[50:100])
    writer.close()
    monkeypatch.undo()
    writer = FeatureWriter(tmp_path / "parts", width=6, rows_per_shard=64, classes=9)
    assert writer.position == 100
    writer.finish()
    assert folder(tmp_path / "parts") == folder(tmp_path / "whole")


def test_killed_at_any_moment_the_files_come_out_the_same(tmp_path):
    code = """
import sys, numpy as np
from prequential.streams.formats.feature_writer import FeatureWriter
rng = np.random.default_rng(0)
x = rng.normal(size=(400, 40)).astype(np.float32)
writer = FeatureWriter(sys.argv[1], width=40, rows_per_shard=32)
print("begun", flush=True)
for start in range(writer.position, 400, 10):
    writer.append(x[start:start + 10], list(range(10)))
    writer.commit()
writer.finish()
"""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([sys.executable, "-c", code, str(whole)], check=True, capture_output=True)
    kills = 0
    for attempt in range(40):
        with subprocess.Popen([sys.executable, "-c", code, str(killed)], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(0.02 + 0.02 * (attempt % 4))
            if attempt < 5 and process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
            process.wait()
        if process.returncode == 0:
            break
    assert kills >= 2
    assert folder(killed) == folder(whole)


@pytest.mark.parametrize("small", [64 * 2**20, 0])
def test_the_fingerprint_covers_the_shards(tmp_path, small, monkeypatch):
    monkeypatch.setattr(feature_files, "SMALL", small)
    make_store(tmp_path)
    whole = FeatureStream(tmp_path).fingerprint()
    for name in ("x-00002.npy", "y-00004.npy"):
        path = tmp_path / name
        before = path.read_bytes()
        for changed in (before[:-1] + bytes([before[-1] ^ 1]), before + b"\0"):
            path.write_bytes(changed)
            assert FeatureStream(tmp_path).fingerprint() != whole
        path.write_bytes(before)
        os.utime(path, (0, 0))
        assert FeatureStream(tmp_path).fingerprint() == whole  # dates do not matter
    path.unlink()
    with pytest.raises(BadInput, match=r"y-00004.npy cannot be read: No such file"):
        FeatureStream(tmp_path).fingerprint()


@pytest.mark.parametrize("labels", [None, [f"place {i % 7}" for i in range(500)]])
def test_tasks_out_of_features(tmp_path, labels):
    x, y = make_store(tmp_path, labels=labels)
    pool, classes = FeatureStream(tmp_path).pool()
    assert classes.tolist() == y
    positions = np.array([499, 3, 120, 3, 0, 101])  # over several shards, in no order
    np.testing.assert_array_equal(pool[positions], x[positions])
    make = lambda: SplitStream(*FeatureStream(tmp_path).pool(), tasks=3, ways=4, task_length=60)  # noqa: E731
    check_stream(make, lambda: SplitStream(*FeatureStream(tmp_path).pool(), tasks=3, ways=5, task_length=60))
    rows = [np.flatnonzero((x == row).all(1))[0] for row in make().read(0, 60).x]
    assert [y[row] for row in rows] == [make().task_classes(0)[label] for label in make().read(0, 60).y]
    if sys.platform == "linux":
        with Path("/proc/self/maps").open() as maps:
            assert str(tmp_path) not in maps.read()


def test_verify_finds_a_changed_shard(tmp_path):
    make_store(tmp_path)
    stream = FeatureStream(tmp_path)
    stream.verify()
    path = tmp_path / "x-00002.npy"
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    with pytest.raises(
        BadInput, match=r"x-00002\.npy is damaged: its checksum is .*, expected .*; delete its folder and extract"
    ):
        stream.verify()


def test_bad_input(tmp_path):
    with pytest.raises(BadInput, match=r"manifest\.json does not exist"):
        FeatureStream(tmp_path)
    with pytest.raises(BadSetting, match="dtype is 'int8', expected 'float16' or 'float32'"):
        FeatureWriter(tmp_path / "a", width=2, dtype="int8")
    writer = FeatureWriter(tmp_path / "a", width=2, about={"network": "one"})
    with pytest.raises(BadInput, match=r"row 0: the features have shape \(1, 3\), expected \(1, 2\)"):
        writer.append(np.zeros((1, 3)), [0])
    with pytest.raises(BadInput, match=r"row 1: feature 0 is 100000\.0, expected a finite float16 number"):
        writer.append(np.array([[0, 0], [1e5, 0]]), [0, 0])
    writer.append(np.zeros((1, 2)), [3])
    with pytest.raises(BadInput, match="row 1: label is 'cat', expected a whole number"):
        writer.append(np.zeros((1, 2)), ["cat"])
    writer.commit()
    if sys.platform != "win32":
        with pytest.raises(BadInput, match="is being written by another process"):
            FeatureWriter(tmp_path / "a", width=2, about={"network": "one"})
    writer.close()
    with pytest.raises(BadSetting, match="was begun with width 2, not 3"):
        FeatureWriter(tmp_path / "a", width=3, about={"network": "one"})
    with pytest.raises(BadSetting, match="was begun with network 'one', not 'two'"):
        FeatureWriter(tmp_path / "a", width=2, about={"network": "two"})
    writer = FeatureWriter(tmp_path / "a", width=2, about={"network": "one"})
    writer.finish()
    assert FeatureStream(tmp_path / "a").read(0, 9).y == [3]  # nothing that was refused got in
    with pytest.raises(BadInput, match="is finished with 1 rows"):
        writer.append(np.zeros((1, 2)), [3])
    with (
        pytest.raises(BadInput, match="got no rows, and 5 examples were skipped"),
        FeatureWriter(tmp_path / "b", width=2) as empty,
    ):
        empty.append(np.zeros((0, 2)), [], skipped=5)
    np.save(tmp_path / "a" / "x-00000.npy", np.zeros((1, 2), np.float32))
    seal_again(tmp_path / "a")
    with pytest.raises(BadInput, match=r"is float32 \(1, 2\), expected float16 \(1, 2\)"):
        FeatureStream(tmp_path / "a").read(0, 1)
    (tmp_path / "a" / "manifest.json").write_bytes(seal({"format": "other"}))
    with pytest.raises(BadInput, match="has format 'other', expected 'prequential-features-1'"):
        FeatureStream(tmp_path / "a")


def folder(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}
