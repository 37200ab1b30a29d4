"""Image streams as sources of features: those that can be tried are not wrapped, and lose nothing by it."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("PIL")

from PIL import Image

from prequential.errors import BadInput
from prequential.features import Network, extract
from prequential.features.image_records import StreamRecords, as_records, check_still_there
from prequential.streams.formats.images import ImageStream

BAD = {0: b"", 5: b"no picture", 11: None}  # None: gone
GOOD = [i for i in range(20) if i not in BAD]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PREQUENTIAL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path):
    for i in range(20):
        path = tmp_path / "photos" / "ab"[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6), (10 * i, 0, 0)).save(path)
        if BAD.get(i) is not None:
            path.write_bytes(BAD[i])
    return tmp_path / "photos"


def in_folder(photos, **options):
    (photos / "b" / "11.png").write_bytes(b"\x89PNG\r\n")  # a folder lists what is there
    return ImageStream(photos, size=6, **options)


def in_manifest(photos, **options):
    (photos / "b" / "11.png").unlink(missing_ok=True)
    lines = [f"photos/{'ab'[i % 2]}/{i:02}.png,{'ab'[i % 2]},{i}\n" for i in reversed(range(20))]
    (photos.parent / "list.csv").write_text("path,label,time\n" + "".join(lines))
    return ImageStream(photos.parent / "list.csv", size=6, **options)


def in_table(photos, **options):
    images = [(photos / "ab"[i % 2] / f"{i:02}.png").read_bytes() if i != 11 else None for i in range(20)]
    table = pa.table({"image": [{"bytes": image, "path": None} for image in images], "label": list("ab" * 10)})
    pq.write_table(table, photos.parent / "table.parquet", row_group_size=7)
    return ImageStream(photos.parent / "table.parquet", size=6, **options)


SOURCES = pytest.mark.parametrize("source", [in_folder, in_manifest, in_table])


def red():
    return Network("red", lambda x: x.mean((2, 3))[:, :1] * 255, width=1, size=6, mean=(0, 0, 0), std=(1, 1, 1))


@SOURCES
def test_bad_images_are_skipped(source, photos, tmp_path):
    stream = source(photos)
    assert as_records(stream) is stream
    calls = []
    found = extract(stream, red(), tmp_path / "out", batch=4, dtype="float32", progress=lambda *n: calls.append(n))
    chunk = found.read(0, len(found))
    assert np.round(chunk.x[:, 0]).tolist() == [10 * i for i in GOOD]
    assert chunk.y == ["ab"[i % 2] for i in GOOD]
    assert found.manifest["skipped"] == len(BAD)
    assert found.manifest["about"]["skipped by the source"] == 0
    assert calls[-1] == (20, 20, 3)
    lines = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    assert [line["position"] for line in lines] == list(BAD)
    assert "expected an image" in lines[1]["reason"]
    assert np.load(tmp_path / "out" / "position.npy").tolist() == GOOD
    beside = {path.name for path in (tmp_path / "out").glob("*.npy")}
    assert beside == {"position.npy", "x-00000.npy", "y-00000.npy"}  # no columns and no tasks are known


@SOURCES
def test_the_same_as_read_one_by_one(source, photos):
    stream = source(photos)
    for start, stop in ((0, 20), (0, 1), (4, 7), (11, 12), (18, 30)):
        images, labels, bad = stream.attempt(start, stop)
        others = StreamRecords(stream).attempt(start, stop)
        assert (labels, bad) == (others[1], others[2])
        assert len(images) == len(labels)
        if len(labels):
            np.testing.assert_array_equal(images, others[0])


@SOURCES
def test_what_the_source_left_out_is_told(source, photos, tmp_path):
    stream = source(photos, on_bad_row="skip")
    found = extract(stream, red(), tmp_path / "out")
    assert len(found) == len(GOOD)
    assert found.manifest["skipped"] == 0
    assert found.manifest["about"]["skipped by the source"] == len(BAD)


@pytest.mark.parametrize("source", [in_folder, in_manifest])
def test_a_folder_that_is_taken_away(source, photos, tmp_path):
    stream = source(photos)
    check_still_there(stream)
    shutil.move(photos, tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="photos is gone or empty; start the same extraction again when it is back"):
        extract(stream, red(), tmp_path / "out", batch=4)
    shutil.move(tmp_path / "elsewhere", photos)
    assert len(extract(stream, red(), tmp_path / "out", batch=4)) == len(GOOD)


def test_a_folder_that_never_was_there(photos, tmp_path):
    """Photos that were never fetched are bad images, even if the manifest begins with them."""
    lines = [f"never/{i}.png,a\n" for i in range(20)] + ["photos/a/02.png,b\n"]
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(lines))
    found = extract(ImageStream(tmp_path / "list.csv", size=6), red(), tmp_path / "out", batch=4)
    assert (len(found), found.manifest["skipped"]) == (1, 20)
