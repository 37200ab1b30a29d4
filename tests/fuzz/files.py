"""Damaged data files: one small good file of each kind, changed at random, opened and read.

    python tests/fuzz/files.py --seed 0 --count 300 --kinds arrow parquet

Each case must be accepted or give one sentence. `cases` is for other fuzzers, which judge what is raised themselves.
"""

from __future__ import annotations

import argparse
import gzip
import io
import itertools
import json
import os
import pickle
import random
import sys
import tarfile
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LONGEST = 300  # characters of a sentence
ROWS = 60


@dataclass
class Good:
    """A good file: what is changed, and what is opened."""

    file: str  # below a folder of its own
    spec: str = ""  # `{}` stands for that folder; by default the file itself
    options: dict[str, Any] = field(default_factory=dict)


def make_all(folder: Path) -> dict[str, Good]:
    """Writes a good file of each kind, each in a folder that is called after the kind."""
    made = {}
    for name, make in MAKERS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        made[name] = make(folder / name)
    return made


def table(rows: int = ROWS) -> pa.Table:
    """A table with a column of every type that files may hold."""
    rng = np.random.default_rng(0)
    texts = [None if i % 7 == 3 else f"city {i % 5}" for i in range(rows)]
    return pa.table(
        {
            "number": pa.array(rng.normal(size=rows)),
            "whole": pa.array([None if i % 11 == 5 else i for i in range(rows)], pa.int32()),
            "flag": pa.array([i % 3 == 0 for i in range(rows)]),
            "text": pa.array(texts),
            "long": pa.array(texts, pa.large_string()),
            "coded": pa.array(texts).dictionary_encode(),
            "when": pa.array([1_600_000_000_000_000 + i for i in range(rows)], pa.timestamp("us")),
            "vector": pa.array([[float(i), 1.0, 2.0] for i in range(rows)]),
            "fixed": pa.array([[float(i), 1.0] for i in range(rows)], pa.list_(pa.float32(), 2)),
            "label": pa.array([f"class {i % 4}" for i in range(rows)]),
        }
    )


def picture(kind: str, seed: int = 0, **options: Any) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (12, 10, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def _arrow(folder: Path, rows: pa.Table, *, compression: str | None = None, stream: bool = False) -> Good:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(folder / "t.arrow"), "wb") as file, new(file, rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=25)
    return Good("t.arrow", options={"label": "label"})


def _parquet(folder: Path, compression: str, **options: Any) -> Good:
    pq.write_table(table(), folder / "t.parquet", compression=compression, row_group_size=25, **options)
    return Good("t.parquet", options={"label": "label"})


def _csv(folder: Path, name: str, codec: str | None = None) -> Good:
    rows = table().drop_columns(["vector", "fixed"])
    lines = [",".join(rows.schema.names)]
    lines += [",".join("" if value is None else f'"{value}"' for value in row.values()) for row in rows.to_pylist()]
    with pa.output_stream(str(folder / name), compression=codec) as file:
        file.write(("\n".join(lines) + "\n").encode())
    return Good(name, options={"label": "label"})


def _npz(folder: Path, save: Callable[..., None]) -> Good:
    save(folder / "a.npz", x=np.arange(120.0).reshape(40, 3), y=np.arange(40) % 3, when=np.arange(40))
    return Good("a.npz", options={"time": "when"})


def _npy(folder: Path) -> Good:
    np.save(folder / "a.npy", np.arange(160.0).reshape(40, 4))
    return Good("a.npy")


def _yfcc(folder: Path) -> Good:
    time = 1_300_000_000 + np.arange(40) * 60
    np.savez_compressed(folder / "y.npz", y=np.arange(40) % 4, user=np.arange(40) % 3, time=time, classes=np.arange(4))
    return Good("y.npz", "yfcc:{}/y.npz")


def _images(folder: Path, kind: str, **options: Any) -> Good:
    for i in range(3):
        (folder / f"class {i % 2}").mkdir(exist_ok=True)
        (folder / f"class {i % 2}" / f"{i}.{kind}").write_bytes(picture(kind, i, **options))
    return Good(f"class 1/1.{kind}", "images:{}", {"size": 8, "workers": 1})


def _image_table(folder: Path) -> Good:
    images = [{"bytes": picture("png", i), "path": None} for i in range(4)]
    return _arrow(folder, pa.table({"image": images, "label": [0, 1, 0, 1]}))


def _cifar_part(rows: int) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 9, (rows, 3072), np.uint8)
    return pickle.dumps({b"data": pixels, b"fine_labels": [i % 10 for i in range(rows)]}, protocol=2)


def _cifar(folder: Path, packed: bool) -> Good:
    with tarfile.open(folder / "c.tar", "w:gz" if packed else "w") as archive:
        for name in ("train", "test"):
            data = _cifar_part(4)
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return Good("c.tar", "cifar100:{}/c.tar", {"tasks": 2, "ways": 2, "task_length": 4})


def _cifar_pickle(folder: Path) -> Good:
    for name in ("train", "test"):
        (folder / name).write_bytes(_cifar_part(4))
    return Good("train", "cifar100:{}", {"tasks": 2, "ways": 2, "task_length": 4})


