import datetime

import numpy as np
import pyarrow as pa
import pytest

from prequential.errors import BadInput
from prequential.streams.tables import TableStream
from streams.battery import check_stream


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
    check_stream(lambda: TableStream(frames()[kind]), lambda: TableStream(frames(first=1)[kind]))


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
