import numpy as np
import pyarrow as pa
import pytest

from prequential.errors import BadInput, BadSetting
from prequential.streams.formats import arrays
from prequential.streams.formats.arrays import ArrayStream, array_stream, load_npz
from prequential.streams.formats.tables import TableStream
from prequential.streams.tasks import SplitStream
from prequential.testing.streams import check_stream


def pool(n=2000):
    return np.arange(4 * n, dtype=np.float32).reshape(n, 4), np.arange(n) % 7


def test_battery():
    x, y = pool()
    other = x.copy()
    other[1234, 2] = -1
    wrong = x.copy()
    wrong[1500, 3] = np.inf
    check_stream(
        lambda: ArrayStream(x, y),
        lambda: ArrayStream(other, y),
        bad=lambda: ArrayStream(wrong, y),
        match=r"^example 1500: feature 3 is inf, expected a finite number$",
    )
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
    save(tmp_path / "c.npz", X=x, y=np.where(np.arange(2000) == 900, np.nan, y))
    check_stream(
        lambda: array_stream(tmp_path / "a.npz"),
        lambda: array_stream(tmp_path / "b.npz"),
        bad=lambda: array_stream(tmp_path / "c.npz"),
        match=r"^example 900: the label is nan, expected a label$",
    )
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


def table_signs(values, name):
    """What a table with this column as its group gives."""
    table = pa.table({"n": np.zeros(len(values)), name: values, "label": np.zeros(len(values), int)})
    return TableStream(table, group=name).read(0, len(values)).x[:, 1:]


@pytest.mark.parametrize("users", [[f"user {i % 5}" for i in range(30)], [i % 5 for i in range(30)]])
def test_a_group_becomes_the_features_it_would_be_in_a_table(tmp_path, users):
    x, y = pool(30)
    np.savez(tmp_path / "a.npz", x=x, y=y[:, None], user=np.array(users)[:, None], when=np.arange(30)[::-1])
    stream = array_stream(tmp_path / "a.npz", group="user")
    chunk = stream.read(0, 30)
    assert chunk.x.shape == (30, 4 + 32)
    assert chunk.x.dtype == np.float32
    np.testing.assert_array_equal(chunk.x[:, :4], x)
    np.testing.assert_array_equal(chunk.x[:, 4:], table_signs(users, "user"))
    assert set(np.unique(chunk.x[:, 4:])) == {-1, 1}
    assert chunk.y == y.tolist()  # y of shape (n, 1)
    latest = array_stream(tmp_path / "a.npz", group="user", time="when").read(0, 2)
    np.testing.assert_array_equal(latest.x, chunk.x[[29, 28]])
    check_stream(lambda: array_stream(tmp_path / "a.npz", group="user"), lambda: array_stream(tmp_path / "a.npz"))
    np.save(tmp_path / "x.npy", x)
    for name, array in {"y": y, "user": np.array(users), "when": np.arange(30)[::-1]}.items():
        np.save(tmp_path / f"{name}.npy", array)
    files = {"label": str(tmp_path / "y.npy"), "group": str(tmp_path / "user.npy"), "time": str(tmp_path / "when.npy")}
    np.testing.assert_array_equal(array_stream(tmp_path / "x.npy", **files).read(0, 2).x, chunk.x[[29, 28]])


def test_groups_that_do_not_fit(tmp_path):
    x, y = pool(10)
    with pytest.raises(BadInput, match=r"group has shape \(9,\), expected \(10,\), one name for each example"):
        ArrayStream(x, y, group=y[:9])
    with pytest.raises(
        BadInput, match=r"x has shape \(10, 2, 2\), and a group cannot become a feature beside an image"
    ):
        ArrayStream(x.reshape(10, 2, 2), y, group=y)
    with pytest.raises(BadInput, match=r"y has shape \(10, 2\), expected \(10,\), one label for each example"):
        ArrayStream(x, np.stack([y, y], 1))
    np.savez(tmp_path / "a.npz", x=x, y=y)
    with pytest.raises(BadInput, match=r"has no array 'user' for the group; it holds x float32 \(10, 4\), y int64"):
        array_stream(tmp_path / "a.npz", group="user")
    assert ArrayStream(x, y, group=[None, *range(9)]).read(0, 1).x[0, 4:].tolist() == [0] * 32


