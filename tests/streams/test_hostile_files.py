"""Files that were made to crash a reader or to fill the memory: each gets one sentence, at once and in little memory.

Each is small, is read in another process under a limit of memory, and would take gigabytes or end the process if what it
says were believed.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

MOST = 300 * 2**20  # bytes by which the memory of the reader may grow

READER = """
import json, os, resource, sys, time
from prequential.errors import PrequentialError
from prequential.streams.open import open_stream
import numpy, pyarrow.parquet, pyarrow.csv, PIL.Image, prequential.streams.formats.images, prequential.streams.datasets.cifar

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def size():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

resource.setrlimit(resource.RLIMIT_AS, (size() + 3 * 2**30,) * 2)
for line in sys.stdin:
    spec, options = json.loads(line)
    before, start = peak(), time.process_time()
    try:
        stream = open_stream(spec, **options)
        stream.fingerprint()
        for at in range(0, min(len(stream), 4096), 64):
            stream.read(at, at + 64)
        said = "accepted"
    except PrequentialError as error:
        said = "refused: " + str(error)
    print(json.dumps([said, peak() - before, time.process_time() - start]), flush=True)
"""


class Reader:
    """Another process that reads files; one that ends is noticed."""

    def __init__(self, cache: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", READER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PREQUENTIAL_CACHE": str(cache)},
        )

    def __call__(self, spec: str | Path, **options: object) -> str:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([str(spec), options]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the reader of {spec} ended with {self._process.wait()}"
        said, grown, seconds = json.loads(line)
        assert grown < MOST, f"{said}: {grown} bytes"
        assert seconds < 20  # of processor time
        assert len(said) <= len("refused: ") + 300
        assert "\n" not in said
        return said

    def end(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    reader = Reader(tmp_path_factory.mktemp("cache"))
    yield reader
    reader.end()


def write_arrow(path: Path, rows: pa.Table | pa.RecordBatch, *, stream: bool = False, **options) -> Path:
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    settings = pa.ipc.IpcWriteOptions(**options)
    with pa.OSFile(str(path), "wb") as file, new(file, rows.schema, options=settings) as writer:
        writer.write(rows)
    return path


def offsets(count: int, size: type, wrong: int) -> pa.Buffer:
    """Where texts of one byte begin, one of them far away."""
    places = np.arange(count + 1, dtype=size)
    places[count // 2] = wrong
    return pa.py_buffer(places)


def bad_columns() -> dict[str, pa.Array]:
    """Columns of 10 rows in which something points far beyond what is there."""
    data = pa.py_buffer(b"0123456789")
    made = {}
    for wrong in (2**30, -(2**30)):
        for found, size in ((pa.string(), np.int32), (pa.binary(), np.int32), (pa.large_string(), np.int64)):
            made[f"{found} {wrong}"] = pa.Array.from_buffers(found, 10, [None, offsets(10, size, wrong), data])
        floats = pa.array(np.arange(10.0))
        places = [None, offsets(10, np.int32, wrong)]
        made[f"list {wrong}"] = pa.Array.from_buffers(pa.list_(pa.float64()), 10, places, children=[floats])
        made[f"struct {wrong}"] = pa.StructArray.from_arrays(
            [pa.Array.from_buffers(pa.binary(), 10, [None, offsets(10, np.int32, wrong), data])], ["bytes"]
        )
        indices = np.full(10, 0, np.int32)
        indices[5] = wrong
        made[f"dictionary {wrong}"] = pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(["a"]), safe=False)
    made["no text"] = pa.Array.from_buffers(
        pa.string(), 10, [None, offsets(10, np.int32, 5), pa.py_buffer(b"\xff" * 10)]
    )
    return made


@pytest.mark.parametrize("stream", [False, True])
def test_arrow_columns_that_point_beyond_their_end(read, tmp_path, stream):
    for i, (name, column) in enumerate(bad_columns().items()):
        rows = pa.record_batch({"a": np.arange(10.0), "b": column, "label": np.arange(10) % 2})
        path = write_arrow(tmp_path / f"{i}.arrow", rows, stream=stream)
        said = read(path, label="label")
        if name == "no text":
            assert said.startswith("refused: "), name
        else:
            assert "is damaged" in said or "cannot be read" in said, f"{name}: {said}"
        bad_label = pa.record_batch({"a": np.arange(10.0), "label": column})
        assert read(write_arrow(path, bad_label, stream=stream)).startswith("refused: "), name


def test_arrow_files_that_claim_rows(read, tmp_path):
    rows = 3456
    whole = write_arrow(
        tmp_path / "t.arrow", pa.record_batch({"a": np.zeros(rows), "label": np.zeros(rows)})
    ).read_bytes()
    assert whole.count(struct.pack("<q", rows)) >= 3
    for claim in (2**62, -5, rows + 1000):
        (tmp_path / "t.arrow").write_bytes(whole.replace(struct.pack("<q", rows), struct.pack("<q", claim)))
        assert read(tmp_path / "t.arrow").startswith("refused: ")
    nothing = write_arrow(tmp_path / "n.arrow", pa.record_batch({"a": pa.nulls(rows), "label": pa.nulls(rows)}))
    assert "3456 rows in 0 bytes" in read(nothing)


def test_arrow_files_that_swell(read, tmp_path):
    zeros = pa.record_batch({"a": np.zeros(12_000_000), "label": np.zeros(12_000_000)})
    for codec in ("zstd", "lz4"):
        path = write_arrow(tmp_path / f"{codec}.arrow", zeros, compression=codec)
        assert path.stat().st_size < 2**20
        assert "holds a batch that unpacks to 192000000 bytes, more than max_bytes" in read(path)
    small = write_arrow(tmp_path / "s.arrow", zeros.slice(0, 20_000), compression="zstd")
    assert read(small) == "accepted"
    assert "more than max_bytes (1000)" in read(small, max_bytes=1000)


def test_one_long_text_for_many_rows(read, tmp_path):
    """4096 rows of 4 MB each would be 16 GB."""
    text = "x" * 4_000_000
    numbers = np.arange(4096.0)
    coded = pa.DictionaryArray.from_arrays(pa.array(np.zeros(4096, np.int32)), pa.array([text]))
    view = struct.pack("<i4sii", len(text), b"xxxx", 0, 0)  # length, first bytes, which buffer, where in it
    views = pa.Array.from_buffers(
        pa.string_view(), 4096, [None, pa.py_buffer(view * 4096), pa.py_buffer(text.encode())]
    )
    for i, (column, stream) in enumerate(((coded, False), (coded, True), (views, False))):
        path = write_arrow(tmp_path / f"{i}.arrow", pa.record_batch({"a": numbers, "label": column}), stream=stream)
        assert "more than max_bytes" in read(path)
    frame = pa.table({"a": numbers, "label": pa.array([text] * 40 + ["y"] * 4056)})
    pq.write_table(frame, tmp_path / "t.parquet", compression="zstd")
    assert "more than max_bytes" in read(tmp_path / "t.parquet")


def test_parquet_files_that_swell(read, tmp_path):
    zeros = pa.table({"a": np.zeros(12_000_000), "label": np.zeros(12_000_000)})
    options = {"compression": "zstd", "use_dictionary": False, "data_page_size": 2**30, "max_rows_per_page": 2**30}
    pq.write_table(zeros, tmp_path / "t.parquet", row_group_size=2**30, write_batch_size=2**30, **options)
    assert (tmp_path / "t.parquet").stat().st_size < 2**20
    assert "holds a page that unpacks to 9600" in read(tmp_path / "t.parquet")
    pq.write_table(
        zeros.slice(0, 2_000_000), tmp_path / "r.parquet", row_group_size=2**30
    )  # run lengths: fine as it is, block by block
    assert read(tmp_path / "r.parquet") == "accepted"
    assert "holds a row group that unpacks to 32000000 bytes" in read(tmp_path / "r.parquet", max_bytes=10**7)
    lists = pa.table({"v": pa.array([[0.0] * 20_000_000, [0.0]]), "label": [0, 1]})
    pq.write_table(lists, tmp_path / "l.parquet", compression="zstd")
    assert "more than max_bytes" in read(tmp_path / "l.parquet")


def tar_of(path: Path, **members: bytes) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_archives_of_cifar_that_swell(read, tmp_path):
    path = tar_of(tmp_path / "a.tar.gz", train=bytes(90_000_000), test=b"")
    assert path.stat().st_size < 2**20
    assert "more than max_bytes (67108864)" in read(f"cifar100:{path}")
    member = tarfile.TarInfo("train")
    member.size = 2**40
    (tmp_path / "b.tar").write_bytes(member.tobuf() + bytes(1024))
    assert "1099511627776 bytes, more than max_bytes" in read(f"cifar100:{tmp_path / 'b.tar'}")
    header = tarfile.TarInfo("././@PaxHeader")
    header.size, header.type = 90_000_000, tarfile.XHDTYPE
    (tmp_path / "c.tar.gz").write_bytes(gzip.compress(header.tobuf() + bytes(90_000_000), 1))
    assert "more than max_bytes" in read(f"cifar100:{tmp_path / 'c.tar.gz'}")
    for content in (b"\x80\x02" + b"]" * 3_000_000 + b".", b"\x80\x02" + b"}" * 3_000_000 + b"."):
        assert "more than 1048576 instructions" in read(f"cifar100:{tar_of(path, train=content, test=b'')}")
    nested = b"\x80\x02})" + b"\x85" * 500_000 + b"K\x01s."  # a key whose hash would end the process
    assert "a key of type tuple" in read(f"cifar100:{tar_of(path, train=nested, test=b'')}")


def test_images_that_swell(read, tmp_path):
    from PIL import Image

    huge, large = io.BytesIO(), io.BytesIO()
    Image.new("1", (30_000, 30_000)).save(huge, "png")
    Image.new("RGBA", (5_700, 5_700)).save(large, "png", compress_level=1)
    for i in range(8):
        for name, data in (("huge", huge), ("large", large)):
            (tmp_path / name / f"{i % 2}").mkdir(parents=True, exist_ok=True)
            if name == "huge" or i < 2:
                (tmp_path / name / f"{i % 2}" / f"{i}.png").write_bytes(data.getvalue())
    assert len(huge.getvalue()) < 481_000
    for options in ({}, {"size": 16}):
        assert "more pixels than max_pixels (33554432)" in read(f"images:{tmp_path / 'huge'}", **options)
    assert "too many for a size of all images; say which" in read(f"images:{tmp_path / 'large'}")
    assert read(f"images:{tmp_path / 'large'}", size=16, workers=4) == "accepted"
    assert "it has 5700×5700 pixels, more than max_pixels (1000000)" in read(
        f"images:{tmp_path / 'large'}", size=16, max_pixels=10**6
    )
    table = pa.record_batch({"image": [huge.getvalue()] * 8, "label": [0, 1] * 4})
    assert "more pixels than max_pixels" in read(write_arrow(tmp_path / "t.arrow", table))


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def test_pictures_with_more_than_pixels(read, tmp_path):
    """Text and color profiles that swell, other kinds of files under the name of a picture, many frames."""
    from PIL import Image

    out = io.BytesIO()
    Image.new("L", (8, 8)).save(out, "png")
    plain, swelling = out.getvalue(), zlib.compress(bytes(100_000_000), 1)
    frames = io.BytesIO()
    pictures = [Image.new("L", (200, 200), i % 256) for i in range(200)]
    pictures[0].save(frames, "gif", save_all=True, append_images=pictures[1:])
    cases = {
        "text.png": plain[:33] + chunk(b"zTXt", b"Comment\0\0" + swelling) + plain[33:],
        "profile.png": plain[:33] + chunk(b"iCCP", b"name\0\0" + swelling) + plain[33:],
        "program.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(touched) (w) file\n",
        "frames.gif": frames.getvalue(),
    }
    for name, content in cases.items():
        folder = tmp_path / name / "class"
        folder.mkdir(parents=True)
        (folder / name).write_bytes(content)
        said = read(f"images:{folder.parent}", size=8)
        assert said == "accepted" or "cannot be decoded" in said
        if name == "program.png":
            assert "cannot identify image file" in said


def npy(descr: object, shape: object, *, fortran: bool = False, data: bytes = b"\0" * 64) -> bytes:
    header = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


ARRAYS = {
    "many": (npy("<f8", (10**12, 3)), "takes 24000000000000 bytes, but the file holds 64"),
    "overflow": (npy("<f8", (2**33, 2**33)), "but the file holds 64"),
    "negative": (npy("<f8", (-1, 8)), "shape (-1, 8), expected whole numbers"),
    "wide": (npy("|V2147483647", (3,)), "but the file holds 64"),
    "texts": (npy("<U536870911", (3,)), "but the file holds 64"),
    "fortran": (npy("<f8", (10**9, 9), fortran=True), "but the file holds 64"),
    "objects": (npy("|O", (3,), data=b"cos\nsystem\n(S'touch ran'\ntR."), "Python objects, which are never unpickled"),
    "no header": (b"\x93NUMPY\x01\x00\xff\xff{", "is no NumPy file that can be read"),
    "deep": (npy("(" * 5000, (3,)), "is no NumPy file that can be read"),
    "true": (npy("<f8", (True, 8)), "expected whole numbers"),
}


def test_arrays_that_claim_more_than_there_is(read, tmp_path):
    for name, (content, sentence) in ARRAYS.items():
        (tmp_path / "a.npy").write_bytes(content)
        assert sentence in read(tmp_path / "a.npy"), name
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
                archive.writestr("x.npy", content)
                archive.writestr("y.npy", npy("<i8", (8,)))
            assert sentence in read(tmp_path / "a.npz"), name
    assert not Path("ran").exists()


def test_archives_of_arrays_that_swell(read, tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((400_000, 40), np.float64), y=np.zeros(400_000, np.int8))
    assert path.stat().st_size < 2**20
    assert read(path) == "accepted"  # unpacked on disk
    assert "unpacks to 128400" in read(path, max_bytes=10**6)
    whole = path.read_bytes()
    claimed = next(info.file_size for info in zipfile.ZipFile(path).infolist() if info.filename == "x.npy")
    path.write_bytes(whole.replace(struct.pack("<I", claimed), struct.pack("<I", 2**32 - 2)))
    assert "more than max_bytes" in read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy("<f8", (8,)))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("x.npy", npy("<f8", (8,)))
    assert "two arrays called 'x'" in read(path)


def test_files_of_emnist_that_swell(read, tmp_path):
    names = [
        f"emnist-balanced-{part}-{kind}-ubyte.gz"
        for part in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    ]
    for name in names:
        (tmp_path / name).write_bytes(
            gzip.compress(b"\0\0\x08\x03" + bytes(90_000_000), 1) if name == names[0] else b""
        )
    assert "more than max_bytes (67108864)" in read(f"emnist:{tmp_path}")
    (tmp_path / names[0]).write_bytes(gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12))
    assert "holds 0 values, expected 79228162458924105385300197375" in read(f"emnist:{tmp_path}")
    (tmp_path / names[0]).write_bytes(gzip.compress(b"\0\0\x08\xff" + b"\xff\xff\xff\xff" * 255))
    assert read(f"emnist:{tmp_path}").startswith("refused: ")


def test_tables_of_text_that_swell(read, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,label\n1,0\n" + b"x" * 90_000_000)
    assert "the row does not end within" in read(path)
    path.write_bytes(b'a,label\n1,"' + b"0\n" * 45_000_000)
    assert "the row does not end within" in read(path)
    path.write_bytes(b"a,label\n" + b"1,0\n" * 5_000_000 + (b"x" * 100_000 + b",1\n") * 800)
    assert "expected at most 67108864 for" in read(path)
    path.write_bytes(b"a,label\n1,0\n2,\0\n3,1\n")
    assert "holds zero bytes" in read(path)
    packed = tmp_path / "p.csv.gz"
    packed.write_bytes(gzip.compress(b"a,label\n1,0\n" + b"\n" * 5_000_000 + b'2,"' + b'"' * 6_000_000 + b'"\n', 1))
    assert "more than max_bytes (1000000)" in read(packed, max_bytes=10**6)
    assert read(packed) == "accepted"
    with pa.output_stream(str(tmp_path / "z.csv.zst"), compression="zstd") as file:
        for _ in range(1100):
            file.write(b"1,0\n" * 2**18)
    assert (tmp_path / "z.csv.zst").stat().st_size < 2**20
    assert "more than max_bytes (1073741824)" in read(tmp_path / "z.csv.zst")


def test_a_hundred_thousand_columns(read, tmp_path):
    names = [f"column{i}" for i in range(100_000)]
    (tmp_path / "t.csv").write_text(",".join(names) + "\n" + ",".join("1" * 100_000) + "\n")
    assert "has 100000 columns, expected at most 32768" in read(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text(",".join(names[:9000]) + "\n" + ",".join("1" * 9000) + "\n")
    assert "has no column 'nothing'; its columns are column0, " in read(tmp_path / "t.csv", label="nothing")
    (tmp_path / "u.csv").write_text(",".join(names[:9000] + names[:1]) + "\n")
    assert "two columns called 'column0'" in read(tmp_path / "u.csv")


DEEP = "[" * 200_000
MANIFESTS = {
    "rows": ({"rows": 10**15}, "the shards have 2 rows, expected"),
    "width": ({"width": 2**62}, "expected float16 (2, "),
    "a shard elsewhere": ({"shards": [{"rows": 2, "x": "../../x.npy", "y": "y.npy"}]}, "the name of a file beside it"),
    "many rows": (
        {"rows": 10**15, "shards": [{"rows": 10**15, "x": "x-00000.npy", "y": "y-00000.npy"}]},
        "expected float16 (10000",
    ),
    "no rows": ({"rows": -2, "shards": [{"rows": -2, "x": "x-00000.npy", "y": "y-00000.npy"}]}, "rows is -2"),
    "type": ({"dtype": "O"}, "dtype is 'O'"),
    "labels": ({"labels": {"a": 1}}, "labels is {'a': 1}"),
    "shards": ({"shards": [1]}, "shard 0 is 1"),
}


def test_features_whose_manifest_lies(read, tmp_path):
    from prequential.storage.sealed import seal
    from prequential.streams.formats.feature_writer import FeatureWriter

    with FeatureWriter(tmp_path, width=3) as writer:
        writer.append(np.ones((2, 3)), [0, 1])
    whole = json.loads((tmp_path / "manifest.json").read_text())
    del whole["sha256"]
    assert read(tmp_path) == "accepted"
    for name, (change, sentence) in MANIFESTS.items():
        (tmp_path / "manifest.json").write_bytes(seal(whole | change))
        assert sentence in read(tmp_path), name
    for content in (DEEP, '{"format": ' + DEEP, "\ufeff{}", '{"format": ' + "9" * 10_000 + "}"):
        (tmp_path / "manifest.json").write_text(content)
        assert read(tmp_path).startswith("refused: ")


def test_saved_data_sets_that_lie(read, tmp_path):
    write_arrow(tmp_path / "data.arrow", pa.record_batch({"a": [1.0], "label": [0]}), stream=True)
    state = tmp_path / "state.json"
    for name, sentence in {
        "../data.arrow": "the name of a file beside it",
        "b.arrow": "holds no such file",
        3: "lists 3",
    }.items():
        state.write_text(json.dumps({"_data_files": [{"filename": name}]}))
        assert sentence in read(tmp_path)
    for content in (DEEP, '{"_data_files": ' + DEEP, '{"_data_files": 5}', '{"_data_files": ["a", {}]}'):
        state.write_text(content)
        assert read(tmp_path).startswith("refused: ")
    state.write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    for info in (DEEP, "[]", '{"features": []}', '{"features": {"label": 3}}'):
        (tmp_path / "dataset_info.json").write_text(info)
        assert ("nested too deeply" if info == DEEP else "accepted") in read(tmp_path)
