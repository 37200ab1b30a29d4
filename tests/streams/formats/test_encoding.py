import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest

from prequential.errors import BadInput, BadSetting
from prequential.streams.formats.encoding import Column, cast, feature_column, fill, hash_of, label_column, labels


def encoded(values, kind=None, buckets=8, indicator=None):
    sample = pa.chunked_array([values])
    column = feature_column("c", sample, kind, buckets, indicator)
    out = np.zeros((len(values), column.width + column.indicator))
    bad = fill(column, values, out)
    assert len(column.features()) == out.shape[1]
    return out, bad, column


@pytest.mark.parametrize(
    "type_",
    [pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(5, 1), pa.decimal256(40, 2)],
)
def test_numbers_of_every_type(type_):
    values = pa.array(
        [None, np.float16(3), np.float16(7)]
        if type_ == pa.float16()
        else [None, decimal.Decimal(3), decimal.Decimal(7)]
        if pa.types.is_decimal(type_)
        else [None, 3, 7],
        type_,
    )
    out, bad, column = encoded(values)
    assert column.kind == "number"
    assert out[1:].tolist() == [[3, 0], [7, 0]]
    assert np.isnan(out[0, 0])
    assert out[0, 1] == 1
    assert bad == {}


def test_nan_counts_as_missing_and_infinity_as_bad():
    out, bad, _ = encoded(pa.array([1.0, float("nan"), float("inf")]))
    assert out[:, 1].tolist() == [0, 1, 0]
    assert bad == {2: "column 'c' is inf, expected a finite number"}


def test_durations_are_seconds():
    out, _, _ = encoded(pa.array([datetime.timedelta(minutes=2), datetime.timedelta(milliseconds=5)]))
    assert out[:, 0].tolist() == [120, 0.005]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_of_every_unit(unit, zone):
    at = datetime.datetime(2024, 3, 1, 18, tzinfo=datetime.UTC if zone else None)
    out, _, column = encoded(pa.array([at, None, at], pa.timestamp(unit, zone)))
    x = dict(zip(column.features(), out[0], strict=True))
    assert x["c hour sin"] == pytest.approx(-1)
    assert x["c hour cos"] == pytest.approx(0, abs=1e-9)
    share = (4 + 0.75) / 7  # a Friday evening
    assert x["c weekday sin"] == pytest.approx(np.sin(2 * np.pi * share))
    assert x["c years"] == pytest.approx((8826 - 0 + 0.75) / 365.25)
    assert np.isnan(out[1, :-1]).all()
    assert out[:, -1].tolist() == [0, 1, 0]


def test_numbers_as_times():
    seconds = 1709316000  # 2024-03-01 18:00
    out, bad, column = encoded(
        pa.array([seconds, seconds * 10**3, seconds * 10**6, seconds * 10**9, None]), kind="time"
    )
    expected, _, _ = encoded(pa.array([datetime.datetime(2024, 3, 1, 18)]))
    assert bad == {}
    np.testing.assert_allclose(out[:4, :7], np.repeat(expected, 4, 0), atol=1e-6)
    assert np.isnan(out[4, :7]).all()
    assert column.indicator


def test_times_before_1970():
    out, _, column = encoded(pa.array([datetime.date(1969, 12, 31), datetime.date(1900, 1, 1)]))
    x = dict(zip(column.features(), out.T, strict=True))
    assert x["c years"][0] == pytest.approx(-30, abs=0.01)
    assert x["c year cos"][1] == pytest.approx(1)
    assert x["c weekday cos"][1] == pytest.approx(1)  # a Monday


@pytest.mark.parametrize(
    "make",
    [
        lambda v: pa.array(v),
        lambda v: pa.array(v, pa.large_string()),
        lambda v: pa.array(v, pa.string_view()),
        lambda v: pa.array(v).dictionary_encode(),
        lambda v: pa.DictionaryArray.from_arrays(
            pa.array([1, None, 0, 1], pa.uint8()), ["Bonn", "Ulm"]
        ),  # as in polars
    ],
)
def test_text_of_every_type_hashes_alike(make):
    out, bad, column = encoded(make(["Ulm", None, "Bonn", "Ulm"]))
    assert column.kind == "category"
    assert out[[0, 2, 3], :8].sum(1).tolist() == [1, 1, 1]
    assert out[0].argmax() == out[3].argmax() == hash_of("c", "Ulm") % 8
    assert out[2].argmax() == hash_of("c", "Bonn") % 8
    assert out[1].tolist() == [0] * 8 + [1]
    assert bad == {}