def test_arrays_side_by_side_stay_on_disk(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        a=np.ones((5, 2, 2), np.float32),
        b=np.arange(5, dtype=np.int8),
        c=np.ones(4),
        y=np.arange(5),
    )
    stream = array_stream(tmp_path / "a.npz", features=["a", "b"])
    assert isinstance(stream.x.parts[0], np.memmap)
    assert stream.read(1, 3).x.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 2]]
    with pytest.raises(BadInput, match="array 'c' has 4 rows and 'a' has 5, expected as many of both"):
        array_stream(tmp_path / "a.npz", features=["a", "c"])


def test_tasks_out_of_arrays_read_only_what_they_need(tmp_path):
    x, y = pool()
    asked = []

    class Rows:
        shape, dtype = x.shape, x.dtype

        def __len__(self):
            return len(x)

        def __getitem__(self, rows):
            asked.append(len(rows))
            return x[rows]

    whole = ArrayStream(Rows(), y, time=np.arange(2000)[::-1])
    stream = SplitStream(*whole.pool(), tasks=2, ways=3, task_length=50)
    chunk = stream.read(40, 60)
    assert asked == [20]
    assert stream.missing
    names = [*stream.task_classes(0)] * 10, [*stream.task_classes(1)] * 10
    rows = (chunk.x[:, 0] / 4).astype(int)
    assert [y[row] for row in rows] == [names[i // 10][label] for i, label in enumerate(chunk.y)]
    x[5, 1] = np.inf
    with pytest.raises(BadInput, match=r"example 1994: feature 1 is inf, expected a finite number"):
        whole.pool()[0][np.array([3, 1994])]
    with pytest.raises(BadInput, match="example 1: the label is None, expected a label"):
        ArrayStream(x[:3], ["a", None, "b"]).pool()


def test_damaged_files(tmp_path):
    x, y = pool()
    np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=x.shape), y=y)
    whole = bytearray((tmp_path / "a.npz").read_bytes())
    for name, data in {"cut": whole[:500], "broken": whole[:300] + b"\0" * 300 + whole[600:], "empty": b""}.items():
        (tmp_path / f"{name}.npz").write_bytes(data)
        with pytest.raises(BadInput, match=f"{name}.npz is no NumPy file that can be read"):
            array_stream(tmp_path / f"{name}.npz")
    (tmp_path / "empty.npy").write_bytes(b"")
    with pytest.raises(BadInput, match=r"empty.npy is no NumPy file that can be read"):
        array_stream(tmp_path / "empty.npy")


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
    with pytest.raises(BadInput, match="holds Python objects, which are never unpickled"):
        array_stream(tmp_path / "a.npz")
    np.save(tmp_path / "b.npy", np.array([{}, []], object))
    with pytest.raises(BadInput, match="holds Python objects, which are never unpickled"):
        array_stream(tmp_path / "b.npy")


def test_npy(tmp_path):
    x, y = pool()
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    stream = array_stream(tmp_path / "x.npy", label=str(tmp_path / "y.npy"))
    assert isinstance(stream.x, np.memmap)
    np.save(tmp_path / "z.npy", np.where(np.arange(2000) == 77, 6, y))
    check_stream(
        lambda: array_stream(tmp_path / "x.npy", label=str(tmp_path / "y.npy")),
        lambda: array_stream(tmp_path / "x.npy", label=str(tmp_path / "z.npy")),
    )
    np.save(tmp_path / "xy.npy", np.concatenate([x, y[:, None]], 1))
    chunk = array_stream(tmp_path / "xy.npy").read(10, 12)
    assert chunk.x.shape == (2, 4)
    assert chunk.y == [3, 4]
    np.save(tmp_path / "images.npy", np.zeros((3, 4, 4)))
    with pytest.raises(BadInput, match=r"has shape \(3, 4, 4\); give the labels' own .npy file"):
        array_stream(tmp_path / "images.npy")


