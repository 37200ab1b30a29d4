"""How rows become the numbers that a learner takes: which columns, of which kinds, in which order."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prequential.errors import BadCheckpoint, BadInput, BadSetting, ColumnWarning, short
from prequential.streams.formats.column_kinds import kind_of_values
from prequential.streams.formats.csv_rows import MISSING, CsvRows
from prequential.streams.formats.encoding import KINDS, Column, feature_column, fill, hash_of, reading_type, whole
from prequential.streams.formats.raw_rows import READ_FROM_TEXT, RawRows, as_rows, text_of

LATEST = 2  # how columns are read; 1: ids are features, text is a category, dates in typed text too
EXTRA = 16  # features for fields that appear later, half of them for numbers
MOST_NAMED = 1000  # unknown fields that a warning names
MOST_WIDTH = 2**24
EXACT = 2**53  # whole numbers up to this are the same as floats
MOST_KEPT, LONGEST_KEPT = 4096, 64  # texts whose features are kept, and how long they may be
TYPES = {str(kind): kind for kind in (pa.float64(), pa.bool_(), pa.timestamp("us"), pa.time64("us"), pa.string())}
ZONED = re.compile(r"timestamp\[us, tz=([\w/+:-]{1,60})\]")
ENCODED = re.compile(r"text:[^#\0]{1,1000}#[0-9a-f]{12}")
FIXED = {"number": (1,), "flag": (1,), "time": (5, 7), "clock": (3,), "group": (32,)}  # widths of kinds


@dataclass(frozen=True, eq=False)
class Schema:
    """How rows become vectors of numbers: decided once, from a table or from the first rows, and then fixed.

    `TableStream.schema` is that of a table. A learner keeps the one it was given, that of the table it first ran over,
    or one made from the first rows it was given, and saves it with its state.

    A field that is missing in a row is a missing value. A field that is not known is named in a warning the first time.
    Where the schema has `extra` features, it is read into them by a hash of its name: numbers into the first half,
    other values as categories into the second. So fields may appear and vanish, and the width stays.

    Parameters
    ----------
    columns
        The columns that become features, in order.
    ignored
        Columns that are known and are no features: the label, ids, a time that only gives the order.
    extra
        How many features there are for fields that appear later.
    strict
        Whether a row with an unknown field is refused.
    csv
        Whether the columns are those of a CSV, in which texts such as NA stand for missing values.
    decimal_point, dates
        How numbers and dates are written where they are text, as in a CSV.

    Examples
    --------
    >>> schema = Schema.from_rows([{"amount": 3.2, "paid": True}], extra=0)
    >>> schema.feature_names
    ['amount', 'paid']
    >>> schema.encode([{"amount": 1, "paid": False}, {"paid": True}]).tolist()
    [[1.0, 0.0], [nan, 1.0]]
    """

    columns: tuple[Column, ...]
    ignored: tuple[str, ...] = ()
    extra: int = 0
    strict: bool = False
    csv: bool = False
    decimal_point: str = "."
    dates: str | None = None
    _named: set[str] = field(default_factory=set, repr=False)  # unknown fields that were named

    @classmethod
    def from_rows(
        cls,
        rows: Any,
        *,
        kinds: Mapping[str, str] | None = None,
        buckets: int = 16,
        extra: int = EXTRA,
        ignored: Sequence[str] = (),
        keep_ids: bool = False,
        strict: bool = False,
    ) -> Self:
        """The schema for rows like these: a list of dicts, a data frame, or one dict.

        The values decide the kinds of the columns, as the first rows of a table do; where all are text, as
        csv.DictReader gives them, they are read as those of a CSV are.
        """
        found = as_rows(rows, one=isinstance(rows, Mapping), named=True)
        if found is None or not len(found) or not found.names:
            raise BadInput(f"got {short(rows)}, expected rows: a dict, a list of dicts or a data frame")
        names = [name for name in found.names if name not in ignored]
        kinds = {str(name): kind for name, kind in (kinds or {}).items()}
        samples = {name: found.sample(name) for name in names}
        csv = found.is_text
        if csv:
            samples = {name: _typed(name, sample.cast(pa.string())) for name, sample in samples.items()}
        types = {name: sample.type for name, sample in samples.items()}
        columns, ids = decide_columns(samples, types, kinds, buckets=buckets, kept=names if keep_ids else ())
        return cls(tuple(columns), (*ignored, *ids), extra=extra, strict=strict, csv=csv)

    def changed(self, **changes: Any) -> Self:
        """The same with other values, such as `strict=True`."""
        return replace(self, **changes, _named=set())

    @cached_property
    def feature_names(self) -> list[str]:
        """The names of the features."""
        names = [name for column in self.columns for name in column.features()]
        return [*names, *(f"later {i}" for i in range(self.extra))]

    @property
    def width(self) -> int:
        """How many features there are."""
        return sum(column.width + column.indicator for column in self.columns) + self.extra

    def encode(self, rows: Any, first: int = 0) -> np.ndarray:
        """Rows as an array (n, width); a value that cannot be read is refused. `first` numbers them, for messages."""
        found = as_rows(rows, named=True)
        if found is None:
            raise BadInput(f"got {short(rows)}, expected rows: a list of dicts or a data frame")
        if (one := found.single) is not None and (row := self._encode_plain(one)) is not None:
            return row
        unknown = self._check_names(found, first)
        x = np.zeros((len(found), self.width))
        at = 0
        for column in self.columns:
            width = column.width + column.indicator
            values, bad = found.read(column, self._reader, MISSING if self.csv else ())
            bad = bad or fill(column, values, x[:, at : at + width])
            for i, what in sorted(bad.items())[:1]:
                remedy = (
                    f", kinds={{{short(column.name)}: 'category'}} in its schema reads text"
                    if column.kind in READ_FROM_TEXT
                    else ""
                )
                raise BadInput(f"example {first + i}: {what}; None says that it is missing{remedy}")
            at += width
        if self.extra:
            for name in unknown:
                self._fill_extra(name, found.values(name), x[:, at:])
        return x

    def _encode_plain(self, row: Mapping[str, Any]) -> np.ndarray | None:
        """One row of known fields with numbers, flags and texts as Python has them; None where it has others.

        Arrow, which reads all else, takes ten times as long for a single row.
        """
        columns, names = self._plain_columns
        if not names.issuperset(row):
            return None
        features: list[float] = []
        found = 0
        for column, kept in columns:
            value: Any = row.get(column.name)
            found += column.name in row
            kind = type(value)
            if kind is np.float64:
                value, kind = float(value), float
            if column.kind == "number" and (kind is float or (kind is int and -EXACT <= value <= EXACT)):
                if value - value != 0 and value == value:  # infinite: it is refused
                    return None
                features.append(value)
                if column.indicator:
                    features.append(value != value)
            elif column.kind == "flag" and kind is bool:
                features.append(value)
                if column.indicator:
                    features.append(False)
            elif value is None or (kind is str and column.kind == "category"):
                made = kept.get(value)
                if made is None:
                    made = self._kept_features(column, value, kept)
                if made is None:
                    return None
                features += made
            else:
                return None
        return np.array([features + [0.0] * self.extra], np.float64) if found else None

    def _kept_features(self, column: Column, value: Any, kept: dict[Any, list[float]]) -> list[float] | None:
        """The features of a text, or of nothing, which are kept; None where it cannot be read."""
        out = np.zeros((1, column.width + column.indicator))
        values, bad = RawRows([{column.name: value}]).read(column, self._reader, MISSING if self.csv else ())
        if bad or fill(column, values, out):
            return None
        if len(kept) < MOST_KEPT and len(value or "") <= LONGEST_KEPT:
            kept[value] = out[0].tolist()
        made: list[float] = out[0].tolist()
        return made

    @cached_property
    def _plain_columns(self) -> tuple[list[tuple[Column, dict[Any, list[float]]]], set[str]]:
        """Each column with the features of texts that were seen, and the fields that a row may have."""
        return [(column, {}) for column in self.columns], {column.name for column in self.columns} | set(self.ignored)

    def fill_table(self, rows: pa.Table, bad: dict[int, str]) -> np.ndarray:
        """Rows of a table as an array; what is wrong with those that cannot be read is added to `bad`."""
        x = np.zeros((len(rows), self.width))
        at = 0
        names = set(rows.schema.names)
        for column in self.columns:
            width = column.width + column.indicator
            values = whole(rows.column(column.name)) if column.name in names else pa.nulls(len(rows), column.type)
            for i, what in fill(column, values, x[:, at : at + width]).items():
                bad.setdefault(i, what)
            at += width
        return x

    def _check_names(self, rows: RawRows, first: int) -> list[str]:
        """The unknown fields of these rows; the new ones are named."""
        known = {column.name for column in self.columns}
        if not known.intersection(rows.names):
            raise BadInput(
                f"example {first}: the fields are {short(rows.names)}, expected some of "
                f"{short([column.name for column in self.columns])}"
            )
        unknown = [name for name in rows.names if name not in known and name not in self.ignored]
        if unknown and self.strict:
            raise BadInput(
                f"example {first}: field {short(unknown[0])} is not known; the {len(known)} known ones are "
                f"{short(sorted(known))}; strict=False takes rows that have others"
            )
        new = [name for name in unknown if name not in self._named][: MOST_NAMED - len(self._named)]
        if new:
            self._named.update(new)
            does = f"goes into the {self.extra} features for later fields" if self.extra else "is not used"
            warnings.warn(
                f"example {first}: field{'s' * (len(new) > 1)} {', '.join(map(short, new[:5]))} not known so far: what "
                f"is in {'them' if len(new) > 1 else 'it'} {does}",
                ColumnWarning,
                stacklevel=6,
            )
        return unknown

    def _fill_extra(self, name: str, values: list[Any], out: np.ndarray) -> None:
        half = out.shape[1] // 2
        for row, value in zip(out, values, strict=True):
            if isinstance(value, (int, float, np.number, np.bool_)) and half:
                row[hash_of(name, "") % half] += np.clip(float(value), -1e300, 1e300)
            elif value is not None:
                row[half + hash_of(name, text_of(value)) % (len(row) - half)] = 1

    @cached_property
    def _reader(self) -> CsvRows:
        return CsvRows("text", ";" if self.decimal_point == "," else ",", True, self.decimal_point, self.dates)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(tuple(column.name for column in self.columns))

    # Keeping it.

    def to_dict(self) -> dict[str, Any]:
        """Everything about it as JSON values."""
        columns = [
            {
                "name": column.name,
                "kind": column.kind,
                "type": None if column.kind == "vector" else str(column.type),
                "width": column.width,
                "indicator": column.indicator,
                "hours": column.hours,
            }
            for column in self.columns
        ]
        return {
            "columns": columns,
            "ignored": list(self.ignored),
            "extra": self.extra,
            "strict": self.strict,
            "csv": self.csv,
            "decimal_point": self.decimal_point,
            "dates": self.dates,
        }

    @classmethod
    def from_dict(cls, content: Any) -> Self:
        """The schema that `to_dict` gave this; anything else is refused."""
        try:
            columns = tuple(_column(entry) for entry in content["columns"])
            ignored, extra = tuple(content["ignored"]), content["extra"]
            texts = [*ignored, content["decimal_point"], *([content["dates"]] if content["dates"] is not None else [])]
            good = all(isinstance(text, str) for text in texts) and type(extra) is int and 0 <= extra <= MOST_WIDTH
            good = good and type(content["strict"]) is bool and type(content["csv"]) is bool
            good = good and len({column.name for column in columns}) == len(columns)
            if not good or sum(column.width for column in columns) > MOST_WIDTH:
                raise ValueError
            schema = cls(
                columns, ignored, extra, content["strict"], content["csv"], content["decimal_point"], content["dates"]
            )
            _ = schema._reader  # checks how numbers and dates are written
            return schema
        except (KeyError, TypeError, ValueError, BadSetting):
            raise BadCheckpoint(f"it says {short(content)} of how rows are read, which is no schema") from None


def decide_columns(
    samples: Mapping[str, pa.ChunkedArray],
    types: Mapping[str, pa.DataType],
    kinds: Mapping[str, str],
    *,
    buckets: int,
    indicators: bool | None = None,
    kept: Collection[str] = (),
    version: int = LATEST,
) -> tuple[list[Column], list[str]]:
    """What becomes of each column, by its first values, and which are left out because they are ids.

    Parameters
    ----------
    samples, types
        The first values of each column, and its type in the table, which may be narrower.
    kinds
        How columns are to be read where the user says so; such a column is never left out.
    buckets, indicators
        As in `TableStream`.
    kept
        Columns that are features also where they are different in every row.
    version
        How columns are read: 2, or 1 as in streams of version 0.1.
    """
    columns, ids, hours = [], [], True
    for name, sample in samples.items():
        kind = kinds.get(name)
        if kind is None and version >= 2:
            kind = kind_of_values(types[name], sample)
            hours = kind != "time" or any(len(text or "") > 10 for text in sample.cast(pa.string()).to_pylist())
        if kind == "id" and name not in kept:
            ids.append(name)
            continue
        column = feature_column(name, sample, None if kind == "id" else kind, buckets, indicators)
        columns.append(column if hours else replace(column, hours=False, width=5))
    if not columns:  # there is nothing else to predict from
        columns = [feature_column(name, samples[name], None, buckets, indicators) for name in ids]
        ids = []
    return columns, ids


def _typed(name: str, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as what they would be in a CSV."""
    reader = CsvRows("text", ",", True, ".")
    reader.names = [name]
    lines = (f'"{(text or "").replace(chr(34), chr(34) * 2)}"\n' for text in texts.to_pylist())
    found = reader.types("".join(lines).encode(errors="replace"), None).field(0).type
    if pa.types.is_null(found):
        return pa.chunked_array([pa.nulls(len(texts))])
    texts = pc.if_else(pc.is_in(texts, pa.array(MISSING)), pa.scalar(None, pa.string()), texts)
    return pa.chunked_array([reader.cells(Column(name, "any", found, 1), whole(texts))[0]])


def _column(entry: Any) -> Column:
    name, kind, width, indicator, hours = (entry[key] for key in ("name", "kind", "width", "indicator", "hours"))
    if not isinstance(name, str) or not isinstance(kind, str) or type(width) is not int or not 0 < width <= MOST_WIDTH:
        raise ValueError
    if type(indicator) is not bool or type(hours) is not bool or width not in FIXED.get(kind, (width,)):
        raise ValueError
    if (kind not in KINDS and not ENCODED.fullmatch(kind)) or (kind == "time" and width != 5 + 2 * hours):
        raise ValueError
    if kind == "vector":
        return Column(name, kind, pa.list_(pa.float64()), width, indicator, hours)
    zoned = ZONED.fullmatch(entry["type"])
    found = pa.timestamp("us", zoned[1]) if zoned else TYPES[entry["type"]]
    if reading_type(kind, found) != found:
        raise ValueError
    return Column(name, kind, found, width, indicator, hours)
