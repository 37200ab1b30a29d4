import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest

from prequential.errors import BadInput
from prequential.streams.encoding import feature_column, fill, hash_of, label_column, labels


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
    assert bad == dict.fromkeys((1, 2), "column 'y' is empty, expected a label")
    with pytest.raises(BadInput, match="label column 'y' has type list"):
        label_column("y", pa.list_(pa.int8()))