def _emnist(folder: Path) -> Good:
    for part in ("train", "test"):
        images = b"\0\0\x08\x03" + np.array([6, 28, 28], ">u4").tobytes() + bytes(range(6)) * 784
        labels = b"\0\0\x08\x01" + np.array([6], ">u4").tobytes() + bytes([0, 1, 2, 0, 1, 2])
        for kind, data in (("images-idx3", images), ("labels-idx1", labels)):
            (folder / f"emnist-balanced-{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(data, mtime=0))
    return Good("emnist-balanced-train-images-idx3-ubyte.gz", "emnist:{}", {"tasks": 2, "ways": 2, "task_length": 4})


def _features(folder: Path, changed: str) -> Good:
    from prequential.streams.formats.feature_writer import FeatureWriter

    with FeatureWriter(folder, width=3, rows_per_shard=20) as writer:
        for start in range(0, 40, 10):
            writer.append(np.full((10, 3), start / 10), [f"class {i % 3}" for i in range(10)])
    return Good(changed, "{}")


def _hugging_face(folder: Path, changed: str) -> Good:
    rows = pa.table({"a": np.arange(30.0), "label": np.arange(30) % 3})
    with pa.OSFile(str(folder / "data-0.arrow"), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=10)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}], "_split": None}))
    info = {"features": {"label": {"names": ["x", "y", "z"], "_type": "ClassLabel"}, "a": {"_type": "Value"}}}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return Good(changed, "{}")


def _cloc(folder: Path, kind: str) -> Good:
    (folder / "photos").mkdir(exist_ok=True)
    names = [f"{i}.jpg" for i in range(6)]
    for i, name in enumerate(names):
        (folder / "photos" / name).write_bytes(picture("jpeg", i))
    options = {"images": str(folder / "photos"), "size": 8, "workers": 1}
    if kind == "npz":
        arrays = {"label": np.arange(6) % 3, "time": np.arange(6), "user": np.arange(6), "path": np.array(names)}
        np.savez_compressed(folder / "m.npz", **arrays)
        return Good("m.npz", "cloc:{}/m.npz", options)
    if kind == "torch":
        import torch

        torch.save(torch.arange(6) % 3, folder / "train_labels.torchSave")
        torch.save(torch.arange(6), folder / "train_time.torchSave")
        torch.save(torch.arange(6), folder / "train_userID.torchSave")
        torch.save(names, folder / "train_store_loc.torchSave")
        return Good("train_labels.torchSave", "cloc:{}", options)
    (folder / "m.txt").write_text("".join(f"{i % 3},{i},user {i},{name}\n" for i, name in enumerate(names)))
    return Good("m.txt", "cloc:{}/m.txt", options)


MAKERS: dict[str, Callable[[Path], Good]] = {
    "arrow": lambda folder: _arrow(folder, table()),
    "arrow lz4": lambda folder: _arrow(folder, table(), compression="lz4"),
    "arrow zstd": lambda folder: _arrow(folder, table(), compression="zstd"),
    "arrow stream": lambda folder: _arrow(folder, table().drop_columns(["coded"]), stream=True),
    "arrow stream coded": lambda folder: _arrow(folder, table(), stream=True),
    "arrow images": _image_table,
    "parquet": lambda folder: _parquet(folder, "none"),
    "parquet snappy": lambda folder: _parquet(folder, "snappy"),
    "parquet zstd": lambda folder: _parquet(folder, "zstd", data_page_version="2.0"),
    "parquet plain": lambda folder: _parquet(folder, "gzip", use_dictionary=False),
    "csv": lambda folder: _csv(folder, "t.csv"),
    "csv gz": lambda folder: _csv(folder, "t.csv.gz", "gzip"),
    "csv zst": lambda folder: _csv(folder, "t.csv.zst", "zstd"),
    "csv bz2": lambda folder: _csv(folder, "t.csv.bz2", "bz2"),
    "csv lz4": lambda folder: _csv(folder, "t.csv.lz4", "lz4"),
    "npz": lambda folder: _npz(folder, np.savez),
    "npz packed": lambda folder: _npz(folder, np.savez_compressed),
    "npy": _npy,
    "yfcc": _yfcc,
    "png": lambda folder: _images(folder, "png"),
    "jpeg": lambda folder: _images(folder, "jpeg"),
    "gif": lambda folder: _images(folder, "gif"),
    "webp": lambda folder: _images(folder, "webp"),
    "bmp": lambda folder: _images(folder, "bmp"),
    "tiff": lambda folder: _images(folder, "tiff", compression="tiff_lzw"),
    "ppm": lambda folder: _images(folder, "ppm"),
    "cifar": lambda folder: _cifar(folder, False),
    "cifar gz": lambda folder: _cifar(folder, True),
    "cifar pickle": _cifar_pickle,
    "emnist": _emnist,
    "features manifest": lambda folder: _features(folder, "manifest.json"),
    "features x": lambda folder: _features(folder, "x-00000.npy"),
    "features y": lambda folder: _features(folder, "y-00001.npy"),
    "hugging face state": lambda folder: _hugging_face(folder, "state.json"),
    "hugging face info": lambda folder: _hugging_face(folder, "dataset_info.json"),
    "hugging face data": lambda folder: _hugging_face(folder, "data-0.arrow"),
    "cloc text": lambda folder: _cloc(folder, "text"),
    "cloc npz": lambda folder: _cloc(folder, "npz"),
    "cloc torch": lambda folder: _cloc(folder, "torch"),
}


