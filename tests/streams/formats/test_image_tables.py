import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("PIL")

from PIL import Image

from prequential.errors import BadInput, BadSetting
from prequential.streams.formats.image_tables import image_column
from prequential.streams.formats.images import ImageStream
from prequential.streams.formats.tables import as_table
from prequential.streams.open import open_stream
from prequential.streams.tasks import SplitStream
from prequential.testing.streams import check_stream


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
        lambda: ImageStream(tmp_path / "a.parquet"),
        lambda: ImageStream(tmp_path / "b.parquet"),
        bad=lambda: ImageStream(tmp_path / "c.parquet"),
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
    assert isinstance(stream, ImageStream)
    assert stream.classes == 4
    chunk = stream.read(8, 23)
    assert chunk.x.shape == (15, 6, 6, 3)
    assert chunk.x[:, 0, 0, 0].tolist() == list(range(8, 23))
    assert chunk.y == [i % 4 for i in range(8, 23)]


def test_bad_images(tmp_path):
    pq.write_table(rows(bad=(3, 20)), tmp_path / "a.parquet", row_group_size=15)
    stream = ImageStream(tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=r"a.parquet, row 4, column 'image' cannot be decoded"):
        stream.read(0, 10)
    assert len(stream.read(4, 20)) == 16
    make = lambda **options: ImageStream(tmp_path / "a.parquet", on_bad_row="skip", **options)  # noqa: E731
    check_stream(make, lambda: make(gray=True))
    skipping = ImageStream(tmp_path / "a.parquet", on_bad_row="skip")
    assert skipping.skipped == 2
    np.testing.assert_array_equal(skipping.read(2, 4).x[:, 0, 0, 0], [2, 4])


def test_a_table_without_images(tmp_path):
    pq.write_table(rows().select(["label"]).append_column("n", pa.array(range(40))), tmp_path / "a.parquet")
    with pytest.raises(BadInput, match="has no column of images that could be found; its columns are label, n"):
        ImageStream(tmp_path / "a.parquet")


def test_in_the_order_of_time_across_blocks(tmp_path):
    when = [(i * 7) % 40 for i in range(40)]
    table = rows().append_column("when", pa.array(when)).append_column("other", pa.array(list("ab" * 20)))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=15)
    make = lambda: ImageStream(tmp_path / "a.parquet", time="when", label="other")  # noqa: E731
    chunk = make().read(0, 40)
    order = sorted(range(40), key=lambda i: when[i])
    assert chunk.x[:, 0, 0, 0].tolist() == order
    assert chunk.y == ["ab"[i % 2] for i in order]
    check_stream(make, lambda: ImageStream(tmp_path / "a.parquet", label="other"))


def test_columns_of_bytes_and_of_paths_beside_the_table(tmp_path):
    table = rows(8)
    plain = pa.table({"picture": [row["bytes"] for row in table["image"].to_pylist()], "label": table["label"]})
    assert ImageStream(plain).read(3, 5).x[:, 0, 0, 0].tolist() == [3, 4]  # a data frame, found by its first bytes
    for i, row in enumerate(table["image"].to_pylist()):
        (tmp_path / f"{i}.png").write_bytes(row["bytes"])
    named = [{"bytes": None, "path": f"{i}.png"} for i in range(8)]
    kind = table.schema.field("image").type
    pq.write_table(pa.table({"image": pa.array(named, kind), "label": table["label"]}), tmp_path / "a.parquet")
    stream = ImageStream(tmp_path / "a.parquet")
    before = stream.fingerprint()
    assert stream.read(3, 5).x[:, 0, 0, 0].tolist() == [3, 4]
    (tmp_path / "6.png").write_bytes((tmp_path / "7.png").read_bytes())
    assert ImageStream(tmp_path / "a.parquet").fingerprint() != before


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
    assert isinstance(stream, ImageStream)
    assert stream.read(2, 4).x[:, 0, 0, 0].tolist() == [2, 3]
    assert open_stream(str(tmp_path / "t.csv"), features="n").read(2, 4).x.tolist() == [[2], [3]]


