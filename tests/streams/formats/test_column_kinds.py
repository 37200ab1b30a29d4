"""Which columns are dates, free text and ids, by their first rows."""

import warnings

import numpy as np
import pyarrow as pa
import pytest

from prequential import TableStream
from prequential.errors import ColumnWarning
from prequential.streams.formats import tables
from prequential.streams.formats.column_kinds import kind_of_values

BODIES = ["the printer is on fire", "cannot log in since monday", "where is my parcel", "refund for order please"]
N = 1200
SHUFFLED = np.random.default_rng(0).permutation(N)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (BODIES, "text"),
        (["the printer is on fire"], "text"),  # all there is of a live learner's first row
        (["the printer is on fire"] * 50, None),  # one value is no text to read
        ([f"{BODIES[i % 4]} {i}" for i in range(200)], "text"),
        (["我的打印机坏了请帮忙看看", "密码忘记了怎么办才好"], "text"),
        (["New York", "Ulm", "San Jose"], None),
        (["2024-05-01", "2024-05-02"], "time"),
        (["2024-05-01T10:00:00Z"] * 9 + ["soon"], "time"),
        ([f"A-{i}" for i in range(N)], "id"),
        ([f"A-{i}" for i in range(50)], None),  # too few to tell
        (["3f2504e0-4f89-11d3-9a0c-0305e82c3301"], "id"),
        ([f"A-{i}" for i in range(N)] + [None], None),
        (list(range(150)), "id"),
        (list(range(150, 0, -1)), "id"),
        (SHUFFLED.tolist(), "id"),
        (SHUFFLED[:200].tolist(), None),  # measurements may all differ in a few rows
        ([1, 2, 2] * 500, None),
        ((SHUFFLED / 7).tolist(), None),  # floats are measured
        ([None, None], None),
        ([b"\xff\xfe"], None),
    ],
)
def test_kinds(values, kind):
    values = pa.chunked_array([values])
    assert kind_of_values(values.type, values) == kind


def frame(n=N):
    return pa.table(
        {
            "order": np.arange(n),
            "opened": [f"2024-{i % 12 + 1:02}-{i % 28 + 1:02}" for i in range(n)],
            "amount": np.where(np.arange(n) % 3 == 1, np.nan, np.arange(n) / 7),
            "body": [f"{BODIES[i % 4]} {i}" for i in range(n)],
            "label": ["a", "b", "c", "d"] * (n // 4),
        }
    )


def test_an_id_is_left_out_and_named():
    with pytest.warns(ColumnWarning, match="different in every row: order .*keeps it"):
        stream = TableStream(frame())
    assert stream.left_out == ["order"]
    assert "different in every row: order" in stream.describe()
    assert not any(name.startswith("order") for name in stream.feature_names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({"keep_ids": True}, {"kinds": {"order": "number"}}, {"features": ["order", "amount"]}):
            assert TableStream(frame(), **options).feature_names[0] == "order"
        lone = TableStream(frame().select(["order", "label"]))  # there is nothing else to predict from
    assert lone.feature_names == ["order"]


def test_dates_in_typed_text_are_dates():
    stream = TableStream(frame(), features=["opened"])
    days = TableStream(frame().set_column(1, "opened", frame()["opened"].cast(pa.date32())), features=["opened"])
    assert stream.feature_names == days.feature_names == [name for name in days.feature_names if "hour" not in name]
    np.testing.assert_array_equal(stream.read(0, N).x, days.read(0, N).x)


def test_text_dates_give_the_order(tmp_path, monkeypatch):
    monkeypatch.setenv("PREQUENTIAL_CACHE", str(tmp_path))
    when = ["2024-01-01T12:00:00+02:00", "2024-01-01T09:00:00Z", "2023-12-31"]
    stream = TableStream(pa.table({"when": when, "x": [1.5, 2.5, 3.5], "label": [0, 1, 0]}), time="when", features="x")
    assert stream.read(0, 3).x[:, 0].tolist() == [3.5, 2.5, 1.5]


def test_the_first_rows_alone_decide(monkeypatch):
    """Two tables that differ after the first rows are read alike up to there."""
    monkeypatch.setattr(tables, "SAMPLE", 200)
    n = 300
    early = pa.table(
        {"body": [f"{BODIES[i % 4]} {i}" for i in range(n)], "n": np.arange(n), "label": [0, 1] * (n // 2)}
    )
    later = pa.table({"body": ["x"] * 100, "n": [7] * 100, "label": [1] * 100})
    with pytest.warns(ColumnWarning):
        a, b = TableStream(early), TableStream(pa.concat_tables([early, later]))
    assert a.feature_names == b.feature_names
    np.testing.assert_array_equal(a.read(0, n).x, b.read(0, n).x)


def test_reading_as_version_01_did():
    """Runs that were made before go on with the features that they had, and so with the same fingerprint."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream = TableStream(frame(), reading=1)
    kinds = [column.kind for column in stream.schema.columns]
    assert kinds == ["number", "category", "number", "category"]
    described = " ".join(map(str, stream.schema.columns))
    assert described == (
        "'order' number double 1 False True 'opened' category string 16 False True "
        "'amount' number double 1 True True 'body' category string 16 False True"
    )
