"""What the text of a CSV becomes: types from the first rows, labels, times, and sentences about what does not fit."""

import math

import numpy as np
import pyarrow as pa
import pytest

from prequential.errors import BadInput, BadSetting
from prequential.streams.formats.csv import CsvTable
from prequential.streams.formats.csv_rows import looks_like
from prequential.streams.formats.tables import TableStream


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
    with pytest.raises(BadInput, match="row 4, time column 't' is 'soon', expected numbers or dates"):
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


CLOCKS = "at,b,label\n" + "08:30:00,1,x\n09:00:00,2,y\n" * 2500


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("07:00:00,oops,x", "column 'b' is 'oops', expected a number"),
        ("foo,1,x", "column 'at' is 'foo', expected a time of day"),
        ("07:00:00,1", "has 2 fields, expected 3"),
    ],
)
def test_a_bad_row_beside_times_of_day(tmp_path, row, wrong):
    text = CLOCKS + row + "\n10:00:00.5,1,z\n"
    with pytest.raises(BadInput, match=f"^t.csv, row 5001, {wrong}$"):
        opened(tmp_path, text).read(4990, 5001)
    stream = opened(tmp_path, text, on_bad_row="skip")
    assert (len(stream), stream.skipped) == (5001, 1)
    last = stream.read(5000, 5001)
    assert last.y == ["z"]
    assert last.x[0, 2] == pytest.approx((10 + 0.5 / 3600) / 24)
    assert stream.read(0, 1).x[0, 2] == pytest.approx(8.5 / 24)


def test_blanks_around_labels_do_not_count(tmp_path):
    chunk = opened(tmp_path, "b, label\n1, a\n2,a \n3,NA\n4, b\n").read(0, 4)
    assert chunk.y == ["a", "a", "NA", "b"]
    with pytest.raises(BadInput, match=r"row 2, column 'label' is empty, expected a label"):
        opened(tmp_path, "b,label\n1,a\n2, \n").read(0, 2)


DAYS = "when;price;label\n31.01.2024;1,5;up\n01.03.2024;2,5;down\n15.02.2024;3,5;up\n"


def test_dates_as_the_user_writes_them(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(DAYS)
    table = CsvTable(path, decimal_point=",", dates="%d.%m.%Y")
    stream = TableStream(table, time="when")
    x = stream.read(0, 3).x
    assert x[:, stream.feature_names.index("price")].tolist() == [1.5, 3.5, 2.5]
    iso = tmp_path / "iso.csv"
    iso.write_text("when;price;label\n2024-01-31;1,5;up\n2024-03-01;2,5;down\n2024-02-15;3,5;up\n")
    same = TableStream(CsvTable(iso, decimal_point=","), time="when")
    assert stream.feature_names == same.feature_names  # days have no hours
    np.testing.assert_array_equal(x, same.read(0, 3).x)
    assert table.fingerprint() != CsvTable(path, decimal_point=",").fingerprint()


def test_dates_with_hours_and_without_marks(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(
        "when,day,label\n" + "01/31/2024 18:00,20240131,a\n" * 20 + "2024-01-31 18:00,20240131,b\n32,20240131,c\n"
    )
    stream = TableStream(CsvTable(path, dates="%m/%d/%Y %H:%M"))
    x = stream.read(0, 21).x
    assert stream.feature_names[0] == "when hour sin"
    np.testing.assert_allclose(x[:, 0], -1)
    np.testing.assert_array_equal(x[20], x[0])  # ISO 8601 is still a date
    with pytest.raises(
        BadInput, match=r"row 22, column 'when' is '32', expected a date or time .ISO 8601. or as in '%m/"
    ):
        stream.read(21, 22)
    assert "day weekday sin" in TableStream(CsvTable(path, dates="%Y%m%d")).feature_names
    assert TableStream(CsvTable(path)).feature_names[-1] == "day"


@pytest.mark.parametrize("dates", ["", "soon", "%H:%M", "%d.%m.", "%d.%m.%Y %f"])
def test_formats_that_are_no_dates(tmp_path, dates):
    path = tmp_path / "d.csv"
    path.write_text(DAYS)
    with pytest.raises(BadSetting, match=r"^dates \('.*'\) must be a format that has a year, such as '%d.%m.%Y'"):
        CsvTable(path, dates=dates)


def test_a_time_column_of_other_dates_says_what_to_do(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(DAYS)
    sentence = (
        r"^d.csv, row 1, time column 'when' is '31.01.2024', expected numbers or dates \(ISO 8601\); "
        r"say how dates are written, such as dates='%d.%m.%Y'$"
    )
    with pytest.raises(BadInput, match=sentence):
        TableStream(path, time="when")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"delimiter": ";;"}, r"^delimiter \(';;'\) must be one ASCII character, such as ';'$"),
        ({"delimiter": ""}, r"^delimiter \(''\) must be one"),
        ({"delimiter": "→"}, r"^delimiter \('→'\) must be one"),
        ({"decimal_point": ""}, r"^decimal_point \(''\) must be one ASCII character, such as ','$"),
        ({"decimal_point": ";;"}, r"^decimal_point \(';;'\) must be one"),
        ({"delimiter": ",", "decimal_point": ","}, "^delimiter and decimal_point are both ',', expected different"),
    ],
)
def test_marks_are_one_character(tmp_path, options, sentence):
    path = tmp_path / "d.csv"
    path.write_text(DAYS)
    with pytest.raises(BadSetting, match=sentence):
        CsvTable(path, **options)


