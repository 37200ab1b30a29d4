import csv
import datetime
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from prequential.errors import BadInput, BadSetting
from prequential.streams.cache import cache_folder
from prequential.streams.formats import csv as csv_files
from prequential.streams.formats import table
from prequential.streams.formats.csv import CsvTable
from prequential.streams.formats.tables import TableStream
from prequential.testing.streams import check_stream


def write(path, rows, header=("a", "b", "city", "label"), end="\n"):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator=end)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def some_rows(n=9000):
    return [(i, i / 7 if i % 5 else "", f"city {i % 11}", "xyz"[i % 3]) for i in range(n)]


def test_battery(tmp_path):
    rows = some_rows()
    good, other = (
        write(tmp_path / "good.csv", rows),
        write(tmp_path / "other.csv", [*rows[:-1], (8999, 0, "city 1", "z")]),
    )
    wrong = write(tmp_path / "wrong.csv", [*rows[:5000], (5000, "oops", "city 1", "z"), *rows[5001:]])
    check_stream(
        lambda: TableStream(good),
        lambda: TableStream(other),
        lambda: TableStream(wrong),
        r"^wrong\.csv, row 5001, column 'b' is 'oops', expected a number$",
    )


def test_battery_when_rows_are_skipped(tmp_path):
    rows = some_rows()
    for i in (3, 4095, 4096, 8999):
        rows[i] = (i, "oops", "city 0", "x")
    rows[77] = (77, 1)
    path = write(tmp_path / "bad.csv", rows)
    other = write(tmp_path / "other.csv", [*rows[:-2], (0, 0, "city 0", "x"), rows[-1]])
    check_stream(lambda: TableStream(path, on_bad_row="skip"), lambda: TableStream(other, on_bad_row="skip"))
    stream = TableStream(path, on_bad_row="skip", keep_ids=True)
    assert stream.skipped == 5
    assert len(stream) == 8995
    whole = stream.read(0, len(stream)).x[:, 0].tolist()
    assert whole == [i for i in range(9000) if i not in (3, 77, 4095, 4096, 8999)]


def test_values_and_labels_are_those_of_the_file(tmp_path):
    rows = some_rows()
    stream = TableStream(write(tmp_path / "t.csv", rows), keep_ids=True)
    chunk = stream.read(0, len(rows))
    assert stream.feature_names[:4] == ["a", "b", "b missing", "city 0"]
    np.testing.assert_array_equal(chunk.x[:, 0], np.arange(9000))
    assert all(math.isnan(x) if b == "" else x == float(b) for x, (_, b, _, _) in zip(chunk.x[:, 1], rows, strict=True))
    assert (chunk.x[:, 2] == [b == "" for _, b, _, _ in rows]).all()
    assert chunk.y == [label for *_, label in rows]
    assert (chunk.x[:, 3:].sum(1) == 1).all()


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ((5, "abc", "Ulm", "x"), "row 6001, column 'b' is 'abc', expected a number"),
        ((5, "1e999", "Ulm", "x"), "row 6001, column 'b' is inf, expected a finite number"),
        ((5, "-inf", "Ulm", "x"), "row 6001, column 'b' is -inf, expected a finite number"),
        ((5, 1, "Ulm"), "row 6001, has 3 fields, expected 4"),
        ((5, 1, "Ulm", "x", 7), "row 6001, has 5 fields, expected 4"),
        ((5, 1, "Ulm", ""), "row 6001, column 'label' is empty, expected a label"),
    ],
)
def test_a_bad_row_stops_exactly_where_it_is(tmp_path, row, what):
    rows = some_rows()
    rows[6000] = row
    stream = TableStream(write(tmp_path / "bad.csv", rows))
    assert len(stream.read(5900, 6000)) == 100
    assert len(stream.read(6001, 6100)) == 99
    with pytest.raises(BadInput) as error:
        stream.read(5990, 6010)
    assert str(error.value) == f"bad.csv, {what}"
    skipping = TableStream(tmp_path / "bad.csv", on_bad_row="skip", keep_ids=True)
    assert skipping.skipped == 1
    assert skipping.read(5999, 6001).x[:, 0].tolist() == [5999, 6001]


