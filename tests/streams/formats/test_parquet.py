import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prequential.errors import BadInput
from prequential.streams.cache import cache_folder
from prequential.streams.formats import parquet as parquet_files
from prequential.streams.formats.tables import TableStream
from prequential.testing.streams import check_stream


def rows(start=0, n=10_000, wrong=None):
    numbers = np.arange(start, start + n, dtype=float)
    if wrong is not None:
        numbers[wrong] = np.inf
    return pa.table({"n": numbers, "s": [f"s{i % 7}" for i in range(n)], "y": (np.arange(n) % 3).astype(np.int32)})


@pytest.mark.parametrize("group", [300, 6000, 10_000])
def test_battery(tmp_path, group):
    pq.write_table(rows(), tmp_path / "a.parquet", row_group_size=group)
    pq.write_table(rows(1), tmp_path / "b.parquet", row_group_size=group)
    pq.write_table(rows(wrong=7000), tmp_path / "c.parquet", row_group_size=group)
    check_stream(
        lambda: TableStream(tmp_path / "a.parquet"),
        lambda: TableStream(tmp_path / "b.parquet"),
        lambda: TableStream(tmp_path / "c.parquet"),
        "^c.parquet, row 7001, column 'n' is inf, expected a finite number$",
    )


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
    pq.write_table(rows(1, 3000, wrong=5), tmp_path / "other.parquet")
    check_stream(
        lambda: TableStream(parts, on_bad_row="skip"),
        lambda: TableStream(tmp_path / "other.parquet", on_bad_row="skip"),
        lambda: TableStream(parts),
        "^part-2.parquet, row 6, column 'n' is inf, expected a finite number$",
    )


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
    with pytest.raises(
        BadInput, match=r"b.parquet: column 'n' has type string, but in the parts before \(a.parquet, …\) it has"
    ):
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


def test_parts_of_several_types_are_read_as_one(tmp_path):
    numbers = [pa.nulls(2), pa.array([1, 2], pa.int32()), pa.array([1.5, None]), pa.array([2**60, 3])]
    words = [pa.array(["p", "q"]), pa.array(["p", "q"]).dictionary_encode()]
    for i, column in enumerate(numbers):
        table = pa.table({"n": column, "s": words[i % 2], "y": ["k", "l"]})
        pq.write_table(table if i < 3 else table.select(["s", "y", "n"]), tmp_path / f"{i}.parquet")
    stream = TableStream(tmp_path, label="y")
    assert stream.feature_names[:3] == ["n", "n missing", "s 0"]
    x = stream.read(0, 8).x
    np.testing.assert_array_equal(x[:, 0], [np.nan, np.nan, 1, 2, 1.5, np.nan, 2.0**60, 3])
    assert (x[0::2, 2:] == x[0, 2:]).all()
    assert stream.read(6, 8).y == ["k", "l"]


def test_columns_of_one_name(tmp_path):
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=r"a.parquet has two columns called 'a'; expected different names"):
        TableStream(tmp_path / "a.parquet")


def hive(root, *names):
    for i, name in enumerate(names):
        (root / name).mkdir(parents=True)
        pq.write_table(pa.table({"n": [i * 10.0, i * 10.0 + 1], "y": ["k", "l"]}), root / name / "part.parquet")
    return root


def test_folders_that_name_a_value_are_columns(tmp_path):
    root = hive(tmp_path / "h", "year=2023/month=2", "year=2023/month=10", "year=2024/month=1")
    (root / "_temporary").mkdir()
    (root / "_temporary" / "x.parquet").write_bytes(b"half")
    stream = TableStream(root)
    assert stream.feature_names == ["year", "month", "n"]
    expected = [[2023, 2, 0], [2023, 2, 1], [2023, 10, 10], [2023, 10, 11], [2024, 1, 20], [2024, 1, 21]]
    assert stream.read(0, 6).x.tolist() == expected
    assert stream.read(0, 2).y == ["k", "l"]
    assert TableStream(root, time="month", features=["n"]).read(0, 2).x[:, 0].tolist() == [20, 21]
    assert TableStream(root, label="month", features=["year"]).read(0, 6).y == [2, 2, 10, 10, 1, 1]
    other = hive(tmp_path / "o", "year=2023/month=2", "year=2023/month=10", "year=2025/month=1")
    assert TableStream(other).fingerprint() != stream.fingerprint()


def test_folders_that_name_text_or_nothing(tmp_path):
    root = hive(tmp_path / "h", "town=Bad%20Ems", "town=__HIVE_DEFAULT_PARTITION__")
    table = TableStream(root, label="town", on_bad_row="skip")
    assert table.read(0, 2).y == ["Bad Ems", "Bad Ems"]
    assert table.skipped == 2
    (root / "more").mkdir()
    pq.write_table(pa.table({"n": [1.0], "y": ["k"]}), root / "more" / "part.parquet")
    with pytest.raises(BadInput, match=r"lies in folders for .*, but .* for .*; expected the same for all parts"):
        TableStream(root)


@pytest.mark.parametrize("on_bad_row", ["stop", "skip"])
def test_an_edit_that_the_fingerprint_misses_is_not_read_from_an_old_copy(tmp_path, monkeypatch, on_bad_row):
    monkeypatch.setattr(parquet_files, "file_hash", lambda *_: "the same")
    path = tmp_path / "a.parquet"
    for first in (0, 1):
        values = pa.array([first + 2.0, np.inf if first and on_bad_row == "skip" else 1.0, 5.0])
        pq.write_table(pa.table({"t": [2, 1, 3], "n": values, "y": [1, 2, 3]}), path)
        os.utime(path, ns=(first, first))
        found = TableStream(path, time="t", label="y", features=["n"], on_bad_row=on_bad_row).read(0, 3).x[:, 0]
        assert found.tolist() == ([3.0, 5.0] if first and on_bad_row == "skip" else [1.0, first + 2.0, 5.0])
