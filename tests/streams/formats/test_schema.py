"""Rows by their fields: the same numbers as where a table holds them."""

import collections
import csv
import datetime
import decimal
import json
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pytest

from prequential import Schema, TableStream, open_stream
from prequential.errors import BadCheckpoint, BadInput, ColumnWarning

N = 40
TABLE = pa.table(
    {
        "amount": [None if i % 7 == 3 else i * 1.5 for i in range(N)],
        "count": [i % 5 for i in range(N)],
        "shop": [None if i % 9 == 4 else "abc"[i % 3] for i in range(N)],
        "paid": [i % 2 == 0 for i in range(N)],
        "at": [datetime.datetime(2024, 1 + i % 12, 3, i % 24) for i in range(N)],
        "clock": [datetime.time(i % 24, 30) for i in range(N)],
        "body": [f"please help with order number {i}" for i in range(N)],
        "place": [[i / 2, 1.0] for i in range(N)],
        "label": ["x", "y"] * (N // 2),
    }
)


def test_rows_of_every_kind_are_what_the_table_holds():
    stream = TableStream(TABLE)
    kinds = [column.kind for column in stream.schema.columns]
    assert kinds == ["number", "number", "category", "flag", "time", "clock", "text", "vector"]
    x, rows = stream.read(0, N).x, TABLE.to_pylist()
    np.testing.assert_array_equal(stream.schema.encode(rows), x)
    np.testing.assert_array_equal(np.concatenate([stream.schema.encode([row]) for row in rows]), x)
    np.testing.assert_array_equal(stream.schema.encode(TABLE), x)
    np.testing.assert_array_equal(stream.schema.encode(TABLE.to_batches()[0]), x)
    read_again = TableStream(TABLE, schema=stream.schema)
    np.testing.assert_array_equal(read_again.read(0, N).x, x)


def test_rows_of_pandas_and_polars():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    table = TABLE.select(["amount", "count", "shop", "paid", "at", "body", "label"])
    stream = TableStream(table)
    x, frame = stream.read(0, N).x, table.to_pandas()
    several = {
        "pandas": frame,
        "out of order": frame.iloc[list(range(N))][list(reversed(frame.columns))],
        "rows of pandas": [row for _, row in frame.iterrows()],
        "named tuples": list(frame.itertuples()),
        "records": frame.to_dict("records"),
        "polars": polars.from_arrow(table),
        "rows of polars": list(polars.from_arrow(table).iter_rows(named=True)),
    }
    for what, rows in several.items():
        np.testing.assert_array_equal(stream.schema.encode(rows), x, err_msg=what)
    assert frame["amount"].isna().any()
    assert isinstance(frame.iloc[3], pandas.Series)


def test_lines_of_a_csv(tmp_path):
    """What csv.DictReader gives of a file is what a stream reads in it."""
    table = TABLE.drop_columns(["place"])
    arrow_csv.write_csv(table, tmp_path / "t.csv")
    stream = TableStream(tmp_path / "t.csv", label="label")
    with (tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    np.testing.assert_array_equal(stream.schema.encode(rows), stream.read(0, N).x)
    made = Schema.from_rows(rows, ignored=["label"], extra=0)
    assert made.columns == stream.schema.columns
    comma = tmp_path / "comma.csv"
    comma.write_text("price;day;label\n" + "1,5;31.12.2024;a\n2,5;1.1.2025;b\n" * 5)
    stream = open_stream(comma, delimiter=";", decimal_point=",", dates="%d.%m.%Y")
    x = stream.schema.encode([{"price": "1,5", "day": "31.12.2024"}, {"price": 2.5, "day": datetime.date(2025, 1, 1)}])
    np.testing.assert_array_equal(x, stream.read(0, 2).x)


def test_missing_and_odd_values():
    schema = Schema.from_rows([{"a": 1.5, "b": "x", "c": None}, {"a": 2, "b": "y"}], extra=0)
    assert [column.kind for column in schema.columns] == ["number", "category", "any"]
    nan = schema.encode([{"a": None}, {"a": float("nan")}, {"b": "x"}, {"a": "NA"}, {"a": ""}])
    assert np.isnan(nan[:, 0]).all()
    values = [3, "3", " 3.0 ", decimal.Decimal(3), np.float32(3), True + 2, np.int8(3)]
    assert schema.encode([{"a": value} for value in values])[:, 0].tolist() == [3.0] * 7
    assert schema.encode([{"a": 10**30}])[0, 0] == 1e30
    place = schema.feature_names.index("c")
    assert schema.encode([{"a": 1, "c": 7.5}])[0, place] == 7.5  # its kind shows when a value comes
    assert schema.encode([{"a": 1, "c": "word"}])[0, place + 1 :].sum() == 1
    np.testing.assert_array_equal(schema.encode([{"a": 1, "b": 5}]), schema.encode([{"a": 1, "b": "5"}]))


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"amount": "much"}, "example 7: column 'amount' is 'much', expected a number"),
        ({"amount": {"a": 1}}, "example 7: column 'amount' is {'a': 1}, expected a number"),
        ({"amount": float("inf")}, "column 'amount' is inf, expected a finite number"),
        ({"paid": "perhaps"}, "column 'paid' is 'perhaps', expected true or false"),
        ({"at": "soon"}, "column 'at' is 'soon', expected a date or time"),
        ({"place": [1.0]}, "column 'place' has 1 numbers, expected 2"),
        ({"place": "here"}, "column 'place' is 'here', expected a list of numbers"),
        ({"shop": ["a"]}, "column 'shop' is \\['a'\\] \\(list\\), expected text"),
        ({"prize": 1}, "the fields are \\['prize'\\], expected some of \\['amount'"),
    ],
)
def test_what_cannot_be_read_is_named(row, what):
    with pytest.raises(BadInput, match=what) as error:
        TableStream(TABLE).schema.encode([row], first=7)
    assert len(str(error.value)) <= 300