def test_a_bad_value_among_the_first_rows_does_not_make_the_column_text(tmp_path):
    rows = some_rows(100)
    rows[10] = (10, "abc", "Ulm", "x")
    rows[20] = (20,)
    stream = TableStream(write(tmp_path / "t.csv", rows))
    with pytest.raises(BadInput, match="row 11, column 'b' is 'abc', expected a number"):
        stream.read(0, 100)
    with pytest.raises(BadInput, match="row 21, has 1 fields, expected 4"):
        stream.read(11, 100)
    skipping = TableStream(tmp_path / "t.csv", on_bad_row="skip")
    assert (len(skipping), skipping.skipped) == (98, 2)


def test_bad_cells_and_short_rows_in_one_block_are_told_apart(tmp_path):
    rows = some_rows(50)
    rows[3], rows[4], rows[9] = (3,), (4, "abc", "Ulm", "x"), (9, "", "Ulm", "")
    skipping = TableStream(write(tmp_path / "t.csv", rows), on_bad_row="skip")
    assert skipping.read(0, 47).x[:, 0].tolist() == [i for i in range(50) if i not in (3, 4, 9)]
    stopping = TableStream(tmp_path / "t.csv")
    with pytest.raises(BadInput, match="row 5, column 'b' is 'abc'"):
        stopping.read(4, 5)
    assert len(stopping.read(10, 50)) == 40


def test_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "latin.csv"
    path.write_bytes(b"a,city,label\n" + b"1,Ulm,x\n" * 5000 + b"2,K\xf6ln,y\n3,Ulm,x\n")
    with pytest.raises(BadInput, match=r"row 5001, column 'city' is b'K\\xf6ln', expected UTF-8 text"):
        TableStream(path).read(4990, 5002)
    assert TableStream(path, on_bad_row="skip").skipped == 1


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_quotes_line_ends_and_empty_lines(tmp_path, end):
    rows = [(i, f'a "quoted", line\nand more {i}', "x") for i in range(10_000)]
    path = write(tmp_path / "q.csv", rows, ("n", "text", "label"), end)
    content = path.read_bytes().replace(b'17"' + end.encode(), b'17"' + end.encode() * 3)
    path.write_bytes(b"\xef\xbb\xbf" + content + end.encode() * 2)
    stream = TableStream(path, keep_ids=True)
    assert len(stream) == 10_000
    assert stream.feature_names[0] == "n"
    assert stream.read(9000, 10_000).x[:, 0].tolist() == list(range(9000, 10_000))


def test_an_end_without_a_line_end(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,label\n1,x\n2,y")
    assert TableStream(path).read(0, 9).y == ["x", "y"]


def test_a_stray_quote_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('size,label\n5" pipe,x\n6,y\n')
    with pytest.raises(BadInput, match="a quote stands inside an unquoted field near"):
        TableStream(path)
    assert TableStream(CsvTable(path, quotes=False), kinds={"size": "category"}).read(0, 2).y == ["x", "y"]


def test_a_quote_that_is_never_closed_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_files, "READ", 1000)
    monkeypatch.setattr(csv_files, "ROW", 4000)
    path = tmp_path / "t.csv"
    path.write_text("a,label\n" + "1,x\n" * 2000 + '"2,x\n' + "1,x\n" * 2000)
    with pytest.raises(BadInput, match="row 2001: the row does not end within"):
        TableStream(path)


@pytest.mark.parametrize(("mark", "point"), [(",", "."), (";", ","), ("\t", "."), ("|", ".")])
def test_delimiters(tmp_path, mark, point):
    path = tmp_path / "t.csv"
    path.write_text(f"a{mark}label\n1{point}5{mark}x\n2{point}5{mark}y\n")
    chunk = TableStream(CsvTable(path, decimal_point=point)).read(0, 2)
    assert chunk.x.tolist() == [[1.5], [2.5]]
    assert chunk.y == ["x", "y"]


def test_no_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("1,2,0\n3,4,1\n")
    with pytest.raises(BadInput, match=r"the first line holds only numbers \(1, 2, …\)"):
        TableStream(path)
    stream = TableStream(CsvTable(path, header=False))
    assert stream.feature_names == ["f0", "f1"]
    assert stream.read(0, 2).y == [0, 1]


