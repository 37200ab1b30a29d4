"""How the columns of a table become features: each row by itself, so nothing of the future can enter.

What a column is, is decided once, from its type and the first rows of the stream. After that the encoding is fixed.
A column that is empty so far and of no type is of the kind `any`. Times with a zone are taken in UTC.

| kind     | features                                                                                        |
|----------|-------------------------------------------------------------------------------------------------|
| number   | the number                                                                                      |
| flag     | 0 or 1                                                                                          |
| time     | sine and cosine of the hour (not for dates), the weekday and the day of the year; years since 2000 |
| clock    | sine and cosine of the time of day, and its share of the day                                    |
| category | one of `buckets` features is 1, chosen by a hash of the text; missing: none                     |
| text     | hashed words and character n-grams (`prequential.streams.formats.hashed_text`); missing: none   |
| text:256 | the same, as so many features                                                                   |
| text:NAME | what a frozen network gives (`prequential.streams.formats.text_encoders`); missing: zeros      |
| group    | `GROUP_SIGNS` features of ±1 given by a hash, so that hardly any two users share them           |
| vector   | the numbers of a list, always equally many                                                      |
| any      | a number where the text is one, and beside it the features of a category where it is not        |

A missing number, flag, time or vector is NaN, which learners take as the running mean. A column that has missing
values among the first rows also gets a feature that says so (0 or 1). Numbers are not scaled here: learners do that,
with statistics of the past only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prequential.errors import BadInput, BadSetting
from prequential.streams.formats import hashed_text, text_encoders

KINDS = ("number", "flag", "time", "clock", "category", "text", "group", "vector", "any")
NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
ZONED = r":\d{2}.*(Z|[+-]\d{2}(:?\d{2})?)$"
GROUP_SIGNS = 32
MOST_OF_TEXT = 2**16  # features
CLOCK = r"^\d{1,2}:\d{2}(:\d{2}(\.\d{1,6})?)?$"
DAY = 86_400_000_000  # microseconds
TEXT = "UTF-8 text (or say the file's encoding, such as encoding='latin-1')"
EXPECTED = {
    "number": "a number",
    "flag": "true or false",
    "time": "a date or time (ISO 8601)",
    "clock": "a time of day",
    "category": TEXT,
    "text": TEXT,
    "group": TEXT,
    "vector": "a list of numbers",
    "any": TEXT,
}
TAKES = {  # what can be read as a kind, where the user asks for it
    "number": "numbers, durations, true/false or text",
    "flag": "true/false, whole numbers, floats or text",
    "time": "dates, numbers or text",
    "clock": "times or text",
    "vector": "lists of numbers",
}


@dataclass(frozen=True)
class Column:
    """One column of a table and what becomes of it."""

    name: str
    kind: str  # one of KINDS, or "label"
    type: Any  # the Arrow type as which text is read
    width: int  # how many features, the indicator not counted
    indicator: bool = False  # whether one more feature says that the value is missing
    hours: bool = True  # of a time: whether it has a time of day

    @property
    def expected(self) -> str:
        if self.kind != "label":
            return EXPECTED[self.kind.partition(":")[0]]
        one = {"whole numbers": "a whole number", "true/false": "true or false", "numbers": "a number"}
        said = one.get(type_name(self.type))
        return f"a label, here {said}" if said else "a label"

    def __str__(self) -> str:
        """For fingerprints: must not change from one version of a library to the next."""
        return f"{self.name!r} {self.kind} {self.type} {self.width} {self.indicator} {self.hours}"

    def features(self) -> list[str]:
        """The names of the features."""
        match self.kind:
            case "time":
                parts = (["hour sin", "hour cos"] if self.hours else []) + ["weekday sin", "weekday cos"]
                names = [f"{self.name} {part}" for part in [*parts, "year sin", "year cos", "years"]]
            case "clock":
                names = [f"{self.name} {part}" for part in ("sin", "cos", "share")]
            case "any":
                names = [self.name, *(f"{self.name} {i}" for i in range(self.width - 1))]
            case "category" | "group" | "vector":
                names = [f"{self.name} {i}" for i in range(self.width)]
            case _:
                names = [self.name] if self.width == 1 else [f"{self.name} {i}" for i in range(self.width)]
        return [*names, f"{self.name} missing"] if self.indicator else names


def feature_column(
    name: str, sample: pa.ChunkedArray, kind: str | None, buckets: int, indicator: bool | None
) -> Column:
    """What becomes of a column, from its type and its first rows, or as the user says with `kind`."""
    kind = kind_of(name, sample.type, kind)
    has_hours = not pa.types.is_date(sample.type)
    widths = {"time": 7 if has_hours else 5, "clock": 3, "category": buckets, "group": GROUP_SIGNS, "any": buckets + 1}
    width = widths.get(kind, 1)
    if kind.startswith("text"):
        kind, width = _text_kind(kind)
    if kind == "vector":
        width = _vector_length(name, sample)
    if indicator is None:
        indicator = sample.null_count > 0 or (
            pa.types.is_floating(sample.type) and bool(pc.any(pc.is_nan(sample)).as_py())
        )
    return Column(name, kind, reading_type(kind, sample.type), width, indicator, has_hours)


def _text_kind(kind: str) -> tuple[str, int]:
    """The kind of a column of text as it is kept, and how many features it has."""
    number = kind.removeprefix("text").removeprefix(":")
    if not number or number.isdecimal():
        width = int(number or hashed_text.WIDTH)
        if not 2 <= width <= MOST_OF_TEXT:
            raise BadSetting(f"{kind} is text of {width} features, expected 2 to {MOST_OF_TEXT}")
        return "text", width
    kind = text_encoders.kept_kind(kind)
    return kind, text_encoders.encoder_of(kind).width


def reading_type(kind: str, found: pa.DataType) -> pa.DataType:
    """The Arrow type as which the text of a column of this kind is read."""
    if pa.types.is_dictionary(found):
        return reading_type(kind, found.value_type)
    match kind:
        case "number":
            return pa.float64()
        case "flag":
            return pa.bool_()
        case "time" if is_number(found):
            return pa.float64()
        case "time":
            return pa.timestamp("us", found.tz) if pa.types.is_timestamp(found) else pa.timestamp("us")
        case "clock":  # also 10:00:00.5, where the first rows have no fractions
            return pa.timestamp("us", found.tz) if pa.types.is_timestamp(found) else pa.time64("us")
        case "vector":
            return found
    return pa.string()


def label_column(name: str, found: pa.DataType, kind: str | None = None) -> Column:
    """The column of the labels, which stay as they are, or are all text or numbers if the user says so."""
    if kind is not None:
        if kind not in ("category", "number"):
            raise BadSetting(f"column {name!r} is the label and is to be read as {kind!r}, expected category or number")
        if pa.types.is_duration(found) and kind == "number":
            raise BadSetting(f"label column {name!r} has type {found} and can only be read as category")
        kind_of(name, found, kind)
        return Column(name, "label", reading_type(kind, found), 1)  # one that is cast
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_date, pa.types.is_null)
    kinds = (*plain, _is_text)
    if not any(is_kind(found) for is_kind in kinds):
        remedy = "" if pa.types.is_nested(found) else f"; kinds={{{name!r}: 'category'}} reads them as text"
        raise BadInput(
            f"label column {name!r} has type {found}, expected whole numbers, floats, text, true/false or days{remedy}"
        )
    return Column(name, "label", pa.string() if pa.types.is_null(found) else found, 0)


def fill(column: Column, values: pa.Array, out: np.ndarray) -> dict[int, str]:
    """Writes the features of these values into out (rows, features); gives the rows that cannot be used and why."""
    features = out[:, : column.width]
    match column.kind:
        case "number":
            bad = _fill_numbers(column, values, features)
        case "flag":
            values, bad = cast(column, values, pa.bool_())
            features[:, 0] = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        case "time":
            values, bad = cast(column, values, column.type)
            if pa.types.is_floating(values.type):
                values, far = _since_1970(column, values)
                bad = far | bad
            _fill_times(column, values, features)
        case "clock":
            values, bad = cast(column, values, pa.time64("us"))
            share = _floats(values.cast(pa.int64())) / DAY
            features[:, :2] = _circle(share)
            features[:, 2] = share
        case "vector":
            bad = _fill_vectors(column, values, features)
        case "any":
            bad = _fill_any(column, values, features)
        case "text":
            texts, bad = cast(column, values, pa.string())
            hashed_text.fill_text(texts.to_pylist(), features)
        case kind if kind.startswith("text:"):
            texts, bad = cast(column, values, pa.string())
            features[:] = text_encoders.encoder_of(kind)(texts.to_pylist())
        case _:
            bad = {}
            _fill_hashes(column, values, features)
    if column.indicator:
        missing = pc.is_null(values, nan_is_null=True) if pa.types.is_floating(values.type) else pc.is_null(values)
        out[:, column.width] = missing.to_numpy(zero_copy_only=False)
    return bad


def labels(column: Column, values: pa.Array) -> tuple[list[Hashable], dict[int, str]]:
    """The labels as Python values, and the rows where there is none."""
    values, bad = cast(column, values, column.type) if column.width else (values, {})
    plain: list[Hashable] = values.to_pylist()
    missing = [i for i, label in enumerate(plain) if label is None or label != label]
    return plain, {i: f"column {column.name!r} is empty, expected {column.expected}" for i in missing} | bad


def cast(column: Column, values: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """The values as another type; those that cannot be are missing, and the sentence says what they are."""
    if values.type == wanted:
        return values, {}
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if _is_text(values.type) and wanted != pa.string():
        with suppress(pa.ArrowInvalid):  # not UTF-8: found again below, cell by cell
            values = pc.utf8_trim_whitespace(values.cast(pa.string()))
    pieces = list(_cast_halves(values, wanted))
    bad, at = {}, 0
    for piece, good in pieces:
        if not good:
            bad[at] = f"column {column.name!r} is {shown(values[at].as_py())}, expected {column.expected}"
        at += len(piece)
    return (pieces[0][0] if len(pieces) == 1 else pa.concat_arrays([piece for piece, _ in pieces])), bad


def _cast_halves(values: pa.Array, wanted: pa.DataType) -> Iterator[tuple[pa.Array, bool]]:
    """The values in pieces as another type; a value that cannot be is a piece of its own, missing and marked.

    What fails is halved until the culprit stands alone, so that a few bad values among thousands cost little.
    """
    try:
        yield _converted(values, wanted), True
    except pa.ArrowInvalid:
        if len(values) == 1:
            yield pa.nulls(1, wanted), False
        else:
            yield from _cast_halves(values[: len(values) // 2], wanted)
            yield from _cast_halves(values[len(values) // 2 :], wanted)


def _converted(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    if _is_text(values.type) and pa.types.is_temporal(wanted) and not pa.types.is_string(values.type):
        values = pc.utf8_trim_whitespace(values.cast(pa.string()))  # some of it is not UTF-8, and here it is found
    if pa.types.is_time(wanted) and pa.types.is_string(values.type):
        if not pc.all(pc.match_substring_regex(values, CLOCK), min_count=0).as_py():
            raise pa.ArrowInvalid("no time of day")
        full = pc.replace_substring_regex(values, r"^(\d):", r"0\1:")
        on_a_day = pc.binary_join_element_wise("1970-01-01T", full, "")
        return on_a_day.cast(pa.timestamp("us")).cast(wanted)
    if pa.types.is_timestamp(wanted) and pa.types.is_string(values.type):
        # with a zone or without, row by row: those without count as UTC
        zoned = pc.fill_null(pc.match_substring_regex(values, ZONED), False)
        nothing = pa.scalar(None, pa.string())
        there = pc.if_else(zoned, values, nothing).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
        plain = pc.if_else(zoned, nothing, values).cast(pa.timestamp("us"))
        return pc.coalesce(there, plain).cast(pa.int64()).cast(wanted)
    return values.cast(wanted, safe=wanted == pa.string())  # only a safe cast looks whether bytes are UTF-8


def shown(value: Any) -> str:
    """A value in a sentence, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