def test_the_hash_is_the_same_everywhere():
    assert hash_of("city", "Ulm") == 11_191_687_579_067_287_541
    assert hash_of("city", 1) != hash_of("city", True)


def test_numbers_as_categories():
    out, _, _ = encoded(pa.array([89073, 53111, 89073]), kind="category")
    assert out.sum(1).tolist() == [1, 1, 1]
    assert out[0].tolist() == out[2].tolist()
    assert out[0].argmax() == hash_of("c", 89073) % 8


def test_text_as_numbers():
    out, bad, _ = encoded(pa.array(["1.5", " 2 ", "x"]), kind="number")
    assert out[:2, 0].tolist() == [1.5, 2]
    assert bad == {2: "column 'c' is 'x', expected a number"}


@pytest.mark.parametrize("type_", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.int16(), 2)])
def test_vectors(type_):
    out, bad, column = encoded(pa.array([[1, 2], None, [3, 4]], type_))
    assert column.kind == "vector"
    assert out[[0, 2]].tolist() == [[1, 2, 0], [3, 4, 0]]
    assert np.isnan(out[1, :2]).all()
    assert bad == {}


def test_vectors_of_other_lengths_are_bad():
    _, bad, _ = encoded(pa.array([[1.0, 2.0], [3.0], [1.0, float("inf")]]))
    assert bad == {
        1: "column 'c' has 1 numbers, expected 2",
        2: "column 'c' is inf at place 1, expected a finite number",
    }


def test_a_column_that_cannot_be_a_feature():
    with pytest.raises(BadInput, match="column 'c' has type struct<a: int64>, which cannot become features"):
        encoded(pa.array([{"a": 1}]))


def test_labels_stay_what_they_are():
    for values in (["a", "b"], [1, 2], [True, False], [1.5, 2.0], [datetime.date(2024, 1, 1)]):
        column = label_column("y", pa.array(values).type)
        assert labels(column, pa.array(values)) == (values, {})
    _, bad = labels(label_column("y", pa.float64()), pa.array([1.0, None, float("nan")]))
    assert bad == dict.fromkeys((1, 2), "column 'y' is empty, expected a label, here a number")
    with pytest.raises(BadInput, match="label column 'y' has type list"):
        label_column("y", pa.list_(pa.int8()))


def test_a_column_that_is_empty_so_far_takes_whatever_comes():
    column = feature_column("c", pa.chunked_array([pa.nulls(5)]), None, 8, None)
    assert (column.kind, column.width, column.indicator) == ("any", 9, True)
    assert column.features() == ["c", *(f"c {i}" for i in range(8)), "c missing"]
    out = np.zeros((4, 10))
    assert fill(column, pa.array(["7.5", "red", None, "1e999"]), out) == {
        3: "column 'c' is inf, expected a finite number"
    }
    assert out[0].tolist() == [7.5] + [0] * 9
    assert np.isnan(out[1:3, 0]).all()
    assert out[1, 1:].argmax() == hash_of("c", "red") % 8
    assert out[1, 1:].sum() == 1
    assert out[2, 1:].tolist() == [0] * 8 + [1]


def test_text_with_and_without_a_zone():
    texts = pa.array(["2024-01-01T00:00:00Z", "2024-01-01 02:00:00+02:00", "2024-01-01", "2024-01-01T00:00", "soon"])
    for zone in (None, "UTC"):
        column = Column("c", "time", pa.timestamp("us", zone), 7)
        found, bad = cast(column, texts, column.type)
        assert found.type == column.type
        assert found.cast(pa.int64()).to_pylist() == [1_704_067_200_000_000] * 4 + [None]
        assert bad == {4: "column 'c' is 'soon', expected a date or time (ISO 8601)"}


def test_numbers_that_are_no_time():
    _, bad, _ = encoded(pa.array([1e300, 5.0]), kind="time")
    assert bad == {0: "column 'c' is 1e+300, expected a date or time (ISO 8601) or seconds since 1970"}


def test_whole_numbers_beyond_the_digits_of_a_float():
    big = 2**60 + 1
    out, _, _ = encoded(pa.array([big, None]))
    assert out[0, 0] == float(big)
    a, _, _ = encoded(pa.array([big, big + 1]), kind="group")
    assert (a[0] != a[1]).any()
    assert labels(label_column("y", pa.int64()), pa.array([big])) == ([big], {})


