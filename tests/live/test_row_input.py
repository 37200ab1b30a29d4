"""Rows from files and pipes: CSV and JSON lines, as they come."""

from __future__ import annotations

import os
import threading

import pytest

from prequential.errors import BadInput
from prequential.live.row_input import RowInput, open_rows


def rows_of(data: bytes, piece: int = 7, **options) -> list:
    """What is read of bytes that come in pieces."""
    reader, writer = os.pipe()

    def write() -> None:
        for start in range(0, len(data), piece):
            os.write(writer, data[start : start + piece])
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        return [row for batch in RowInput(reader, "pipe", **options) for row in batch]
    finally:
        thread.join()
        os.close(reader)


@pytest.mark.parametrize("piece", [1, 5, 1000])
def test_csv(piece):
    data = b'\xef\xbb\xbfa;"b c";d\r\n1;"x;\n""y""";\r\n\r\n2;z;3'
    found = rows_of(data, piece)
    assert [row.number for row in found] == [1, 2]
    assert [row.fields for row in found] == [{"a": "1", "b c": 'x;\n"y"', "d": None}, {"a": "2", "b c": "z", "d": "3"}]


@pytest.mark.parametrize("piece", [1, 1000])
def test_json_lines(piece):
    found = rows_of(b'{"a": 1.5, "b": null}\n\n{"a": "x"}', piece)
    assert [tuple(row) for row in found] == [(1, {"a": 1.5, "b": None}), (2, {"a": "x"})]


def test_a_row_is_there_before_the_next_one_is():
    reader, writer = os.pipe()
    batches = iter(RowInput(reader, "pipe"))
    os.write(writer, b"a,b\n1,2\n3")
    assert [row.fields for row in next(batches)] == [{"a": "1", "b": "2"}]
    os.write(writer, b",4\n")
    assert [row.fields for row in next(batches)] == [{"a": "3", "b": "4"}]
    os.close(writer)
    assert list(batches) == []
    os.close(reader)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"a,b\n"])
def test_nothing(data):
    assert rows_of(data) == []


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"a,b\n1,2\n1,2,3\n", "pipe, row 2 has 3 fields, expected 2"),
        (b"a,a\n1,2\n", "has two columns called 'a'"),
        (b"a,b\n1,\xff\n", "about row 1 holds .*, which is not UTF-8 text"),
        (b'{"a": 1}\n[2]\n', "row 2 is .*, expected a JSON object"),
        (b'{"a": 1}\n{"a"\n', "row 2 is no JSON"),
        (b'a,b\n1,"2\n', "row 1 cannot be read"),
        (b'a,b\n1,2"3"\n', "a quote stands inside an unquoted field"),
    ],
)
def test_what_cannot_be_read_is_named(data, sentence):
    with pytest.raises(BadInput, match=sentence) as error:
        rows_of(data, 1000)
    assert len(str(error.value)) <= 300


def test_a_row_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("prequential.live.row_input.LONGEST", 2**18)
    path = tmp_path / "rows.csv"
    path.write_bytes(b'a,b\n1,"' + b"x" * 2**19)
    with pytest.raises(BadInput, match="does not end within"), open_rows(str(path)) as rows:
        list(rows)


def test_what_is_no_file(tmp_path):
    with (
        pytest.raises(BadInput, match="does not exist; expected CSV, JSON lines, or -"),
        open_rows(str(tmp_path / "a")),
    ):
        pass