def test_dates_flags_and_times_of_day(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "day,at,clock,ok,label\n2024-01-01,2024-01-01 06:00:00,06:00:00,true,1\n2024-07-01,2024-01-01 12:00:00.5,12:00:00,false,2\n"
    )
    stream = TableStream(path)
    names = stream.feature_names
    x = dict(zip(names, stream.read(0, 2).x.T.tolist(), strict=True))
    assert x["ok"] == [1, 0]
    assert x["at hour sin"][0] == pytest.approx(1)
    assert x["at hour cos"][1] == pytest.approx(-1, abs=1e-6)
    assert x["day weekday sin"][0] == pytest.approx(0)  # a Monday
    assert x["day years"][0] == pytest.approx(24, abs=0.01)
    assert x["day year cos"][1] == pytest.approx(math.cos(2 * math.pi * 182 / 365.25))
    assert x["clock share"] == [0.25, 0.5]
    assert "day hour sin" not in names


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        ("a\n1\n", "has 1 column"),
        ("a,a\n1,2\n", "has two columns called 'a'"),
        ("a,label\n", "t.csv has no rows"),
    ],
)
def test_files_that_are_no_table(tmp_path, text, what):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=what):
        TableStream(path)


def test_all_rows_bad(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,label\n1,\n2,\n")
    with pytest.raises(BadInput, match="none of the 2 rows can be used; the first: column 'label' is empty"):
        TableStream(path, on_bad_row="skip")


cell = st.one_of(
    st.integers(-(10**6), 10**6).map(str),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.just(""),
)
word = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00\r", exclude_categories=("Cs",)), min_size=1, max_size=6
)


@example(rows=[("", "\x85", 0)], end="\n")  # a blank that is no empty cell
@example(rows=[("", " ", 0), ("", " NA", 1)], end="\n")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(cell, word, st.integers(0, 3)), min_size=1, max_size=120),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_any_table_reads_as_the_csv_module_wrote_it(tmp_path, rows, end):
    # small blocks and small reads, so that rows cross their borders
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_files, "BLOCK_ROWS", 16)
        path = write(tmp_path / "any.csv", rows, ("n", "word", "label"), end)
        stream = TableStream(path, kinds={"n": "number", "word": "category"})
    assert len(stream) == len(rows)
    chunk = stream.read(0, len(rows))
    for got, (n, _, _) in zip(chunk.x[:, 0], rows, strict=True):
        assert math.isnan(got) if n == "" else got == float(n)
    assert chunk.y == [label for *_, label in rows]


def test_settings_out_of_range(tmp_path):
    path = write(tmp_path / "t.csv", some_rows(10))
    with pytest.raises(BadSetting, match="on_bad_row \\('ignore'\\) must be 'stop' or 'skip'"):
        TableStream(path, on_bad_row="ignore")
    with pytest.raises(BadInput, match=r"t.csv has no column 'colour'; its columns are a, b, city, label"):
        TableStream(path, features=["colour"])
    with pytest.raises(BadSetting, match="column 'a' is to be read as 'word', expected one of number"):
        TableStream(path, kinds={"a": "word"})


def test_time_column_that_is_a_date_is_also_a_feature(tmp_path):
    path = tmp_path / "t.csv"
    start = datetime.date(2020, 1, 1)
    rows = "".join(f"{start + datetime.timedelta(days=i)},{i},{i % 2}\n" for i in range(20))
    path.write_text("day,n,label\n" + rows)
    assert "day weekday sin" in TableStream(path, time="day").feature_names
    assert TableStream(path, time="n", features=["day"]).feature_names[0] == "day weekday sin"
    assert "n" not in TableStream(path, time="n").feature_names


def opened(tmp_path, text, name="t.csv", **options):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return TableStream(path, **options)