def test_unknown_fields():
    schema = Schema.from_rows([{"a": 1.0, "b": "x"}])
    with pytest.warns(ColumnWarning, match="example 3: field 'c' not known so far"):
        with_c = schema.encode([{"a": 1.0, "b": "x", "c": 5.0}], first=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is named once
        again = schema.encode([{"a": 1.0, "b": "x", "c": 6.0}])
        without = schema.encode([{"a": 1.0, "b": "x"}])
    later = slice(schema.width - 16, None)
    assert with_c.shape == again.shape == without.shape
    assert (with_c[0, later].sum(), again[0, later].sum(), without[0, later].sum()) == (5.0, 6.0, 0.0)
    with pytest.warns(ColumnWarning):
        word, other = schema.encode([{"a": 1.0, "d": "blue"}, {"a": 1.0, "d": "red"}])[:, later]
    assert word.sum() == other.sum() == 1
    with pytest.raises(BadInput, match=r"field 'c' is not known; the 2 known ones are .*strict=False"):
        schema.changed(strict=True).encode([{"a": 1.0, "c": 1}])
    narrow = schema.changed(extra=0)
    with pytest.warns(ColumnWarning, match="not used"):
        assert narrow.encode([{"a": 1.0, "c": 1}]).shape == (1, narrow.width)


def test_columns_that_are_no_features_are_known():
    stream = TableStream(TABLE, features=["amount", "shop"], label="label")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream.schema.changed(strict=True).encode(TABLE.to_pylist())


def test_it_is_kept_as_json():
    for schema in (
        TableStream(TABLE).schema,
        Schema.from_rows([{"a": datetime.datetime.now(datetime.UTC), "b": None}]),
    ):
        assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    good = TableStream(TABLE).schema.to_dict()
    for change in (
        {"extra": -1},
        {"columns": 3},
        {"columns": [{**good["columns"][0], "kind": "code"}]},
        {"columns": [{**good["columns"][0], "width": 10**12}]},
        {"columns": [{**good["columns"][0], "type": "os.system"}]},
        {"columns": [good["columns"][0]] * 2},
        {"decimal_point": "--"},
    ):
        with pytest.raises(BadCheckpoint, match="no schema"):
            Schema.from_dict({**good, **change})
    with pytest.raises(BadCheckpoint):
        Schema.from_dict(["columns"])


def test_rows_that_are_none():
    Point = collections.namedtuple("Point", "a b")
    for rows in ([], [{}], 5, "rows", [[1.0, 2.0]]):
        with pytest.raises(BadInput, match="expected rows"):
            Schema.from_rows(rows)
    assert Schema.from_rows([Point(1.0, 2.0)], extra=0).feature_names == ["a", "b"]
    with pytest.raises(BadInput, match="row 1 of 2 is 5, expected a dict"):
        Schema.from_rows([{"a": 1}, 5])


def test_values_at_which_arrow_crashes():
    """Mixtures of NumPy's scalars and others end in a sentence or in numbers."""
    odd = [
        np.datetime64("NaT"),
        np.datetime64("2024-01-01"),
        np.float32(3),
        np.array([1.0, 2.0]),
        "word",
        b"\xff",
        None,
    ]
    for a in odd:
        for b in odd:
            try:
                schema = Schema.from_rows([{"a": a, "b": 1.0}, {"a": b}])
                assert schema.encode([{"a": b}, {"a": a}]).shape == (2, schema.width)
            except BadInput as error:
                assert "'a'" in str(error)


def test_one_plain_row_is_read_as_several_are():
    first = [
        {"price": 1.5, "count": 3, "paid": True, "shop": "a", "note": None, "day": "2024-05-01"},
        {"price": 2.5, "count": None, "paid": False, "shop": "b", "note": "x", "day": "2024-05-02"},
    ] * 3
    schema = Schema.from_rows(first, extra=2)
    rows = [
        *first,
        {"price": float("nan"), "count": 7, "paid": None, "shop": "a"},
        {"price": 3, "count": 2**53, "paid": True, "shop": "é", "note": "NA"},
        {"price": np.float64(0.1), "shop": None},
        {"price": True, "count": 1.5, "paid": 1, "shop": 3},
        {"price": "2.5", "shop": ""},
        {"count": -(2**62), "later": 4.0},
    ]
    for kept in (schema, schema.changed(csv=True)):
        for row in rows:
            for _ in range(2):  # texts are kept the first time
                with warnings.catch_warnings(action="ignore"):
                    one, two = kept.encode([row]), kept.encode([row, row])
                assert one.dtype == two.dtype
                np.testing.assert_array_equal(one, two[:1])


@pytest.mark.parametrize("row", [{"price": float("inf")}, {"price": "cheap"}, {"price": [1.0]}, {"other": 1.0}, {}])
def test_one_row_that_cannot_be_read_is_refused_in_the_same_words(row):
    schema = Schema.from_rows([{"price": 1.5, "shop": "a"}] * 3)
    with pytest.raises(BadInput) as one:
        schema.encode([row], first=7)
    with pytest.raises(BadInput) as two:
        schema.encode([row, row], first=7)
    assert str(one.value) == str(two.value)
