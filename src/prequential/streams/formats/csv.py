"""CSV files: one scan finds where every few thousandth row begins; after that any block is parsed by itself."""

from __future__ import annotations

import codecs
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prequential.errors import BadInput, BadSetting
from prequential.streams.cache import cached_file, file_hash, file_stamp
from prequential.streams.formats.csv_rows import CsvRows
from prequential.streams.formats.encoding import NUMBER, Column, shown
from prequential.streams.formats.table import BLOCK_BYTES, BLOCK_ROWS, COMPRESSED, SAMPLE, Table, suffix_of
from prequential.streams.limits import Limit, reading, reason
from prequential.streams.stream import in_reading_order

READ = 16 * 2**20  # bytes scanned at once
COLUMNS = 2**15  # that a row may have: Arrow takes 20 kB for each
ROW = 64 * 2**20  # bytes a row, or a block of rows, may take
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
HINT = "say the file's encoding, such as encoding='latin-1'"


@dataclass
class Part:
    """One file, and where its blocks of rows are."""

    path: Path  # what the user gave
    plain: Path  # what is read: the same, or a copy that is neither compressed nor UTF-16
    encoding: str
    begin: int = 0  # of the rows, in bytes
    rows: int = 0
    offsets: np.ndarray | None = None  # (blocks + 1,)
    hash: str = ""


