import re

import pytest

from prequential.errors import BadInput
from prequential.streams.datasets.cloc_metadata import converted_metadata, open_column, read_index

COMMAS = "; expected fields with commas between them, class,time,user,path (or with the date"
GOOD = b"1,5,u,p.jpg\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"1\t5\tu\tp.jpg\n", r"m.txt, line 1 is '1\\t5\\tu\\tp.jpg' (separated by tabs)" + COMMAS),
        (b"1 5 u p.jpg\n", "line 1 is '1 5 u p.jpg' (separated by blanks)" + COMMAS),
        (b"1;5;u;p.jpg\n", "line 1 is '1;5;u;p.jpg' (separated by semicolons)" + COMMAS),
        (b"1,2\n", "line 1 is '1,2' (2 fields)" + COMMAS),
        (b"", "line 1 is empty" + COMMAS),
        (b"\xff\xd8\xff\n", r"line 1 is '\\udcff\\udcd8\\udcff' (1 field)" + COMMAS),
        (
            b"class,time,user,path\n" + GOOD,
            "line 1 is 'class,time,user,path', which looks like the names of the fields",
        ),
        (
            b"\xef\xbb\xbfc,date,time,user,path\n" + GOOD,
            "line 1 is 'c,date,time,user,path', which looks like the names",
        ),
        (GOOD + b"x,6,u,q\n", "line 2: the class is 'x', expected a whole number"),
        (b"x,6,u,q\n" + GOOD, "line 1: the class is 'x', expected a whole number"),
        (GOOD + b"1.5,6,u,q\n", "line 2: the class is '1.5', expected a whole number"),
        (GOOD + b"\n-2,6,u,q\n", "line 3: the class is -2, expected a whole number in 0..2147483647"),
        (GOOD + b"2147483648,6,u,q\n", "line 2: the class is 2147483648, expected a whole number in 0..2147483647"),
        (GOOD + b",6,u,q\n", "line 2: the class is empty, expected a whole number"),
        (GOOD + b"NA,6,u,q\n", "line 2: the class is 'NA', expected a whole number"),
        (GOOD + b"1,2004-01-01,u,q\n", "line 2: the time is '2004-01-01', expected a whole number"),
        (b"1,noon,5,u,q\n1,noon,x,u,q\n", "line 2: the time is 'x', expected a whole number"),
        (
            GOOD + b"1,6,u,a,b.jpg\n",
            "line 2 has 5 fields, expected 4 as in line 1; a path with commas must stand in quotes",
        ),
        (GOOD + b"1,6,u\n", "line 2 has 3 fields, expected 4 as in line 1"),
        (GOOD + b"1,6,u,\xe9.jpg\n", r"line 2: the path is b'\xe9.jpg', expected UTF-8 text"),
        (GOOD + b"1,6,\xe9,q\n", r"line 2: the user is b'\xe9', expected UTF-8 text"),
    ],
)
def test_one_sentence(tmp_path, text, sentence):
    (tmp_path / "m.txt").write_bytes(text)
    with pytest.raises(BadInput, match=re.escape(sentence.replace("\\\\", "\\"))) as caught:
        converted_metadata(tmp_path / "m.txt", None)
    assert "\n" not in str(caught.value)


def test_what_is_good_is_read(tmp_path):
    (tmp_path / "m.txt").write_bytes(b'\xef\xbb\xbf2,5,u,"a,b.jpg"\r\n\r\n 1, 4,\xc3\xa9,q.jpg\r\n')
    folder = converted_metadata(tmp_path / "m.txt", None)
    assert read_index(folder)["rows"] == 2
    assert open_column(folder / "label", "<i4", 2).tolist() == [1, 2]
    assert (folder / "paths").read_bytes() == b"a,b.jpgq.jpg"
