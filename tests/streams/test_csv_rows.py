"""What the text of a CSV becomes: types from the first rows, labels, times, and sentences about what does not fit."""

import math

import numpy as np
import pyarrow as pa
import pytest

from prequential.errors import BadInput
from prequential.streams.csv_files import CsvTable
from prequential.streams.tables import TableStream


def opened(tmp_path, text, name="t.csv", **options):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return TableStream(path, **options)


def test_a_column_that_is_empty_at_first_is_read_value_by_value(tmp_path):
    stream = opened(tmp_path, "a,b,label\n" + "1,,x\n" * 5000 + "2,7.5,y\n3,red,x\n", buckets=4)
    assert stream.feature_names == ["a", "b", "b 0", "b 1", "b 2", "b 3", "b missing"]
    x = stream.read(4999, 5002).x
    np.testing.assert_array_equal(x[:, 1], [math.nan, 7.5, math.nan])
    assert x[:, 2:6].sum(1).tolist() == [0, 0, 1]
    assert x[:, 6].tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("first", "then", "found"),
    [
        ("01", "7", 7),
        ("01", " 3 ", 3),
        ("01", "2.0", 2),
        ("01", "NA", "'NA', expected a label, here a whole number like the first labels; kinds={'label': 'category'}"),
        (
            "01",
            "1.5",
            "'1.5', expected a label, here a whole number like the first labels; kinds={'label': 'category'}",
        ),
        (
            "01",
            "cat",
            "'cat', expected a label, here a whole number like the first labels; kinds={'label': 'category'}",
        ),
        ("01", "", "empty, expected a label, here a whole number"),
        (("1.5", "2"), "cat", "'cat', expected a label, here a number like the first labels; kinds="),
        (("true", "False"), "cat", "'cat', expected a label, here true or false like the first labels; kinds="),
        ("ab", "NA", "NA"),
        ("ab", "null", "null"),
        ("ab", "5", "5"),
        ("ab", "", "empty, expected a label"),
        (("NA", "?"), "x", "x"),
        (("007", "7"), "7", "7"),
        (("1", "unknown"), "7", "7"),
        (("1" * 20, "2"), "7", "7"),
        (("2024-01-01", "2024-01-02"), "NA", "NA"),
    ],
)
def test_the_first_labels_say_how_labels_are_read(tmp_path, first, then, found):
    text = "a,label\n" + "".join(f"1,{first[i % 2]}\n" for i in range(5000))
    stream = opened(tmp_path, f"{text}2,{then}\n")
    if isinstance(found, str) and "expected" in found:
        with pytest.raises(BadInput) as error:
            stream.read(4990, 5001)
        assert f"t.csv, row 5001, column 'label' is {found}" in str(error.value)
        assert TableStream(tmp_path / "t.csv", on_bad_row="skip").skipped == 1
    else:
        assert stream.read(4999, 5001).y[-1] == found
        assert type(stream.read(4999, 5000).y[0]) is type(found)


def test_the_type_of_labels_can_be_asked_for(tmp_path):
    stream = opened(tmp_path, "a,b,label\n1,007,NA\n2,8,5\n")
    assert [stream.table.label_type(name) for name in ("a", "b", "label")] == [pa.int64(), pa.string(), pa.int64()]


def test_labels_can_be_said_to_be_text(tmp_path):
    stream = opened(tmp_path, "a,label\n" + "1,0\n" * 5000 + "1,1.5\n1,NA\n", kinds={"label": "category"})
    assert stream.read(4999, 5002).y == ["0", "1.5", "NA"]


def test_times_that_begin_as_whole_numbers(tmp_path):
    text = "t,a,label\n" + "".join(f"{i},{i},x\n" for i in range(5000))
    stream = opened(tmp_path, text + "4999.5,1,y\n10.5,2,z\n", time="t")
    assert stream.read(10, 12).y == ["x", "z"]
    assert stream.read(5000, 5002).y == ["x", "y"]
    with pytest.raises(BadInput, match=r"^t\.csv, row 5001, column 't' is 'soon', expected a number$"):
        opened(tmp_path, text + "soon,1,y\n", time="t")
    exact = "t,a,label\n" + "".join(f"17000000000000000{i:02},{i},x\n" for i in (3, 1, 2))
    assert opened(tmp_path, exact, time="t").read(0, 3).x[:, 0].tolist() == [1, 2, 3]
    with pytest.raises(BadInput, match="time column 't' has type string, expected numbers or dates"):
        opened(tmp_path, exact + "soon,1,y\n" * 20, time="t")
    skipping = opened(tmp_path, exact + "16,1,y\n" * 20 + "soon,1,y\n", time="t", on_bad_row="skip")
    assert skipping.skipped == 1
    assert skipping.read(20, 23).x[:, 0].tolist() == [1, 2, 3]  # still compared as whole numbers
    with pytest.raises(BadInput, match="time column 't' is empty in the first 4096 rows, expected numbers or dates"):
        opened(tmp_path, "t,a,label\n,1,x\n,2,y\n", time="t")


def test_times_with_and_without_a_zone(tmp_path):
    text = "t,a,label\n2024-01-01T10:00:00Z,1,x\n2024-01-01T10:00:00+02:00,2,x\n2024-01-01T09:00:00,3,y\n"
    stream = opened(tmp_path, text, time="t")
    assert stream.read(0, 3).x[:, -1].tolist() == [2, 3, 1]


def test_one_bad_cell_does_not_spoil_decimal_commas(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a;b;label\n1,5;2;x\n2,5;oops;y\n" + "3,5;4;x\n" * 30 + "3,5; ;x\n")
    stream = TableStream(CsvTable(path, decimal_point=","), on_bad_row="skip")
    assert stream.skipped == 1
    assert stream.read(0, 2).x[:, 0].tolist() == [1.5, 3.5]


def test_a_short_row_among_empty_lines(tmp_path):
    with pytest.raises(BadInput, match=r"t.csv, row 3, has 1 fields, expected 3"):
        opened(tmp_path, "a,b,label\n1,2,x\n\n\n3,4,y\n5\n\n6,7,z\n").read(0, 4)


def test_hexadecimal_is_text(tmp_path):
    stream = opened(tmp_path, "a,b,label\n0x1F,2,x\n0x2,4,y\n", buckets=2)
    assert stream.feature_names == ["a 0", "a 1", "b"]
    assert len(stream.read(0, 2)) == 2
