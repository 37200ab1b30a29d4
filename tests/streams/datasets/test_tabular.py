import numpy as np
import pytest

from prequential.errors import BadInput
from prequential.streams.datasets.tabular import covertype, electricity, power_supply
from prequential.streams.open import open_stream
from prequential.testing.streams import check_stream


def covertype_file(path, n=500, shift=0):
    rows = np.arange(n)
    numbers = (rows[:, None] + np.arange(10) + shift).astype(np.int16)
    np.savez(
        path,
        num=numbers,
        wilderness=(rows % 4).astype(np.uint8),
        soil=(rows % 40).astype(np.uint8),
        y=(rows % 7).astype(np.uint8),
    )
    return path


def test_covertype(tmp_path):
    a, b = covertype_file(tmp_path / "a.npz"), covertype_file(tmp_path / "b.npz", shift=1)
    c = tmp_path / "c.npz"
    np.savez(c, **dict(np.load(a)) | {"soil": np.where(np.arange(500) == 77, 99, np.arange(500) % 40)})
    check_stream(
        lambda: covertype(a),
        lambda: covertype(b),
        bad=lambda: covertype(c),
        match=r"c\.npz, example 77: soil is 99, expected a whole number in 0..39$",
    )
    chunk = covertype(a).read(41, 43)
    expected = np.zeros((2, 54), np.float32)
    expected[:, :10] = np.arange(10) + np.array([[41], [42]])
    expected[[0, 1], [10 + 41 % 4, 10 + 42 % 4]] = 1
    expected[[0, 1], [14 + 1, 14 + 2]] = 1
    np.testing.assert_array_equal(chunk.x, expected)
    assert chunk.y == [41 % 7, 0]
    assert len(open_stream(str(a))) == 500
    assert open_stream(f"covertype:{a}").classes == 7


@pytest.mark.parametrize(
    ("name", "array", "what"),
    [
        ("soil", np.full(500, 40, np.uint8), "example 0: soil is 40, expected a whole number in 0..39"),
        ("wilderness", np.arange(500) % 5, "example 4: wilderness is 4, expected a whole number in 0..3"),
        (
            "wilderness",
            np.zeros(499, np.uint8),
            r"array 'wilderness' has shape \(499,\), expected \(500,\) beside 500 labels",
        ),
        ("num", np.zeros((500, 9)), r"array 'num' has shape \(500, 9\), expected \(500, 10\)"),
    ],
)
def test_covertype_that_is_wrong(tmp_path, name, array, what):
    arrays = dict(np.load(covertype_file(tmp_path / "a.npz"))) | {name: array}
    np.savez(tmp_path / "b.npz", **arrays)
    with pytest.raises(BadInput, match=what):
        covertype(tmp_path / "b.npz")


def test_electricity_and_power_supply(tmp_path):
    np.savez(
        tmp_path / "e.npz", X=np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32), y=np.arange(300) % 2
    )
    arrays = dict(np.load(tmp_path / "e.npz"))
    for name, value in {"other": 5.0, "wrong": np.inf}.items():
        arrays["X"][123, 4] = value
        np.savez(tmp_path / f"{name}.npz", **arrays)
    check_stream(
        lambda: electricity(tmp_path / "e.npz"),
        lambda: electricity(tmp_path / "other.npz"),
        bad=lambda: electricity(tmp_path / "wrong.npz"),
        match=r"^example 123: feature 4 is inf, expected a finite number$",
    )
    assert electricity(tmp_path / "e.npz").classes == 2
    assert power_supply(tmp_path / "e.npz").classes == 24
    with pytest.raises(BadInput, match="has no array 'num'; it holds X, y"):
        covertype(tmp_path / "e.npz")


def test_the_shared_files(data):
    for name, make, length, width in (
        ("elec2", electricity, 45_312, 8),
        ("covtype", covertype, 581_012, 54),
        ("powersupply", power_supply, 29_927, 2),
    ):
        stream = make(data / f"{name}.npz")
        assert len(stream) == length
        assert stream.read(1000, 1100).x.shape == (100, width)
        assert len(set(stream.read(0, length).y)) == stream.classes