# Damage.


def flip(data: bytearray, rng: random.Random) -> str:
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    return f"bit flipped in byte {at}"


def replace(data: bytearray, rng: random.Random) -> str:
    at, value = rng.randrange(len(data)), rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    data[at] = value
    return f"byte {at} set to {value}"


def truncate(data: bytearray, rng: random.Random) -> str:
    at = rng.randrange(len(data))
    del data[at:]
    return f"cut after {at} bytes"


def repeat_block(data: bytearray, rng: random.Random) -> str:
    at, size = rng.randrange(len(data)), rng.randint(1, 64)
    data[at:at] = data[at : at + size]
    return f"{size} bytes at {at} doubled"


def zero_block(data: bytearray, rng: random.Random) -> str:
    at, size = rng.randrange(len(data)), rng.randint(1, 64)
    data[at : at + size] = bytes(len(data[at : at + size]))
    return f"{size} bytes at {at} zeroed"


def insert(data: bytearray, rng: random.Random) -> str:
    at, fresh = rng.randrange(len(data)), rng.randbytes(rng.randint(1, 16))
    data[at:at] = fresh
    return f"{fresh.hex()} inserted at {at}"


def write_number(data: bytearray, rng: random.Random) -> str:
    """Four or eight bytes become a number that is large, negative or just off: lengths, counts and offsets."""
    size = rng.choice((4, 8))
    at = rng.randrange(max(1, len(data) - size)) & ~(rng.choice((1, 4, 8)) - 1)
    value = rng.choice((-1, -(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1, 2**31 - 1, 2**20, 2**27, len(data)))
    data[at : at + size] = value.to_bytes(8, "little", signed=True)[:size]
    return f"{value} written at {at}"


DAMAGE = (flip, flip, flip, replace, truncate, repeat_block, zero_block, insert, write_number, write_number)


def mutate(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """The data with one to three kinds of damage, and what was done."""
    changed, done = bytearray(data), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if changed:
            done.append(rng.choice(DAMAGE)(changed, rng))
    return ", ".join(done), bytes(changed)


def read_all(spec: str, options: dict[str, Any]) -> None:
    """Opens a stream and reads all of it, as a run would."""
    from prequential.streams.open import open_stream

    stream = open_stream(spec, **options)
    stream.fingerprint()
    stream.task_starts()
    for start in range(0, min(len(stream), 4096), 32):
        stream.read(start, start + 32)


def cases(
    seed: int, kinds: Sequence[str] | None = None, folder: Path | None = None
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Damaged files without end: what was done to which kind of file, and what opens and reads it."""
    folder = folder or Path(tempfile.mkdtemp(prefix="damaged-"))
    made = make_all(folder)
    whole = {name: (folder / name / good.file).read_bytes() for name, good in made.items()}
    for number in itertools.count():
        for name in kinds or made:
            rng = random.Random(f"{seed} {name} {number}")
            good, path = made[name], folder / name / made[name].file
            done, data = mutate(whole[name], rng)
            spec = good.spec.format(folder / name) or str(path)

            def run(
                path: Path = path, data: bytes = data, name: str = name, spec: str = spec, good: Good = good
            ) -> None:
                path.write_bytes(data)
                try:
                    read_all(spec, good.options)
                finally:
                    path.write_bytes(whole[name])

            yield f"{name} {number}: {done}", run


def main() -> int:
    from prequential.errors import PrequentialError

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300, help="how many for each kind")
    parser.add_argument("--kinds", nargs="+", choices=list(MAKERS))
    parser.add_argument("--last", type=Path, help="where each case is noted before it runs, to find a crash")
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    wrong: dict[str, str] = {}  # the first case of each kind of failure
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PREQUENTIAL_CACHE"] = f"{folder}/cache"
        kinds = given.kinds or list(MAKERS)
        for what, run in itertools.islice(cases(given.seed, kinds, Path(folder) / "files"), given.count * len(kinds)):
            kind = what.split(":")[0].rstrip("0123456789 ")
            if given.last:
                given.last.write_text(what)
            try:
                run()
                counts["accepted"] += 1
            except PrequentialError as error:
                good = len(str(error)) <= LONGEST and "\n" not in str(error)
                counts["refused" if good else "refused at length"] += 1
                if not good:
                    wrong.setdefault(f"{kind} at length", f"{what}: {error!s:.600}")
            except Exception as error:
                counts["raw"] += 1
                place = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(place.filename).name}:{place.lineno}"
                wrong.setdefault(f"{kind} {type(error).__name__} {where}", f"{what}: {error!s:.200}")
    print(dict(counts))
    for kind, what in wrong.items():
        print(f"- {kind}: {what}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
