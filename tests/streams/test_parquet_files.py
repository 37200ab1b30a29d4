import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prequential.errors import BadInput
from prequential.streams import parquet_files
from prequential.streams.cache import cache_folder
from prequential.streams.tables import TableStream
from streams.battery import check_stream


def rows(start=0, n=10_000, wrong=None):
    numbers = np.arange(start, start + n, dtype=float)
    if wrong is not None:
        numbers[wrong] = np.inf
    return pa.table({"n": numbers, "s": [f"s{i % 7}" for i in range(n)], "y": (np.arange(n) % 3).astype(np.int32)})


@pytest.mark.parametrize("group", [300, 6000, 10_000])
def test_battery(tmp_path, group):
    pq.write_table(rows(), tmp_path / "a.parquet", row_group_size=group)
    pq.write_table(rows(1), tmp_path / "b.parquet", row_group_size=group)
    check_stream(lambda: TableStream(tmp_path / "a.parquet"), lambda: TableStream(tmp_path / "b.parquet"))


def folder(tmp_path):
    (tmp_path / "parts").mkdir()
    for i in range(3):
        pq.write_table(
            rows(1000 * i, 1000, wrong=5 if i == 2 else None),
            tmp_path / "parts" / f"part-{i}.parquet",
            row_group_size=400,
        )
    return tmp_path / "parts"


def test_a_folder_of_parts_is_read_in_the_order_of_their_names(tmp_path):
    parts = folder(tmp_path)
    stream = TableStream(parts)
    assert len(stream) == 3000
    np.testing.assert_array_equal(stream.read(0, 2005).x[:, 0], np.arange(2005))
    with pytest.raises(BadInput, match=r"^part-2.parquet, row 6, column 'n' is inf, expected a finite number$"):
        stream.read(1990, 2100)
    skipping = TableStream(parts, on_bad_row="skip")
    assert skipping.skipped == 1
    assert skipping.read(2004, 2006).x[:, 0].tolist() == [2004, 2006]
    assert skipping.read(0, 1).y == [0]


def test_battery_of_a_folder(tmp_path):
    parts = folder(tmp_path)
    check_stream(lambda: TableStream(parts, on_bad_row="skip"))


def test_unpacked_row_groups_are_bounded_and_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_files, "GROUPS", 3)
    pq.write_table(rows(), tmp_path / "a.parquet", row_group_size=500)
    stream = TableStream(tmp_path / "a.parquet")
    for start in (0, 9000, 4000, 100, 7000, 9100):
        stream.read(start, start + 50)
    assert stream.table._group.cache_info().currsize == 3
    assert list(cache_folder().iterdir()) == []


def test_parts_that_do_not_fit_together(tmp_path):
    pq.write_table(rows(), tmp_path / "a.parquet")
    pq.write_table(rows().drop_columns(["s"]), tmp_path / "b.parquet")
    with pytest.raises(BadInput, match=r"b.parquet has the columns n, y, but .*a.parquet has n, s, y"):
        TableStream(tmp_path)
    pq.write_table(
        rows().cast(pa.schema([("n", pa.string()), ("s", pa.string()), ("y", pa.int32())])), tmp_path / "b.parquet"
    )
    with pytest.raises(BadInput, match=r"b.parquet: column 'n' has type string, but in .*a.parquet it has double"):
        TableStream(tmp_path)


def test_a_file_that_is_no_parquet(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"hello")
    with pytest.raises(BadInput, match=r"a.parquet is no Parquet file"):
        TableStream(tmp_path / "a.parquet")


def test_unicode_dictionaries_and_vectors(tmp_path):
    table = pa.table(
        {
            "v": pa.array([[float(i), 2.0 * i] for i in range(100)], pa.list_(pa.float32())),
            "c": pa.array(["ä", "ß"] * 50).dictionary_encode(),
            "label": ["x"] * 100,
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    x = TableStream(tmp_path / "a.parquet", buckets=4).read(10, 12).x
    assert x[:, :2].tolist() == [[10, 20], [11, 22]]
    assert x[:, 2:].sum(1).tolist() == [1, 1]
