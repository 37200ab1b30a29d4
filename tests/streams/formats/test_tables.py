import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from prequential.errors import BadInput, BadSetting
from prequential.streams.formats import csv as csv_files
from prequential.streams.formats import parquet as parquet_files
from prequential.streams.formats import sorting, tables
from prequential.streams.formats.tables import TableStream
from prequential.testing.streams import check_stream


def frame(n=500, seed=0):
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "time": pa.array(random.integers(0, 100, n)),  # many equal times
            "row": pa.array(np.arange(n, dtype=float)),
            "user": pa.array(random.integers(0, 9, n)),
            "city": pa.array([f"city {i}" for i in random.integers(0, 5, n)]),
            "label": pa.array([f"l{i}" for i in random.integers(0, 3, n)]),
        }
    )


def written(table, path):
    if path.suffix == ".csv":
        pacsv.write_csv(table, path)
    elif path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=130)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
def test_unsorted_rows_are_put_in_the_order_of_time(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(sorting, "RUN_BYTES", 3000)
    monkeypatch.setattr(tables, "BLOCK_ROWS", 50)
    monkeypatch.setattr(csv_files, "BLOCK_ROWS", 50)
    monkeypatch.setattr(parquet_files, "BLOCK_ROWS", 50)  # several runs, several batches of each
    monkeypatch.setattr(sorting, "BATCH_ROWS", 7)
    rows = frame()
    path = written(rows, tmp_path / f"t{suffix}")
    stream = TableStream(path, time="time")
    expected = np.argsort(rows["time"].to_numpy(), kind="stable")
    np.testing.assert_array_equal(stream.read(0, 500).x[:, 0], expected)
    assert stream.read(0, 500).y == [rows["label"][int(i)].as_py() for i in expected]
    changed = written(rows.set_column(1, "row", pa.array(np.arange(500.0)[::-1])), tmp_path / f"other{suffix}")
    values = np.arange(500.0)
    values[77] = np.inf
    wrong = written(rows.set_column(1, "row", pa.array(values)), tmp_path / f"wrong{suffix}")
    check_stream(
        lambda: TableStream(path, time="time"),
        lambda: TableStream(changed, time="time"),
        lambda: TableStream(wrong, time="time"),
        rf"^wrong\{suffix}, row 78, column 'row' is inf, expected a finite number$",
    )
    assert TableStream(path).fingerprint() != stream.fingerprint()


def test_the_sorted_copy_is_made_once(tmp_path, monkeypatch):
    path = written(frame(), tmp_path / "t.csv")
    first = TableStream(path, time="time").read(0, 500)
    monkeypatch.setattr(sorting, "sort_rows", lambda *_: pytest.fail("sorted again"))
    np.testing.assert_array_equal(TableStream(path, time="time").read(0, 500).x, first.x)


def test_a_sorted_copy_that_cannot_be_written(tmp_path, monkeypatch):
    path = written(frame(), tmp_path / "t.csv")
    monkeypatch.setenv("PREQUENTIAL_CACHE", str(path / "below"))
    with pytest.raises(
        BadInput, match=r"t.csv is not in the order of 'time', and a sorted copy cannot be written \(.*\); set PREQ"
    ):
        TableStream(path, time="time")


def test_rows_in_order_need_no_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(sorting, "sort_rows", lambda *_: pytest.fail("sorted"))
    rows = frame().sort_by("time")
    stream = TableStream(written(rows, tmp_path / "t.csv"), time="time")
    np.testing.assert_array_equal(stream.read(0, 500).x[:, 0], rows["row"].to_numpy())


def test_bad_rows_and_time(tmp_path):
    for name, times in {"sorted": "1,2,,4", "unsorted": "2,1,,4"}.items():
        path = tmp_path / f"{name}.csv"
        path.write_text("t,n,label\n" + "".join(f"{t},{i},x\n" for i, t in enumerate(times.split(","))))
        with pytest.raises(BadInput, match="row 3, column 't' is missing, expected a time to order by"):
            TableStream(path, time="t").read(0, 4)
        stream = TableStream(path, time="t", on_bad_row="skip")
        assert stream.skipped == 1
        assert sorted(stream.read(0, 3).x[:, 0].tolist()) == [0, 1, 3]


def test_bad_rows_are_left_out_of_the_sorted_copy(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("t,n,label\n3,30,x\n2,oops,x\n1,10,y\n5,50,\n" + "9,90,x\n" * 40)
    stream = TableStream(path, time="t", on_bad_row="skip")
    assert stream.skipped == 2
    assert stream.read(0, 3).x.tolist() == [[10], [30], [90]]
    with pytest.raises(BadInput, match=r"^t\.csv, row 2, column 'n' is 'oops', expected a number$"):
        TableStream(path, time="t").read(0, 3)
    assert TableStream(path, time="t").read(0, 1).x.tolist() == [[10]]  # it is not reached


def test_text_cannot_be_a_time(tmp_path):
    path = written(frame(), tmp_path / "t.parquet")
    with pytest.raises(BadInput, match="row 1, time column 'city' is 'city 2', expected numbers or dates"):
        TableStream(path, time="city")


def test_default_label_and_features():
    rows = frame(20)
    assert TableStream(rows).feature_names[:3] == ["time", "row", "user"]
    renamed = rows.rename_columns(["time", "y", "user", "city", "last"])
    assert TableStream(renamed).read(0, 3).y == rows["row"].to_pylist()[:3]
    unnamed = rows.rename_columns(["a", "b", "c", "d", "e"])
    assert TableStream(unnamed).read(0, 3).y == rows["label"].to_pylist()[:3]
    assert TableStream(rows, features=["row"], label="user").read(0, 3).y == rows["user"].to_pylist()[:3]
    with pytest.raises(BadInput, match="column 'row' is the label and cannot also be a feature"):
        TableStream(rows, label="row", features=["row"])


def test_a_group_gets_its_own_signs():
    rows = frame(200)
    stream = TableStream(rows, group="user", features=["row"])
    x = stream.read(0, 200).x
    assert x.shape == (200, 1 + 32)
    assert set(np.unique(x[:, 1:])) == {-1, 1}
    users = rows["user"].to_numpy()
    codes = {user: tuple(x[users == user][0, 1:]) for user in set(users)}
    assert len(set(codes.values())) == len(codes)
    assert all(tuple(row) == codes[user] for row, user in zip(x[:, 1:], users, strict=True))


def test_encoding_does_not_look_ahead(tmp_path):
    rows = frame(12_000)
    a = TableStream(written(rows, tmp_path / "a.csv"))
    later = rows.slice(0, 9000)
    b = TableStream(written(later, tmp_path / "b.csv"))
    np.testing.assert_array_equal(a.read(0, 9000).x, b.read(0, 9000).x)


def test_a_value_that_is_first_missing_after_the_sample(tmp_path):
    n = tables.SAMPLE + 10
    column = pa.array([float(i) for i in range(n)] + [None])
    stream = TableStream(pa.table({"a": column, "label": ["x"] * (n + 1)}))
    assert stream.feature_names == ["a"]
    assert np.isnan(stream.read(n, n + 1).x).all()
    told = TableStream(pa.table({"a": column, "label": ["x"] * (n + 1)}), missing_indicators=True)
    assert told.read(n - 1, n + 1).x[:, 1].tolist() == [0, 1]


def test_scales_far_apart_keep_their_digits(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("big,small,label\n1700000000123,1e-30,x\n1700000000124,1e300,y\n")
    assert TableStream(path).read(0, 2).x.tolist() == [[1700000000123, 1e-30], [1700000000124, 1e300]]


def test_eight_readers_hold_a_bounded_number_of_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "KEEP_BYTES", 3 * 4096 * (3 + 16) * 8)
    stream = TableStream(written(frame(60_000), tmp_path / "t.csv"))
    for start in range(0, 60_000, 500):
        stream.read(start, start + 10)
        assert len(stream._blocks) <= 3


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = written(frame(300_000), tmp_path / "big.csv")
    code = f"""
import resource
from prequential.streams.formats.tables import TableStream
stream = TableStream({str(path)!r})
for i in range(0, 100_000, 64): stream.read(i, i + 64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for i in range(100_000, 300_000, 64): stream.read(i, i + 64)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30_000  # kB


def test_declared_classes_and_given_ones():
    assert TableStream(frame(20)).classes is None
    assert TableStream(frame(20), classes=7).classes == 7


@pytest.mark.parametrize("use", ["group", "time"])
def test_the_label_cannot_come_in_by_another_door(use):
    table = {"a": [1.0, 2.0, 3.0], "b": [0, 1, 1]}
    with pytest.raises(BadInput, match=f"column 'b' is the label and cannot also be the {use}"):
        TableStream(pa.table(table), label="b", **{use: "b"})


def mixed_up(n=3 * tables.SAMPLE):
    """A table whose first rows are late ones: they have missing values, lists of another length, other words."""
    late = np.arange(n) < tables.SAMPLE
    return pa.table(
        {
            "time": np.where(late, n, 0) + np.arange(n),
            "row": np.arange(n, dtype=float),
            "sometimes": pa.array(np.arange(n, dtype=float), mask=late),
            "word": pa.array([str(i) if is_late else f"w{i % 3}" for i, is_late in enumerate(late)]),
            "number": pa.array([f"w{i}" if is_late else str(i) for i, is_late in enumerate(late)]),
            "label": pa.array([f"l{i % 3}" if is_late else str(i % 3) for i, is_late in enumerate(late)]),
        }
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow", "frame"])
def test_what_columns_are_is_decided_in_the_order_of_time(tmp_path, suffix):
    rows = mixed_up()
    source = rows if suffix == "frame" else written(rows, tmp_path / f"t{suffix}")
    stream = TableStream(source, time="time", label="label", buckets=2, keep_ids=True)
    # the first rows in time have no missing value; in a CSV, `number` is of numbers and `word` of words there
    numbers = ["number"] if suffix == ".csv" else ["number 0", "number 1"]
    assert stream.feature_names == ["row", "sometimes", "word 0", "word 1", *numbers]
    past = 2 * tables.SAMPLE
    early = rows.slice(tables.SAMPLE)
    alone = TableStream(
        early if suffix == "frame" else written(early, tmp_path / f"early{suffix}"),
        time="time",
        buckets=2,
        keep_ids=True,
    )
    np.testing.assert_array_equal(stream.read(0, past).x, alone.read(0, past).x)
    assert stream.read(0, past).y == alone.read(0, past).y
    assert [type(label) for label in stream.read(0, 3).y] == ([int] * 3 if suffix == ".csv" else [str] * 3)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow", "frame"])
def test_the_first_rows_are_equally_many_in_every_kind_of_table(tmp_path, monkeypatch, suffix):
    for module in (csv_files, parquet_files):
        monkeypatch.setattr(module, "BLOCK_BYTES", 10_000)  # blocks of another size each
    for place, indicator in ((tables.SAMPLE - 1, True), (tables.SAMPLE, False)):
        numbers = [float(i) for i in range(tables.SAMPLE + 500)]
        table = pa.table({"a": pa.array(numbers, mask=np.arange(len(numbers)) == place), "label": ["x"] * len(numbers)})
        source = table if suffix == "frame" else written(table, tmp_path / f"{place}{suffix}")
        assert TableStream(source).feature_names == (["a", "a missing"] if indicator else ["a"])


def test_later_rows_change_nothing_before_them(tmp_path):
    """Of two tables with the same past and different futures, the past reads the same, sorted or not."""
    rows = mixed_up()
    future = rows.slice(0, 100).set_column(2, "sometimes", pa.array([1e300] * 100))
    for time in (None, "time"):
        a = TableStream(
            written(pa.concat_tables([rows.slice(5000), future]), tmp_path / "a.csv"), time=time, keep_ids=True
        )
        b = TableStream(written(rows.slice(5000), tmp_path / "b.csv"), time=time, keep_ids=True)
        assert a.feature_names == b.feature_names
        n = len(rows) - 5000
        np.testing.assert_array_equal(a.read(0, n).x, b.read(0, n).x)


def test_an_index_that_pandas_wrote_is_no_label(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [3.0, 1.0, 2.0], "b": ["x", "y", "z"]}).sort_values("a")
    frame.to_parquet(tmp_path / "t.parquet")
    stream = TableStream(tmp_path / "t.parquet")
    assert stream.feature_names == ["a"]
    assert stream.read(0, 3).y == ["y", "z", "x"]


def test_a_line_says_how_the_columns_are_read(tmp_path):
    (tmp_path / "t.csv").write_text(
        "when,price,shop,preis,on,at,up\n"
        + '2024-01-01,1.5,a,"1,5",true,08:30,1\n' * 3
        + 'x,2.5,b,"2,5",false,09:00,0\n'
    )
    stream = TableStream(tmp_path / "t.csv", kinds={"when": "time"}, on_bad_row="skip")
    assert stream.describe() == (
        "label 'up' (whole numbers); time: when; numbers: price; categories: shop; true/false: on; times of day: at; "
        "hashed text that looks like decimal commas: preis (say decimal_point=','); "
        "rows left out because they cannot be used: 1"
    )
    many = pa.table({**{f"n{i}": [1.0] for i in range(20)}, "t": [3], "day": ["31.1.2024"], "y": ["a"]})
    assert TableStream(many, time="t", group="n0").describe() == (
        "label 'y' (text); numbers: n1, n2, n3, n4, n5, n6, n7, n8, … (19); group: n0; "
        "hashed text that looks like dates: day; in the order of 't'"
    )
    chosen = TableStream(many, kinds={"day": "category"}, features=["day"])
    assert chosen.describe() == "label 'y' (text); categories: day"


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_kinds_of_the_label(tmp_path, suffix):
    path = written(frame(5), tmp_path / f"t{suffix}")
    assert TableStream(path, label="user", kinds={"user": "category"}).read(0, 1).y == [str(frame(5)["user"][0])]
    for kind in ("vector", "time", "clock", "flag", "group", "any"):
        with pytest.raises(
            BadSetting, match=f"'user' is the label and is to be read as '{kind}', expected category or"
        ):
            TableStream(path, label="user", kinds={"user": kind})


@pytest.mark.parametrize(
    ("column", "kind"),
    [("city", "vector"), ("row", "vector"), ("row", "clock"), ("flag", "vector"), ("flag", "time"),
     ("at", "flag"), ("at", "number"), ("at", "vector")],
)  # fmt: skip
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_kinds_that_do_not_fit_are_refused_at_once(tmp_path, suffix, column, kind):
    rows = (
        frame(9).append_column("flag", pa.array([True] * 9)).append_column("at", pa.array([0] * 9, pa.timestamp("s")))
    )
    path = written(rows, tmp_path / f"t{suffix}")
    with pytest.raises(
        BadSetting, match=rf"^column '{column}' has type .* and cannot be read as '{kind}', which takes"
    ):
        TableStream(path, label="label", kinds={column: kind})


def test_text_that_is_no_time_of_day(tmp_path):
    path = written(frame(9), tmp_path / "t.csv")
    with pytest.raises(BadInput, match=r"^t.csv, row 1, column 'city' is 'city \d', expected a time of day$"):
        TableStream(path, kinds={"city": "clock"}).read(0, 1)


def test_one_feature_and_kinds_that_are_none():
    assert TableStream(frame(5), features="row").feature_names == ["row"]
    with pytest.raises(
        BadSetting, match=r"^kinds is 'a', expected a kind for each column, such as \{'zip': 'category'\}$"
    ):
        TableStream(frame(5), kinds="a")


def test_features_that_are_named_twice():
    with pytest.raises(BadSetting, match=r"^features names column 'row' twice, expected different columns$"):
        TableStream(frame(5), features=["row", "user", "row"])
