import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("PIL")

from PIL import Image

from prequential.errors import BadInput
from prequential.streams.image_tables import ImageTableStream
from prequential.streams.open import open_stream
from streams.battery import check_stream


def rows(n=40, first=0, bad=()):
    images = []
    for i in range(n):
        out = io.BytesIO()
        Image.new("RGB", (9, 8), (first + i, 0, 0)).save(out, "png")
        images.append({"bytes": b"nothing" if i in bad else out.getvalue(), "path": f"{i}.png"})
    return pa.table({"image": images, "label": [i % 4 for i in range(n)]})


def test_battery(tmp_path):
    pq.write_table(rows(), tmp_path / "a.parquet", row_group_size=15)
    pq.write_table(rows(first=1), tmp_path / "b.parquet", row_group_size=15)
    check_stream(lambda: ImageTableStream(tmp_path / "a.parquet"), lambda: ImageTableStream(tmp_path / "b.parquet"))


def test_a_saved_data_set_of_images(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, rows().schema) as writer,
    ):
        writer.write_table(rows(), max_chunksize=10)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_info.json").write_text(
        json.dumps({"features": {"label": {"names": list("abcd"), "_type": "ClassLabel"}}})
    )
    stream = open_stream(str(folder), size=6)
    assert isinstance(stream, ImageTableStream)
    assert stream.classes == 4
    chunk = stream.read(8, 23)
    assert chunk.x.shape == (15, 6, 6, 3)
    assert chunk.x[:, 0, 0, 0].tolist() == list(range(8, 23))
    assert chunk.y == [i % 4 for i in range(8, 23)]


def test_bad_images(tmp_path):
    pq.write_table(rows(bad=(3, 20)), tmp_path / "a.parquet", row_group_size=15)
    stream = ImageTableStream(tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=r"a.parquet, row 4, column 'image' cannot be decoded"):
        stream.read(0, 10)
    assert len(stream.read(4, 20)) == 16
    check_stream(lambda: ImageTableStream(tmp_path / "a.parquet", on_bad_row="skip"))
    skipping = ImageTableStream(tmp_path / "a.parquet", on_bad_row="skip")
    assert skipping.skipped == 2
    np.testing.assert_array_equal(skipping.read(2, 4).x[:, 0, 0, 0], [2, 4])


def test_a_table_without_images(tmp_path):
    pq.write_table(rows().select(["label"]).append_column("n", pa.array(range(40))), tmp_path / "a.parquet")
    with pytest.raises(BadInput, match="has no column None for the image; its columns are label, n"):
        ImageTableStream(tmp_path / "a.parquet")