@lru_cache(maxsize=2**16, typed=True)
def hash_of(column: str, value: Any) -> int:
    """64 bits that depend on the column and the value alone, the same everywhere."""
    content = value if isinstance(value, bytes) else str(value).encode()
    return int.from_bytes(hashlib.blake2b(column.encode() + b"\0" + content, digest_size=8).digest(), "little")


def _fill_numbers(column: Column, values: pa.Array, out: np.ndarray) -> dict[int, str]:
    if pa.types.is_duration(values.type):
        values = pc.divide(values.cast(pa.duration("us")).cast(pa.int64()).cast(pa.float64()), 1e6)
    values, bad = cast(column, values, pa.float64())
    out[:, 0] = _floats(values)
    infinite = np.isinf(out[:, 0])
    if infinite.any():
        for i in np.flatnonzero(infinite):
            bad[int(i)] = f"column {column.name!r} is {out[i, 0]}, expected a finite number"
    return bad


def _fill_times(column: Column, values: pa.Array, out: np.ndarray) -> None:
    known = values.is_valid().to_numpy(zero_copy_only=False)
    micros = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    day = micros / DAY  # since 1970-01-01, a Thursday
    new_year = (micros // DAY).astype("M8[D]").astype("M8[Y]").astype("M8[D]").astype(np.int64)
    parts = [_circle(day % 1)] if column.hours else []
    parts += [_circle((day + 3) / 7 % 1), _circle((day - new_year) / 365.25), (day[:, None] - 10957) / 365.25]
    out[:] = np.where(known[:, None], np.concatenate(parts, 1), np.nan)


def _since_1970(column: Column, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Numbers as times: seconds, or where they are too large for a date of our age, milli-, micro- or nanoseconds."""
    numbers = _floats(values)
    far = np.abs(numbers) > 9e18  # no time, in whatever unit
    size = np.abs(np.where(far | np.isnan(numbers), 0, numbers))
    per_unit = np.select([size < 1e11, size < 1e14, size < 1e17], [1e6, 1e3, 1.0], 1e-3)
    micros = np.where(size > 0, numbers, 0) * per_unit
    bad = {
        int(i): f"column {column.name!r} is {numbers[i]}, expected {column.expected} or seconds since 1970"
        for i in np.flatnonzero(far)
    }
    return pa.array(micros.astype(np.int64), mask=far | np.isnan(numbers)).cast(pa.timestamp("us")), bad


def _fill_any(column: Column, values: pa.Array, out: np.ndarray) -> dict[int, str]:
    """Numbers in the first place, what is none as a category in the others."""
    texts, bad = cast(column, values, pa.string())
    is_text = pc.fill_null(pc.invert(pc.match_substring_regex(texts, NUMBER)), False)
    nothing = pa.scalar(None, pa.string())
    _fill_hashes(column, pc.if_else(is_text, texts, nothing), out[:, 1:])
    return _fill_numbers(column, pc.if_else(is_text, nothing, texts), out[:, :1]) | bad


def _fill_hashes(column: Column, values: pa.Array, out: np.ndarray) -> None:
    if pa.types.is_dictionary(values.type):
        # the dictionary may be that of a whole file, and a block uses little of it
        indices = values.indices.cast(pa.int64()).fill_null(-1)  # they may be unsigned
        used, place = np.unique(indices.to_numpy(zero_copy_only=False), return_inverse=True)
        texts = [None if i < 0 else values.dictionary[int(i)].as_py() for i in used]
    else:
        if pa.types.is_floating(values.type) or pa.types.is_decimal(values.type):
            values = values.cast(pa.string())
        elif pa.types.is_string_view(values.type):
            values = values.cast(pa.large_string())  # the dictionary of views loses what is missing
        coded = values.dictionary_encode(null_encoding="encode")
        place, texts = coded.indices.to_numpy(zero_copy_only=False), coded.dictionary.to_pylist()
    hashes = np.array([0 if text is None else hash_of(column.name, text) for text in texts], np.uint64)
    if column.kind == "group":
        bits = (hashes[:, None] >> np.arange(out.shape[1], dtype=np.uint64)) & np.uint64(1)
        codes = bits.astype(np.float64) * 2 - 1
    else:
        codes = np.zeros((len(texts), out.shape[1]))
        codes[np.arange(len(texts)), hashes % np.uint64(out.shape[1])] = 1
    codes[[text is None for text in texts]] = 0
    out[:] = codes[place]


def _fill_vectors(column: Column, values: pa.Array, out: np.ndarray) -> dict[int, str]:
    lengths = pc.list_value_length(values).fill_null(-1).to_numpy(zero_copy_only=False)
    bad = {
        int(i): f"column {column.name!r} has {lengths[i]} numbers, expected {column.width}"
        for i in np.flatnonzero((lengths != column.width) & (lengths >= 0))
    }
    right = lengths == column.width
    out[:] = np.nan
    if right.any():
        flat = pc.list_flatten(values.filter(pa.array(right)))
        out[right] = _floats(flat.cast(pa.float64(), safe=False)).reshape(-1, column.width)
    for i, j in np.argwhere(np.isinf(out)):
        bad.setdefault(int(i), f"column {column.name!r} is {out[i, j]} at place {j}, expected a finite number")
    return bad


def _floats(values: pa.Array) -> np.ndarray:
    """As float64, missing values as NaN."""
    if values.type != pa.float64():
        values = values.cast(pa.float64(), safe=False)
    floats: np.ndarray = values.to_numpy(zero_copy_only=False)
    return floats


def _circle(share: np.ndarray) -> np.ndarray:
    """The sine and cosine of a share of a full turn, (n, 2)."""
    return np.stack([np.sin(2 * np.pi * share), np.cos(2 * np.pi * share)], 1)


def kind_of(name: str, found: pa.DataType, kind: str | None = None) -> str:
    """What a column of this type is, or what the user says it is."""
    if kind is not None:
        if not isinstance(kind, str) or (kind not in KINDS and not kind.startswith("text:")):
            raise BadSetting(
                f"column {name!r} is to be read as {kind!r}, expected one of {', '.join(KINDS)}, text:NAME"
            )
        if not can_be(kind, found):
            raise BadSetting(
                f"column {name!r} has type {found} and cannot be read as {kind!r}, which takes "
                f"{TAKES.get(kind, 'single values')}"
            )
        return kind
    if pa.types.is_boolean(found):
        return "flag"
    if is_number(found) or pa.types.is_duration(found):
        return "number"
    if pa.types.is_timestamp(found) or pa.types.is_date(found):
        return "time"
    if pa.types.is_time(found):
        return "clock"
    if pa.types.is_null(found):
        return "any"
    if _is_text(found):
        return "category"
    if _is_numbers(found):
        return "vector"
    raise BadInput(f"column {name!r} has type {found}, which cannot become features; choose others with features")


def can_be(kind: str, found: pa.DataType) -> bool:
    """Whether `fill` can make features of this kind out of values of a type; text is looked at row by row."""
    if pa.types.is_dictionary(found):
        return can_be(kind, found.value_type)
    is_text = pa.types.is_null(found) or _is_text(found)
    is_flag, is_time = pa.types.is_boolean(found), pa.types.is_timestamp(found)
    match kind:
        case "number":
            return is_text or is_flag or is_number(found) or pa.types.is_duration(found)
        case "flag":
            return is_text or is_flag or (is_number(found) and not pa.types.is_decimal(found))
        case "time":
            return is_text or is_time or is_number(found) or pa.types.is_date(found)
        case "clock":
            return is_text or is_time or pa.types.is_time(found)
        case "vector":
            return _is_numbers(found)
    return not pa.types.is_nested(found) and not isinstance(found, pa.BaseExtensionType)


def _vector_length(name: str, sample: pa.ChunkedArray) -> int:
    if pa.types.is_fixed_size_list(sample.type):
        return int(sample.type.list_size)
    for value in sample:
        if value.is_valid:
            return len(value)
    raise BadInput(
        f"column {name!r} holds lists, but the first {len(sample)} are all missing: their length is not known"
    )


def _is_text(found: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(is_kind(found) for is_kind in (*kinds, *binary, pa.types.is_dictionary))


def is_plain_text(found: pa.DataType) -> bool:
    """Whether a type is one of text, also in a dictionary, and not of bytes."""
    if pa.types.is_dictionary(found):
        return is_plain_text(found.value_type)
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found))


def _is_list(found: pa.DataType) -> bool:
    return bool(pa.types.is_list(found) or pa.types.is_large_list(found) or pa.types.is_fixed_size_list(found))


def _is_numbers(found: pa.DataType) -> bool:
    return _is_list(found) and bool(pa.types.is_integer(found.value_type) or pa.types.is_floating(found.value_type))


def is_number(found: pa.DataType) -> bool:
    """Whether a type is one of numbers."""
    return bool(pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_decimal(found))


def type_name(found: pa.DataType) -> str:
    """What labels of a type are called."""
    if pa.types.is_integer(found) or pa.types.is_floating(found):
        return "whole numbers" if pa.types.is_integer(found) else "numbers"
    return "true/false" if pa.types.is_boolean(found) else "days" if pa.types.is_date(found) else "text"


def whole(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