@pytest.mark.parametrize("values", [[["a"]], [[[1.0]]], [{"a": 1}], [b"1234"]])
def test_nested_columns_are_refused_by_name(values):
    found = pa.array(values, pa.binary(4)) if values == [b"1234"] else pa.array(values)
    with pytest.raises(BadInput, match=r"column 'c' has type .*, which cannot become features; choose others"):
        encoded(found)


def test_text_as_a_time_of_day():
    out, bad, _ = encoded(pa.array(["08:30:00", " 8:30 ", "10:00:00.5", "foo", "25:00", None]), kind="clock")
    assert bad == {i: f"column 'c' is '{what}', expected a time of day" for i, what in ((3, "foo"), (4, "25:00"))}
    np.testing.assert_allclose(out[:3, 2], [8.5 / 24, 8.5 / 24, (10 + 0.5 / 3600) / 24])
    assert np.isnan(out[3:, 2]).all()
    _, bad, _ = encoded(pa.array([b"08:30:00", b"\xff"]), kind="clock")
    assert bad == {1: "column 'c' is b'\\xff', expected a time of day"}
    _, bad, _ = encoded(pa.array([b"2024-01-01", b"\xff"]), kind="time")
    assert bad == {1: "column 'c' is b'\\xff', expected a date or time (ISO 8601)"}


SAMPLES = {
    "numbers": pa.array([1.5, 2.5]),
    "whole": pa.array([1, 2]),
    "decimals": pa.array([decimal.Decimal("1.5"), decimal.Decimal(2)]),
    "flags": pa.array([True, False]),
    "times": pa.array([datetime.datetime(2024, 1, 1)] * 2),
    "zoned": pa.array([datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)] * 2),
    "days": pa.array([datetime.date(2024, 1, 1)] * 2),
    "clocks": pa.array([datetime.time(8, 30)] * 2),
    "durations": pa.array([datetime.timedelta(1)] * 2),
    "text": pa.array(["1", "x"]),
    "bytes": pa.array([b"1", b"x"]),
    "coded": pa.array(["1", "x"]).dictionary_encode(),
    "coded numbers": pa.array([1, 2]).dictionary_encode(),
    "nothing": pa.nulls(2),
    "vectors": pa.array([[1.0, 2.0]] * 2),
    "lists": pa.array([["a"]] * 2),
    "structs": pa.array([{"a": 1}] * 2),
    "fixed": pa.array([b"1234"] * 2, pa.binary(4)),
}
REFUSED = {
    "number": {"times", "zoned", "days", "clocks", "vectors", "lists", "structs", "fixed"},
    "flag": {"decimals", "times", "zoned", "days", "clocks", "durations", "vectors", "lists", "structs", "fixed"},
    "time": {"flags", "clocks", "durations", "vectors", "lists", "structs", "fixed"},
    "clock": {"numbers", "whole", "decimals", "coded numbers", "flags", "days", "durations", "vectors", "lists", "structs", "fixed"},
    "vector": set(SAMPLES) - {"vectors"},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["number", "flag", "time", "clock", "category", "group", "vector", "any"])
@pytest.mark.parametrize("name", SAMPLES)
def test_every_kind_fits_every_type_or_is_refused(name, kind):
    values = SAMPLES[name]
    if name in REFUSED.get(kind, {"vectors", "lists", "structs"}):
        with pytest.raises(BadSetting, match=rf"^column 'c' has type .* and cannot be read as '{kind}', which takes "):
            encoded(values, kind)
    else:
        out, bad, _ = encoded(values, kind)
        assert set(bad) <= {0, 1}
        assert all("expected" in what for what in bad.values())
        assert np.isfinite(out).any() or bad or name == "nothing"


def test_labels_as_the_user_says():
    day = datetime.datetime(2024, 1, 1)
    assert labels(label_column("y", pa.int64(), "category"), pa.array([1, None]))[0] == ["1", None]
    assert labels(label_column("y", pa.timestamp("us"), "category"), pa.array([day]))[0] == [
        "2024-01-01 00:00:00.000000"
    ]
    found, bad = labels(label_column("y", pa.string(), "number"), pa.array(["1.5", "x"]))
    assert found[0] == 1.5
    assert bad == {1: "column 'y' is 'x', expected a label, here a number"}
    with pytest.raises(BadSetting, match="'y' is the label and is to be read as 'vector', expected category or number"):
        label_column("y", pa.int64(), "vector")
    for found in (pa.timestamp("us"), pa.decimal128(5, 1)):
        with pytest.raises(BadInput, match=r"true/false or days; kinds=\{'y': 'category'\} reads them as text"):
            label_column("y", found)