def test_encodings(tmp_path):
    text = "größe,ort,label\n1,Köln,ä\n2,Ulm,ß\n"
    expected = opened(tmp_path, text, "utf8.csv").read(0, 2)
    with pytest.raises(
        BadInput, match=r"the line of column names holds b'gr.*', which is not utf-8 text; say the file's"
    ):
        opened(tmp_path, text.encode("latin-1"))
    with pytest.raises(
        BadInput, match=r"row 1, column 'ort' is b'K\\xf6ln', expected UTF-8 text \(or say the file's enc"
    ):
        opened(tmp_path, text.replace("größe", "size").encode("latin-1")).read(0, 2)
    with pytest.raises(
        BadInput, match=r"row 1, column 'label' is b'\\xe4', expected UTF-8 text \(or say the file's enc"
    ):
        opened(tmp_path, text.replace("größe", "size").replace("ö", "o").encode("latin-1")).read(0, 2)
    with pytest.raises(BadInput, match=r"holds zero bytes \(b'g.*\), expected utf-8 text; say encoding='utf-16-le'"):
        opened(tmp_path, text.encode("utf-16-le"))
    assert opened(tmp_path, text.encode("utf-16")).read(0, 2).y == expected.y
    path = tmp_path / "t.csv"
    for name in ("latin-1", "cp1252", "utf-16-le", "utf-32", "utf-16"):
        path.write_bytes(text.encode(name))
        chunk = TableStream(CsvTable(path, encoding=name)).read(0, 2)
        assert chunk.y == expected.y
        np.testing.assert_array_equal(chunk.x, expected.x)
    with pytest.raises(BadInput, match=r"t.csv holds b'.*', which is not utf-16 text"):
        opened(tmp_path, text.encode("utf-16")[:-1])
    with pytest.raises(BadSetting, match=r"encoding \('klingon'\) is not known"):
        CsvTable(path, encoding="klingon")
    path.write_bytes("a,ort,label\n1,Köln,x\n2,\x81,y\n".encode("latin-1"))
    with pytest.raises(BadInput, match=r"row 2, column 'ort' is b'\\x81', expected UTF-8 text"):
        TableStream(CsvTable(path, encoding="cp1252")).read(0, 2)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst", ".lz4"])
def test_compressed_files(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(csv_files, "READ", 5000)  # several pieces

    def packed(name, rows):
        plain = write(tmp_path / f"{name}.csv", rows)
        path = tmp_path / f"{name}.csv{suffix}"
        with pa.output_stream(str(path), compression=table.COMPRESSED[suffix]) as file:
            file.write(plain.read_bytes())
        plain.unlink()
        return path

    rows = some_rows(3000)
    a, b, c = packed("a", rows), packed("b", [*rows[:-1], (1, 2, "", "x")]), packed("c", [*rows, (1, "oops", "", "x")])
    check_stream(
        lambda: TableStream(a),
        lambda: TableStream(b),
        lambda: TableStream(c),
        rf"^c\.csv\{suffix}, row 3001, column 'b' is 'oops', expected a number$",
    )
    assert len(list(cache_folder().iterdir())) == 3  # one copy each
    assert TableStream(a).fingerprint() == TableStream(write(tmp_path / "plain.csv", rows)).fingerprint()
    whole = a.read_bytes()
    a.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match=rf"a\.csv\{suffix} cannot be unpacked \(\w+\) into the cache folder: "):
        TableStream(a)


def test_a_folder_of_parts(tmp_path):
    rows = some_rows(3000)
    for name in ("good", "wrong"):
        for i, first in ((1, 0), (2, 1000), (10, 2000)):
            (tmp_path / name).mkdir(exist_ok=True)
            part = [*rows[first : first + 1000]]
            if i == 10 and name == "wrong":
                part[5] = (5, "oops", "", "x")
            write(tmp_path / name / f"part-{i}.csv", part)
    (tmp_path / "good" / "readme.txt").write_text("not a part")
    write(tmp_path / "good" / "part-11.csv", [])
    check_stream(
        lambda: TableStream(tmp_path / "good"),
        lambda: TableStream(tmp_path / "wrong", on_bad_row="skip"),
        lambda: TableStream(tmp_path / "wrong"),
        r"^part-10\.csv, row 6, column 'b' is 'oops', expected a number$",
    )
    one = TableStream(write(tmp_path / "one.csv", rows)).read(0, 3000)
    parts = TableStream(tmp_path / "good").read(0, 3000)
    np.testing.assert_array_equal(parts.x, one.x)
    assert parts.y == one.y
    write(tmp_path / "good" / "part-3.csv", [(1, 2, 3)], ("a", "c", "label"))
    with pytest.raises(
        BadInput, match=r"part-3.csv has the columns a, c, label, but .*part-1.csv has a, b, city, label"
    ):
        TableStream(tmp_path / "good")