@pytest.fixture
def own_label(tmp_path):
    y = np.arange(6) % 2
    np.savez(tmp_path / "num.npz", x=np.eye(6), y=y)
    np.save(tmp_path / "xx.npy", np.eye(6))
    np.save(tmp_path / "yy.npy", y)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "use"),
    [
        ({"group": "y"}, "the group"),
        ({"features": ["x", "y"]}, "a feature"),
        ({"features": ["y"]}, "a feature"),
        ({"time": "y"}, "the time"),
        ({"label": "x", "features": ["x"]}, "a feature"),
    ],
)
def test_the_label_cannot_be_told_by_the_arrays_of_a_file(own_label, options, use):
    name = options.get("label", "y")
    with pytest.raises(BadInput, match=rf"num\.npz: array '{name}' is the label and cannot also be {use}$"):
        array_stream(own_label / "num.npz", **options)


def test_an_array_called_x_can_be_the_label_and_then_is_no_feature(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(4), data=np.eye(4))
    np.testing.assert_array_equal(array_stream(tmp_path / "a.npz", label="x").read(0, 4).x, np.eye(4))
    np.savez(tmp_path / "b.npz", x=np.arange(4), z=np.eye(4))
    with pytest.raises(BadInput, match="has no array 'X' or 'data' for the examples; it holds x"):
        array_stream(tmp_path / "b.npz", label="x")


@pytest.mark.parametrize("use", ["group", "time"])
def test_the_label_cannot_be_told_by_its_own_file(own_label, use):
    y = str(own_label / "yy.npy")
    other = str(own_label / ".." / own_label.name / "yy.npy")  # the same file, written differently
    with pytest.raises(BadInput, match=rf"yy\.npy holds the labels and cannot also hold the {use}$"):
        array_stream(own_label / "xx.npy", label=y, **{use: other})
    with pytest.raises(BadInput, match=r"xx\.npy holds the labels and cannot also hold the examples$"):
        array_stream(own_label / "xx.npy", label=str(own_label / "xx.npy"))


def test_frames_and_tensors():
    pandas, torch = pytest.importorskip("pandas"), pytest.importorskip("torch")
    x, y = np.arange(8.0).reshape(4, 2), [1, 0, 1, 0]
    frame = pandas.DataFrame(x, columns=["a", "b"])
    expected = ArrayStream(x, np.array(y))
    for same in (
        ArrayStream(frame, pandas.Series(y)),
        ArrayStream(frame, pandas.DataFrame({"y": y})),
        ArrayStream(torch.tensor(x, requires_grad=True), torch.tensor(y)),
    ):
        assert same.fingerprint() == expected.fingerprint()
        assert same.read(0, 4).x.tolist() == x.tolist()
        assert same.read(0, 4).y == y
    assert ArrayStream(frame, pandas.Series(list("abab"))).read(0, 2).y == ["a", "b"]
    assert ArrayStream(torch.tensor(x).bfloat16(), y).read(1, 2).x.tolist() == [[2, 3]]
    with pytest.raises(BadInput, match="example 1: the label is None, expected a label"):
        ArrayStream(frame, pandas.Series([1, None, 1, 0], dtype="Int64")).read(0, 4)
    late = ArrayStream(frame, pandas.Series([1, 0, 1, None], dtype="Int64"), on_bad_row="skip")
    assert list(map(repr, late.read(0, 3).y)) == ["1", "0", "1"]
    with pytest.raises(BadInput, match="type object, expected vectors or images of numbers; TableStream reads data fr"):
        ArrayStream(frame.assign(b=list("abcd")), y)
    polars = pytest.importorskip("polars")
    from_polars = ArrayStream(polars.DataFrame({"a": x[:, 0], "b": x[:, 1]}), polars.Series(y))
    assert from_polars.read(0, 4).x.tolist() == x.tolist()
    assert from_polars.read(0, 4).y == y


def test_lists_that_are_no_array():
    with pytest.raises(BadInput, match="x cannot become an array: "):
        ArrayStream([[1.0], [1.0, 2.0]], [0, 1])
    with pytest.raises(BadInput, match="x is 3, expected one for each example"):
        ArrayStream(3, [0])


def test_a_late_label_does_not_change_what_the_earlier_ones_are(tmp_path):
    rows = np.column_stack([np.arange(5.0), [0, 1, 0, 1, 1]])
    np.save(tmp_path / "whole.npy", rows)
    rows[-1, -1] = 0.5
    np.save(tmp_path / "half.npy", rows)
    whole, half = (array_stream(tmp_path / name).read(0, 5).y for name in ("whole.npy", "half.npy"))
    assert list(map(repr, whole)) == ["0", "1", "0", "1", "1"]
    assert list(map(repr, half)) == ["0", "1", "0", "1", "0.5"]
    assert array_stream(tmp_path / "whole.npy").pool()[1].dtype == np.int64


