import numpy as np
import pytest

from prequential.errors import BadInput, BadSetting
from prequential.streams import arrays
from prequential.streams.arrays import ArrayStream, array_stream, load_npz
from streams.battery import check_stream


def pool(n=2000):
    return np.arange(4 * n, dtype=np.float32).reshape(n, 4), np.arange(n) % 7


def test_battery():
    x, y = pool()
    other = x.copy()
    other[1234, 2] = -1
    check_stream(lambda: ArrayStream(x, y), lambda: ArrayStream(other, y))
    check_stream(lambda: ArrayStream(x, y), lambda: ArrayStream(x, np.where(np.arange(2000) == 77, 6, y)))


def test_battery_in_another_order_and_with_bad_rows():
    x, y = pool()
    times = (np.arange(2000) * 7919) % 2003
    wrong = x.copy()
    wrong[[5, 600, 1999], 1] = np.inf
    make = lambda: ArrayStream(wrong, y, time=times, on_bad_row="skip")  # noqa: E731
    check_stream(make, lambda: ArrayStream(wrong, y, on_bad_row="skip"))
    stream = make()
    assert stream.skipped == 3
    order = [i for i in np.argsort(times, kind="stable") if i not in (5, 600, 1999)]
    np.testing.assert_array_equal(stream.read(0, 2000).x, x[order])


def test_images_and_labels_of_any_kind():
    x = np.zeros((4, 5, 6, 3), np.uint8)
    y = ["a", ("b", 1), 3, None]
    stream = ArrayStream(x, y)
    assert not stream.missing
    assert stream.read(0, 3).y == ["a", ("b", 1), 3]
    with pytest.raises(BadInput, match="example 3: the label is None, expected a label"):
        stream.read(2, 4)
    assert ArrayStream(x, y, on_bad_row="skip").skipped == 1


def test_what_is_not_finite_names_example_and_feature():
    x, y = pool(10)
    x[6, 2] = np.inf
    x[7, 1] = np.nan
    with pytest.raises(BadInput, match="example 6: feature 2 is inf, expected a finite number"):
        ArrayStream(x, y).read(4, 10)
    assert np.isnan(ArrayStream(x, y).read(7, 8).x[0, 1])
    with pytest.raises(BadInput, match="example 7: feature 1 is nan"):
        ArrayStream(x, y, missing=False).read(7, 8)


def test_arrays_that_do_not_fit():
    x, y = pool(10)
    with pytest.raises(BadInput, match="x has 10 examples and y has 9 labels"):
        ArrayStream(x, y[:9])
    with pytest.raises(BadInput, match=r"x has shape \(10,\) and type int64"):
        ArrayStream(y, y)
    with pytest.raises(BadInput, match=r"time has shape \(9,\), expected \(10,\)"):
        ArrayStream(x, y, time=y[:9])
    with pytest.raises(BadInput, match="example 1: time is nan"):
        ArrayStream(x, y, time=[0.0, np.nan, *range(8)])
    with pytest.raises(BadSetting, match="on_bad_row"):
        ArrayStream(x, y, on_bad_row="maybe")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save, monkeypatch):
    x, y = pool()
    for name, shift in {"a": 0, "b": 1}.items():
        save(tmp_path / f"{name}.npz", X=x + shift, y=y, when=np.arange(2000)[::-1], names=np.array(["p", "q"]))
    check_stream(lambda: array_stream(tmp_path / "a.npz"), lambda: array_stream(tmp_path / "b.npz"))
    np.testing.assert_array_equal(array_stream(tmp_path / "a.npz").read(500, 700).x, x[500:700])
    np.testing.assert_array_equal(array_stream(tmp_path / "a.npz", time="when").read(0, 5).x, x[::-1][:5])
    monkeypatch.setattr(arrays, "IN_MEMORY", 1000)
    found = load_npz(tmp_path / "a.npz")
    assert isinstance(found["X"], np.memmap)
    np.testing.assert_array_equal(found["X"], x)
    np.testing.assert_array_equal(found["names"], ["p", "q"])


def test_npz_columns_side_by_side(tmp_path):
    np.savez(tmp_path / "a.npz", price=np.arange(5.0), more=np.ones((5, 2)), kind=np.array(list("abcde")))
    stream = array_stream(tmp_path / "a.npz", label="kind", features=["price", "more"])
    chunk = stream.read(1, 3)
    assert chunk.x.tolist() == [[1, 1, 1], [2, 1, 1]]
    assert chunk.y == ["b", "c"]
    with pytest.raises(BadInput, match="has no array 'y' or 'Y' for the labels; it holds price float64"):
        array_stream(tmp_path / "a.npz")


def test_fortran_order_and_odd_members(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        x=np.asfortranarray(np.arange(12.0).reshape(4, 3)),
        y=np.arange(4),
        one=np.int64(5),
        none=np.zeros((0, 3)),
    )
    found = load_npz(tmp_path / "a.npz")
    np.testing.assert_array_equal(found["x"], np.arange(12.0).reshape(4, 3))
    assert int(found["one"]) == 5
    assert found["none"].shape == (0, 3)


def test_objects_are_never_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 2)), y=np.array([{}, []], object))
    with pytest.raises(BadInput, match="is no NumPy file that can be read"):
        array_stream(tmp_path / "a.npz")
    np.save(tmp_path / "b.npy", np.array([{}, []], object))
    with pytest.raises(BadInput, match="is no NumPy file that can be read"):
        array_stream(tmp_path / "b.npy")


def test_npy(tmp_path):
    x, y = pool()
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    stream = array_stream(tmp_path / "x.npy", label=str(tmp_path / "y.npy"))
    assert isinstance(stream.x, np.memmap)
    check_stream(lambda: array_stream(tmp_path / "x.npy", label=str(tmp_path / "y.npy")))
    np.save(tmp_path / "xy.npy", np.concatenate([x, y[:, None]], 1))
    chunk = array_stream(tmp_path / "xy.npy").read(10, 12)
    assert chunk.x.shape == (2, 4)
    assert chunk.y == [3, 4]
    np.save(tmp_path / "images.npy", np.zeros((3, 4, 4)))
    with pytest.raises(BadInput, match=r"has shape \(3, 4, 4\); give the labels' own .npy file"):
        array_stream(tmp_path / "images.npy")
