import datetime

import numpy as np
import pyarrow as pa
import pytest

from prequential.errors import BadInput
from prequential.streams.formats.tables import TableStream
from prequential.testing.streams import check_stream


def columns(n=5000, first=0):
    numbers: list = [float(i + first) for i in range(n)]
    numbers[7] = None
    return {
        "n": numbers,
        "i": list(range(n)),
        "ok": [i % 3 == 0 for i in range(n)],
        "city": [None if i == 9 else f"city {i % 4}" for i in range(n)],
        "at": [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=i) for i in range(n)],
        "label": ["ab"[i % 2] for i in range(n)],
    }


def frames(**more):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    data = columns(**more)
    categorical = pandas.DataFrame(data)
    categorical["city"] = categorical["city"].astype("category")
    return {
        "arrow": pa.table(data),
        "pandas": pandas.DataFrame(data),
        "categorical": categorical,
        "polars": polars.DataFrame(data),
    }


@pytest.mark.parametrize("kind", ["arrow", "pandas", "categorical", "polars"])
def test_battery(kind):
    name = "pandas" if kind == "categorical" else "pyarrow" if kind == "arrow" else kind
    check_stream(
        lambda: TableStream(frames()[kind]),
        lambda: TableStream(frames(first=1)[kind]),
        lambda: TableStream(frames(first=np.inf)[kind]),
        f"^the {name} data frame, row 1, column 'n' is inf, expected a finite number$",
    )


def test_all_frames_give_the_same():
    streams = {kind: TableStream(frame) for kind, frame in frames().items()}
    expected = streams["arrow"].read(0, 5000)
    for kind, stream in streams.items():
        assert stream.feature_names == streams["arrow"].feature_names, kind
        chunk = stream.read(0, 5000)
        np.testing.assert_array_equal(chunk.x, expected.x, err_msg=kind)
        assert chunk.y == expected.y


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
def test_sorting_a_frame(kind):
    frame = frames(n=300)[kind]
    times = np.array([(i * 7919) % 50 for i in range(300)])
    shuffled = pa.table(frame).append_column("t", pa.array(times))
    stream = TableStream(shuffled, time="t", label="label", features=["i"])
    assert stream.read(0, 300).x[:, 0].tolist() == np.argsort(times, kind="stable").tolist()


def test_what_is_no_frame():
    with pytest.raises(BadInput, match="got a dict, expected a path or a data frame"):
        TableStream({"a": [1]})


def test_what_is_wrong_with_a_pandas_frame():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(BadInput, match=r"^the pandas data frame has two columns called 'a'; expected different names$"):
        TableStream(pandas.DataFrame([[1, 2, 3]], columns=["a", "a", "b"]))
    mixed = pandas.DataFrame({"n": [1, 2, 3], "a": pandas.Series(["x", None, 5], dtype=object), "y": [1, 2, 3]})
    with pytest.raises(
        BadInput, match=r"^the pandas data frame, row 3, column 'a' is 5 \(int\), expected str as before$"
    ):
        TableStream(mixed)
    with pytest.raises(BadInput, match=r"^the pandas data frame cannot be read: .*complex128"):
        TableStream(pandas.DataFrame({"a": [1j], "y": [1]}))
    with pytest.raises(BadInput, match=r"^the pyarrow data frame has two columns called 'a'"):
        TableStream(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]))


def test_the_index_of_a_pandas_frame_is_no_label():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [3.0, 1.0, 2.0], "b": ["x", "y", "z"]})
    stream = TableStream(frame.sort_values("a"))
    assert stream.feature_names == ["a"]
    assert stream.read(0, 3).y == ["y", "z", "x"]
    named = TableStream(frame.set_index(pandas.Index([30, 10, 20], name="when")), time="when")
    assert named.feature_names == ["a"]
    assert named.read(0, 3).y == ["y", "z", "x"]


def test_the_rows_of_a_sorted_frame_keep_their_names():
    table = pa.table({"t": [3, 1, 2], "a": [1.0, float("inf"), 2.0], "y": ["k", "l", "m"]})
    with pytest.raises(BadInput, match="row 2, column 'a' is inf, expected a finite number"):
        TableStream(table, time="t").read(0, 3)


def test_na_beside_values_of_several_types():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": [pandas.NA, "x", pandas.NaT, 3], "y": [0, 1, 0, 1]})
    with pytest.raises(BadInput, match=r"row 4, column 'b' is 3 \(int\), expected str as before"):
        TableStream(frame)


def test_columns_without_names():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.arange(12).reshape(4, 3))
    stream = TableStream(frame, label=0, features=[1], kinds={1: "category"}, buckets=2)
    assert stream.read(0, 4).y == [0, 3, 6, 9]
    assert stream.feature_names == ["1 0", "1 1"]