def test_sentences_name_the_file_and_the_array(tmp_path):
    def refused(sentence, **arrays):
        np.savez(tmp_path / "t.npz", **arrays)
        with pytest.raises(BadInput, match=sentence):
            array_stream(tmp_path / "t.npz")

    refused(r"t\.npz: array 'x' has shape \(2,\) and type <U1, expected numbers for the exam", x=["a", "b"], y=[0, 1])
    refused(r"t\.npz: x has 2 examples and y has 3 labels, expected as many", x=np.eye(2), y=[0, 1, 2])
    objects = np.array([1, "a"], object)
    refused(r"t\.npz: array 'y' holds Python objects, which are never unpickled; save numbers", x=np.eye(2), y=objects)
    np.save(tmp_path / "o.npy", objects)
    with pytest.raises(BadInput, match=r"o\.npy holds Python objects, which are never unpickled; save numbers or text"):
        array_stream(tmp_path / "o.npy")


def test_masked_values_are_missing():
    x = np.ma.masked_equal(np.array([[1, 2], [3, -9], [5, 6]]), -9)
    stream = ArrayStream(x, ["a", "b", "c"])
    assert stream.missing
    np.testing.assert_array_equal(stream.read(0, 3).x, [[1, 2], [3, np.nan], [5, 6]])
    rows = [np.ma.masked_equal(row, -9.0) for row in ([1.0, -9.0], [2.0, 3.0])]
    np.testing.assert_array_equal(ArrayStream(rows, [0, 1]).read(0, 2).x, [[1, np.nan], [2, 3]])
    unmasked = ArrayStream(np.ma.masked_array(np.eye(2, dtype=np.float32)), [0, 1])
    assert unmasked.read(0, 2).x.dtype == np.float32
    y = np.ma.masked_array([7, 8, 9], mask=[False, True, False])
    with pytest.raises(BadInput, match="example 1: the label is None, expected a label"):
        ArrayStream(np.eye(3), y).read(0, 3)
    assert ArrayStream(np.eye(3), y, on_bad_row="skip").read(0, 3).y == [7, 9]
    assert ArrayStream(np.eye(3), [1, np.ma.masked, 2], on_bad_row="skip").read(0, 3).y == [1, 2]
    with pytest.raises(BadInput, match="example 1: time is nan, expected a time"):
        ArrayStream(np.eye(3), [0, 1, 2], time=y)
    images = np.ma.masked_array(np.zeros((2, 4, 4), np.uint8), mask=np.arange(32).reshape(2, 4, 4) == 20)
    with pytest.raises(BadInput, match=r"example 1: feature \(1, 0\) is nan, expected a finite number"):
        ArrayStream(images, [0, 1]).read(0, 2)


def test_masked_values_of_tasks_are_missing():
    x = np.ma.masked_less(np.arange(12).reshape(6, 2), 2)
    stream = SplitStream(x, np.arange(6) % 2, tasks=1, ways=2, task_length=6)
    assert stream.missing
    assert np.isnan(stream.read(0, 6).x).sum() == 2
    with pytest.raises(BadInput, match="example 3: the class is masked"):
        SplitStream(np.eye(6), np.ma.masked_equal(np.arange(6), 3))


def test_arrays_that_are_none():
    import torch

    class Sparse:
        shape, dtype = (2, 2), np.dtype(float)

        def toarray(self):
            raise AssertionError

    with pytest.raises(BadInput, match=r"x is a sparse Sparse, expected an array; give x\.toarray\(\)"):
        ArrayStream(Sparse(), [0, 1])
    with pytest.raises(BadInput, match="x cannot become an array: "):
        ArrayStream(torch.eye(2).to_sparse(), [0, 1])
    assert ArrayStream(torch.eye(2, dtype=torch.bfloat16, requires_grad=True), [0, 1]).read(0, 2).x.tolist() == [
        [1, 0],
        [0, 1],
    ]