@pytest.mark.parametrize(
    ("values", "what", "remedy"),
    [
        (["3,14", "-2,7", "1.234,5"], "decimal commas", "say decimal_point=','"),
        (["1,234", "12,000.5"], "numbers with commas between thousands", "write them without"),
        (["5 %", "7.5%"], "percentages", "write them without %"),
        (["1.2.24", "31.1.24"], "dates", "say dates='%d.%m.%y'"),
        (["1/31/2024 10:00", "2/1/2024 11:00"], "dates", "say dates='%m/%d/%Y %H:%M'"),
        (["31/1/2024", "1/2/2024"], "dates", "say dates='%d/%m/%Y'"),
        (["1/2/2024", None], "dates", "say dates='%d/%m/%Y' or dates='%m/%d/%Y'"),
        (["Ulm", "3,14"], "", ""),
        ([None, None], "", ""),
    ],
)
def test_what_text_looks_like(values, what, remedy):
    for column in (pa.array(values, pa.string()), pa.array(values, pa.string()).dictionary_encode()):
        assert looks_like(pa.chunked_array([column])) == (what, remedy)


def test_bytes_that_are_no_text_do_not_decide_what_a_column_is(tmp_path):
    path = tmp_path / "d.csv"
    path.write_bytes(
        b"when,b,label\n" + b"31.01.2024,1,x\n" * 20 + b"\xff,2,y\n" + b"01.01.2024,\xff,z\n01.01.2024,3,w\n"
    )
    stream = TableStream(CsvTable(path, dates="%d.%m.%Y"), time="when", on_bad_row="skip")
    assert stream.describe() == (
        "label 'label' (text); time: when; numbers: b; in the order of 'when'; rows left out because they cannot be used: 2"
    )
    assert (stream.read(0, 1).y, len(stream)) == (["w"], 21)
    with pytest.raises(BadInput, match=r"row 21, column 'when' is b?'.*', expected a date or time"):
        TableStream(CsvTable(path, dates="%d.%m.%Y"), time="when")


def test_times_of_day_cannot_be_the_order(tmp_path):
    with pytest.raises(
        BadInput, match=r"^time column 'at' holds times of day without a day, expected numbers or dates$"
    ):
        opened(tmp_path, CLOCKS, time="at")
