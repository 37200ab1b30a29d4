"""What is wrong with a text file that should be CLOC's metadata, in one sentence that names the line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from prequential.errors import BadInput
from prequential.streams.formats.encoding import shown

FIELDS = "class,time,user,path"
EXPECTED = f"fields with commas between them, {FIELDS} (or with the date before the time and others before the path)"
MOST_CLASSES = 2**31 - 1
LONGEST = 100_000  # characters of a line that are looked at
WHOLE = re.compile(r"[-+]?[0-9]+$")


def check_first_line(source: Path) -> int:
    """How many fields a line has; a sentence where the first line cannot be that of a photo."""
    with source.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        text = file.readline(LONGEST).rstrip("\r\n")
    fields = _fields(text)
    if not text.strip():
        raise BadInput(f"{source}, line 1 is empty; expected {EXPECTED}")
    if len(fields) < 4:
        marks = {"\t": "tabs", ";": "semicolons", " ": "blanks"}
        mark = next((name for mark, name in marks.items() if text.count(mark) >= 3), None)
        found = f"separated by {mark}" if mark else "1 field" if len(fields) == 1 else f"{len(fields)} fields"
        raise BadInput(f"{source}, line 1 is {shown(text)} ({found}); expected {EXPECTED}")
    time = 1 if len(fields) == 4 else 2
    if not any(WHOLE.match(fields[place].strip()) for place in (0, time)) and fields[0].strip():
        raise BadInput(
            f"{source}, line 1 is {shown(text)}, which looks like the names of the fields; expected the first photo: "
            "delete this line"
        )
    return len(fields)


def what_is_wrong(source: Path, count: int) -> str:
    """The first line that is not that of a photo: which field of it, what was found and what is expected."""
    time = 1 if count == 4 else 2
    limits = {"class": (0, 0, MOST_CLASSES), "time": (time, -(2**63), 2**63 - 1)}
    for number, fields in _rows(source):
        if len(fields) != count:
            hint = "; a path with commas must stand in quotes" if len(fields) > count else ""
            return f"{source}, line {number} has {len(fields)} fields, expected {count} as in line 1{hint}"
        for name, (place, least, most) in limits.items():
            text = fields[place].strip()
            if not text:
                return f"{source}, line {number}: the {name} is empty, expected a whole number"
            if not WHOLE.match(text):
                return f"{source}, line {number}: the {name} is {shown(text)}, expected a whole number"
            if len(text) > 20 or not least <= int(text) <= most:
                return f"{source}, line {number}: the {name} is {text:.60}, expected a whole number in {least}..{most}"
        for name, place in (("user", time + 1), ("path", count - 1)):
            raw = fields[place].encode(errors="surrogateescape")
            if raw.decode(errors="replace").encode() != raw:
                return f"{source}, line {number}: the {name} is {shown(raw)}, expected UTF-8 text"
    return ""


def _rows(source: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not empty, by number."""
    with source.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST), ""), 1):
            if text := line.rstrip("\r\n"):
                yield number, _fields(text)


def _fields(text: str) -> list[str]:
    try:
        return next(csv.reader([text]), [])
    except csv.Error:  # longer than any field of a table
        return [text]
