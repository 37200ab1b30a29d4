import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("PIL")

from PIL import Image

from prequential.errors import BadInput
from prequential.streams.image_tables import ImageTableStream, image_column
from prequential.streams.open import open_stream
from prequential.streams.tables import as_table
from prequential.streams.tasks import SplitStream
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
    pq.write_table(rows(bad=[33]), tmp_path / "c.parquet", row_group_size=15)
    check_stream(
        lambda: ImageTableStream(tmp_path / "a.parquet"),
        lambda: ImageTableStream(tmp_path / "b.parquet"),
        bad=lambda: ImageTableStream(tmp_path / "c.parquet"),
        match=r"^c\.parquet, row 34, column 'image' cannot be decoded \(cannot identify image file\), expected an image$",
    )


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
    make = lambda **options: ImageTableStream(tmp_path / "a.parquet", on_bad_row="skip", **options)  # noqa: E731
    check_stream(make, lambda: make(grey=True))
    skipping = ImageTableStream(tmp_path / "a.parquet", on_bad_row="skip")
    assert skipping.skipped == 2
    np.testing.assert_array_equal(skipping.read(2, 4).x[:, 0, 0, 0], [2, 4])


def test_a_table_without_images(tmp_path):
    pq.write_table(rows().select(["label"]).append_column("n", pa.array(range(40))), tmp_path / "a.parquet")
    with pytest.raises(BadInput, match="has no column of images that could be found; its columns are label, n"):
        ImageTableStream(tmp_path / "a.parquet")


def test_in_the_order_of_time_across_blocks(tmp_path):
    when = [(i * 7) % 40 for i in range(40)]
    table = rows().append_column("when", pa.array(when)).append_column("other", pa.array(list("ab" * 20)))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=15)
    make = lambda: ImageTableStream(tmp_path / "a.parquet", time="when", label="other")  # noqa: E731
    chunk = make().read(0, 40)
    order = sorted(range(40), key=lambda i: when[i])
    assert chunk.x[:, 0, 0, 0].tolist() == order
    assert chunk.y == ["ab"[i % 2] for i in order]
    check_stream(make, lambda: ImageTableStream(tmp_path / "a.parquet", label="other"))


def test_columns_of_bytes_and_of_paths_beside_the_table(tmp_path):
    table = rows(8)
    plain = pa.table({"picture": [row["bytes"] for row in table["image"].to_pylist()], "label": table["label"]})
    assert ImageTableStream(plain).read(3, 5).x[:, 0, 0, 0].tolist() == [3, 4]  # a data frame, found by its first bytes
    for i, row in enumerate(table["image"].to_pylist()):
        (tmp_path / f"{i}.png").write_bytes(row["bytes"])
    named = [{"bytes": None, "path": f"{i}.png"} for i in range(8)]
    kind = table.schema.field("image").type
    pq.write_table(pa.table({"image": pa.array(named, kind), "label": table["label"]}), tmp_path / "a.parquet")
    stream = ImageTableStream(tmp_path / "a.parquet")
    before = stream.fingerprint()
    assert stream.read(3, 5).x[:, 0, 0, 0].tolist() == [3, 4]
    (tmp_path / "6.png").write_bytes((tmp_path / "7.png").read_bytes())
    assert ImageTableStream(tmp_path / "a.parquet").fingerprint() != before


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("id,shot,label\n1,p/0.png,a\n2,p/1.png,b\n", "shot"),  # files that are there
        ("path,label\ngone/0.JPG,a\n,b\n", "path"),  # a name that says it
        ("id,shot,label\n1,gone/0.png,a\n", None),
        ("path,label\nindex.html,a\np/0.png,b\n", None),
        ("a,label\n1,2\n", None),
        ("path,label\n", None),
    ],
)
def test_which_tables_list_images(tmp_path, text, column):
    (tmp_path / "p").mkdir()
    for i in range(2):
        Image.new("RGB", (4, 4)).save(tmp_path / "p" / f"{i}.png")
    (tmp_path / "t.csv").write_text(text)
    assert image_column(as_table(tmp_path / "t.csv")) == column


def test_a_manifest_is_opened_as_images_unless_features_are_named(tmp_path):
    for i in range(4):
        Image.new("RGB", (4, 4), (i, 0, 0)).save(tmp_path / f"{i}.png")
    (tmp_path / "t.csv").write_text("path,n,label\n" + "".join(f"{i}.png,{i},{i % 2}\n" for i in range(4)))
    stream = open_stream(str(tmp_path / "t.csv"))
    assert isinstance(stream, ImageTableStream)
    assert stream.read(2, 4).x[:, 0, 0, 0].tolist() == [2, 3]
    assert open_stream(str(tmp_path / "t.csv"), features="n").read(2, 4).x.tolist() == [[2], [3]]


def test_tasks_out_of_a_table(tmp_path):
    pq.write_table(rows(), tmp_path / "a.parquet", row_group_size=15)
    whole = ImageTableStream(tmp_path / "a.parquet")
    make = lambda: SplitStream(*whole.pool(), tasks=3, ways=3, task_length=20)  # noqa: E731
    check_stream(make, lambda: SplitStream(*whole.pool(), tasks=3, ways=3, task_length=20, seed=1))
    chunk = make().read(0, 20)
    assert (chunk.x[:, 0, 0, 0] % 4).tolist() == [make().task_classes(0)[label] for label in chunk.y]