class CsvTable(Table):
    """A CSV file with a line of column names, or a folder of such files in the order of their names.

    Opening scans the file once for the ends of rows (about a second for each gigabyte) and keeps one byte position
    for each block of up to 4096 rows. No copy of the file is made, unless it is compressed (.gz, .bz2, .zst, .lz4) or
    UTF-16: then a plain one is written once to the cache folder.

    The first 4096 rows of the stream decide what a column is. Features: numbers, if nine in ten of the values are (the
    others are then bad rows), else dates, else text; a column that is empty there is read value by value, as a number
    or as text. Labels: whole numbers, numbers or true/false, if all are; else text, where NA and null are labels like
    any other. A later label that does not fit is a bad row; `kinds={"label": "category"}` makes all of them text.

    Parameters
    ----------
    path
        The file, or a folder whose .csv and .tsv files, compressed or not, have the same columns.
    delimiter
        What separates fields; by default the one of `, ; tab |` that is most frequent in the first line.
    header
        Whether the first line holds the names of the columns; otherwise they are called f0, f1, …
    quotes
        Whether fields may be "quoted", and then hold delimiters and line ends.
    decimal_point
        "," in files that write 3,14.
    encoding
        How text is written, such as latin-1; by default UTF-8, or UTF-16 where a file begins with its mark.
    dates
        How dates are written that are not ISO 8601, such as "%d.%m.%Y" or "%m/%d/%Y %H:%M" (as in strptime). Columns of
        which nine in ten of the first values are so are dates.
    max_bytes
        How many bytes a compressed file may unpack to in the cache folder; see `prequential.streams.limits`.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "t.csv"
    >>> _ = path.write_text("age,city,label\\n31,Ulm,1\\n54,Bonn,0\\n")
    >>> table = CsvTable(path)
    >>> len(table), table.schema.types
    (2, [DataType(int64), DataType(string), DataType(int64)])
    """

    is_text = True

    def __init__(
        self,
        path: str | Path,
        *,
        delimiter: str | None = None,
        header: bool = True,
        quotes: bool = True,
        decimal_point: str = ".",
        encoding: str | None = None,
        dates: str | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._csv = CsvRows(str(path), delimiter, quotes, decimal_point, dates)
        self.written = {"csv": True, "decimal_point": decimal_point, "dates": dates}
        self.path = Path(path)
        self.name = self.path.name
        self.paths = [self.path] if self.path.is_file() else _parts_of(self.path)
        self._parts = [_plain(part, encoding, max_bytes) for part in self.paths]
        for part in self._parts:
            with reading(part.path):
                self._open(part, header)
        for part in self._parts:
            with reading(part.path):
                self._scan(part)
        spans, starts = [], [0]
        for number, part in enumerate(self._parts):
            assert part.offsets is not None
            spans += [(number, int(a), int(b)) for a, b in zip(part.offsets[:-1], part.offsets[1:], strict=True)]
            first = starts[-1]
            blocks = np.arange(1, len(part.offsets)) * self._rows_a_block
            starts += (first + np.minimum(blocks, part.rows)).tolist()
        self._spans = spans
        self.starts = np.array(starts)
        self._first_rows = np.cumsum([0, *(part.rows for part in self._parts)])[:-1]
        with reading(self.path):
            self.schema = (
                self.types(self._first_lines(), None)
                if len(self)
                else pa.schema([(name, pa.string()) for name in self._csv.names])
            )

    def fingerprint(self) -> str:
        rows, hashes = self._csv, " ".join(part.hash for part in self._parts)
        encodings = {codecs.lookup(part.encoding).name for part in self._parts} - {"utf-8"}
        other = (f" {sorted(encodings)}" if encodings else "") + (f" {rows.dates!r}" if rows.dates else "")
        return f"csv {hashes} {rows.delimiter!r} {rows.names} {rows.quotes} {rows.decimal_point}{other}"

    def where(self, row: int) -> str:
        part = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        return f"{self.paths[part].name}, row {row - int(self._first_rows[part]) + 1}"

    def block(self, i: int, columns: Sequence[Column]) -> tuple[pa.Table, dict[int, str]]:
        first, stop = int(self.starts[i]), int(self.starts[i + 1])
        with reading(self.path):
            return self._csv.read(self._text(i), columns, stop - first, f"{self.where(first)} to {stop}")

    def blocks_to_store(
        self, columns: Sequence[Column], read: Sequence[Column]
    ) -> Iterator[tuple[pa.Table, pa.Table, dict[int, str]]]:
        """A copy keeps the lines as they are, so that what they hold can be decided in the order of the copy."""
        for i in range(len(self.starts) - 1):
            yield self._csv.lines(self._text(i)), *self.block(i, read)

    def from_stored(self, kept: pa.Table, columns: Sequence[Column]) -> tuple[pa.Table, dict[int, str]]:
        with reading(self.path):
            return self._csv.read(self._csv.text(kept), columns, len(kept), self.name)

    def types(self, kept: pa.Table, label: str | None) -> pa.Schema:
        return self._csv.types(self._csv.text(kept), label)

    def label_type(self, name: str) -> pa.DataType:
        return self.types(self._first_lines(), name).field(name).type

    def _first_lines(self) -> pa.Table:
        pieces: list[pa.Table] = []
        for i in range(len(self.starts) - 1):
            pieces.append(self._csv.lines(self._text(i)))
            if self.starts[i + 1] >= SAMPLE:
                break
        return pa.concat_tables(pieces).slice(0, SAMPLE)

    # Where the rows are.

    def _open(self, part: Part, header: bool) -> None:
        """Reads the line of names; the first part says how all are read."""
        with part.plain.open("rb") as file:
            head = file.read(READ)
        begin = 3 if head.startswith(codecs.BOM_UTF8) else 0
        head, whole = head[begin:], len(head) < READ
        if not head.strip():
            raise BadInput(f"{part.path} is empty")
        if b"\0" in head[:4096]:
            raise BadInput(
                f"{part.path} holds zero bytes ({shown(head[:8])}), expected {part.encoding} text; "
                "say encoding='utf-16-le' if it is UTF-16 without its mark"
            )
        if b"\n" not in head and b"\r" in head.rstrip():
            raise BadInput(f"{part.path} ends its lines with a bare carriage return; expected line feeds")
        csv = self._csv
        first_line = head.split(b"\n", 1)[0]
        csv.delimiter = csv.delimiter or max(",;\t|", key=lambda mark: first_line.count(mark.encode()))
        ends = csv.ends(head, whole)
        if len(ends) == 0:
            raise BadInput(f"{part.path}: the first row does not end within {READ} bytes; is a quote not closed?")
        fields = self._names(part, head[: int(ends[0])], header)
        part.begin = begin + (int(ends[0]) if header else 0)
        if part is self._parts[0]:
            csv.names = fields
            self._rows_a_block = int(np.clip(BLOCK_BYTES * len(ends) // int(ends[-1]), 16, BLOCK_ROWS))
        elif fields != csv.names:
            raise BadInput(
                f"{part.path} has the columns {', '.join(fields)}, but {self.paths[0]} has {', '.join(csv.names)}"
            )

    def _names(self, part: Part, line: bytes, header: bool) -> list[str]:
        if (count := line.count(self._csv.delimiter.encode()) + 1) > COLUMNS:
            raise BadInput(f"{part.path} has {count} columns, expected at most {COLUMNS}")
        if not header:
            count = len(self._csv.header(_ascii(line)))
            names = [f"f{i}" for i in range(count)]
        else:
            try:
                names = self._csv.header(line.decode(part.encoding).encode())
            except UnicodeDecodeError as error:
                around = line[max(0, error.start - 10) : error.end + 10]
                raise BadInput(
                    f"{part.path}: the line of column names holds {shown(around)}, which is not "
                    f"{part.encoding} text; {HINT}"
                ) from None
        if len(names) < 2:
            raise BadInput(f"{part.path} has 1 column, separated by {self._csv.delimiter!r}; expected at least 2")
        if header and all(pc.match_substring_regex(pa.scalar(name), NUMBER).as_py() for name in names):
            raise BadInput(
                f"{part.path}: the first line holds only numbers ({names[0]}, {names[1]}, …), expected the names of "
                "the columns; read it with header=False if it has none"
            )
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise BadInput(f"{part.path} has two columns called {twice[0]!r}; expected different names")
        return names

    def _scan(self, part: Part) -> None:
        """Finds the rows, and hashes the file on the way."""
        digest = hashlib.sha256()
        offsets, rows, at, rest = [part.begin], 0, part.begin, b""
        with part.plain.open("rb") as file:
            digest.update(file.read(part.begin))
            while fresh := file.read(READ):
                digest.update(fresh)
                data = rest + fresh
                ends = self._csv.ends(data, False)
                rows, offsets = self._mark(rows, offsets, at, ends)
                done = int(ends[-1]) if len(ends) else 0
                at, rest = at + done, data[done:]
                if len(rest) > ROW:
                    raise BadInput(
                        f"{part.path.name}, row {rows + 1}: the row does not end within {len(rest)} bytes; is "
                        "a quote not closed?"
                    )
            if rest:
                ends = self._csv.ends(rest, True)
                rows, offsets = self._mark(rows, offsets, at, ends)
        size = part.plain.stat().st_size
        if len(offsets) > 1 and rows % self._rows_a_block == 0:
            offsets[-1] = size  # empty lines may follow the last row
        elif offsets[-1] != size:
            offsets.append(size)
        largest = int(np.diff(offsets).max(initial=0))
        if largest > ROW:
            first = int(np.argmax(np.diff(offsets))) * self._rows_a_block
            raise BadInput(
                f"{part.path.name}, rows {first + 1} to {min(first + self._rows_a_block, rows)} take {largest} bytes, "
                f"expected at most {ROW} for {self._rows_a_block} rows"
            )
        part.offsets = np.array(offsets) if rows else np.array([part.begin])
        part.rows = rows
        part.hash = digest.hexdigest()

    def _mark(self, rows: int, offsets: list[int], at: int, ends: np.ndarray) -> tuple[int, list[int]]:
        """Notes where each block begins that begins after one of these row ends."""
        first = -(rows + 1) % self._rows_a_block  # the end before the first row of the next block
        offsets += (at + ends[first :: self._rows_a_block].astype(np.int64)).tolist()
        return rows + len(ends), offsets

    def _text(self, i: int) -> bytes:
        """The rows of a block, in UTF-8; bytes that cannot be decoded stay, for a sentence that shows them."""
        number, start, stop = self._spans[i]
        part = self._parts[number]
        with part.plain.open("rb") as file:
            file.seek(start)
            text = file.read(stop - start)
        if codecs.lookup(part.encoding).name == "utf-8":
            return text
        return text.decode(part.encoding, "surrogateescape").encode("utf-8", "surrogateescape")


def _parts_of(folder: Path) -> list[Path]:
    found = in_reading_order(part for part in folder.rglob("*") if suffix_of(part) in (".csv", ".tsv"))
    if not found:
        raise BadInput(f"{folder} holds no .csv or .tsv files")
    return found


def _plain(path: Path, encoding: str | None, max_bytes: int | None) -> Part:
    """A file as it can be read from any place: itself, or a copy of what is compressed or UTF-16."""
    codec = COMPRESSED.get(path.suffix.lower())
    try:
        with pa.input_stream(str(path), compression=codec) as file:
            found = encoding or ("utf-16" if file.read(2) in UTF_16 else "utf-8")
        direct = _keeps_ascii(found)
        if codec is None and direct:
            return Part(path, path, found)
        limit = Limit(path, max_bytes=max_bytes, on_disk=True)
        name = f"plain-{file_hash(path)[:32]}-{file_stamp(path)}-{'' if direct else codecs.lookup(found).name}.csv"
        return Part(
            path,
            cached_file(name, lambda copy: _copy(path, codec, None if direct else found, copy, limit)),
            found if direct else "utf-8",
        )
    except LookupError:
        raise BadSetting(
            f"encoding ({encoding!r}) is not known; expected a name such as 'utf-8' or 'latin-1'"
        ) from None
    except OSError as error:
        what = "read" if codec is None else f"unpacked ({codec}) into the cache folder"
        raise BadInput(f"{path} cannot be {what}: {reason(error)}") from None


def _copy(path: Path, codec: str | None, encoding: str | None, to: Path, limit: Limit) -> None:
    decoder = codecs.getincrementaldecoder(encoding)() if encoding else None
    with pa.input_stream(str(path), compression=codec) as source, to.open("wb") as file:
        try:
            size = 0
            while data := source.read(READ):
                size += len(data)
                limit.check(path, size, at_least=True)
                file.write(decoder.decode(data).encode() if decoder else data)
            if decoder:
                file.write(decoder.decode(b"", final=True).encode())
        except UnicodeDecodeError as error:
            around = shown(error.object[error.start : error.end])
            raise BadInput(f"{path} holds {around}, which is not {encoding} text; {HINT}") from None


def _keeps_ascii(encoding: str) -> bool:
    """Whether line ends, quotes and delimiters are the bytes they are in ASCII, and those bytes are nothing else."""
    name = codecs.lookup(encoding).name
    if name.startswith(("utf-16", "utf-32", "utf-7", "iso2022", "hz")):
        return False
    plain = bytes(range(128))
    return plain.decode(name, "replace") == plain.decode("ascii")


def _ascii(line: bytes) -> bytes:
    return line.decode("ascii", "replace").encode("ascii", "replace")