def test_tasks_out_of_a_table(tmp_path):
    pq.write_table(rows(), tmp_path / "a.parquet", row_group_size=15)
    whole = ImageStream(tmp_path / "a.parquet")
    make = lambda: SplitStream(*whole.pool(), tasks=3, ways=3, task_length=20)  # noqa: E731
    check_stream(make, lambda: SplitStream(*whole.pool(), tasks=3, ways=3, task_length=20, seed=1))
    chunk = make().read(0, 20)
    assert (chunk.x[:, 0, 0, 0] % 4).tolist() == [make().task_classes(0)[label] for label in chunk.y]


def long_manifest(folder, n=5000, early=500, name="order.csv"):
    """Newest first; the `early` rows that were taken first have text for labels, all others whole numbers."""
    Image.new("RGB", (4, 4), (7, 0, 0)).save(folder / "a.png")
    labels = ["cat" if i >= n - early else str(i % 3) for i in range(n)]
    lines = [f"a.png,{label},{n - i}\n" for i, label in enumerate(labels)]
    (folder / name).write_text("path,kind,taken\n" + "".join(lines))
    return folder / name, labels[::-1]


def test_the_first_rows_of_the_stream_decide_what_labels_are(tmp_path):
    path, labels = long_manifest(tmp_path)
    for name in (str(path), f"images:{path}"):
        stream = open_stream(f"{name}(size=4)", label="kind", time="taken")
        assert stream.read(0, 3).y == ["cat"] * 3
        assert stream.read(490, 5000).y == labels[490:]  # all of them text
    # without the order of time whole numbers come first, and the sentence names a remedy that there is
    listed = open_stream(f"{path}(size=4)", label="kind")
    assert listed.read(0, 4).y == [0, 1, 2, 0]
    with pytest.raises(BadInput, match=r"order.csv, row 5000, column 'kind' is 'cat', .*kinds=\{'kind': 'category'\}"):
        listed.read(4999, 5000)
    kinds = {"kind": "category"}
    told = open_stream(f"{path}(size=4)", label="kind", kinds=kinds)
    assert told.read(4498, 4502).y == ["1", "2", "cat", "cat"]
    assert told.fingerprint() != listed.fingerprint()
    in_brackets = open_stream(f"images:{path}(size=4, kinds={{kind: category}})", label="kind")
    assert in_brackets.fingerprint() == told.fingerprint()


def test_the_first_rows_of_a_shuffled_stream_decide_too(tmp_path):
    path, _ = long_manifest(tmp_path, n=5000, early=850)  # all of those behind the first 4096 rows of the file
    assert set(map(type, open_stream(f"{path}(size=4, order=shuffled)", label="kind").read(0, 5000).y)) == {str}


def test_kinds_are_for_the_label_alone(tmp_path):
    table = rows(8).append_column("n", pa.array(range(8)))
    pq.write_table(table, tmp_path / "a.parquet")
    make = lambda **kinds: ImageStream(tmp_path / "a.parquet", kinds=kinds)  # noqa: E731
    stream = make(label="category")  # a file that knows its types
    assert stream.read(0, 3).y == ["0", "1", "2"]
    assert stream.pool()[1][:3].tolist() == ["0", "1", "2"]
    with pytest.raises(BadSetting, match="kinds says how column 'n' is to be read, expected only the label 'label'"):
        make(n="category")
    with pytest.raises(BadInput, match="has no column 'm'; its columns are image, label, n"):
        make(m="category")
    with pytest.raises(
        BadSetting, match="column 'label' is the label and is to be read as 'sound', expected category or number"
    ):
        make(label="sound")


def test_first_rows_that_cannot_be_read_at_all(tmp_path):
    """More than the 4096 that decide, first in the order of time: with "skip" they are left out, with "stop" named."""
    path, _ = long_manifest(tmp_path, n=9000, early=0)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:4001] + [f"{line},1" for line in lines[4001:]]))
    with pytest.raises(BadInput, match=r"order.csv, row 4001, has 4 fields, expected 3"):
        open_stream(f"{path}(size=4)", label="kind", time="taken")
    stream = open_stream(f"{path}(size=4)", label="kind", time="taken", on_bad_row="skip")
    assert len(stream) == 4000
    assert stream.skipped == 5000
    listed = open_stream(f"{path}(size=4)", label="kind", on_bad_row="skip")
    assert listed.read(0, 3).y == [0, 1, 2]
