import gzip
import zipfile

import numpy as np
import pytest

from prequential.errors import BadInput
from prequential.streams.datasets.emnist import load_emnist, read_idx, split_emnist
from prequential.testing.streams import check_stream


def pool(n=300, shift=0):
    return (np.arange(n * 784, dtype=np.int64) % (251 + shift)).astype(np.uint8).reshape(n, 28, 28), (
        np.arange(n) % 47
    ).astype(np.uint8)


def idx(array):
    return b"\x00\x00\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def official(folder, x, y, suffix=""):
    """The four files of EMNIST Balanced; its images lie on their side."""
    folder.mkdir(parents=True, exist_ok=True)
    cut = len(x) * 5 // 6
    for part, here in {"train": slice(0, cut), "test": slice(cut, None)}.items():
        for kind, array in {"images-idx3": x[here].transpose(0, 2, 1), "labels-idx1": y[here]}.items():
            data = idx(array)
            (folder / f"emnist-balanced-{part}-{kind}-ubyte{suffix}").write_bytes(
                gzip.compress(data) if suffix else data
            )
    return folder


def zipped(folder, path):
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"gzip/{file.name}")
    return path


def test_all_forms_give_the_same(tmp_path):
    x, y = pool()
    plain = official(tmp_path / "plain", x, y)
    packed = official(tmp_path / "packed", x, y, ".gz")
    np.savez(tmp_path / "a.npz", x=x, y47=y)
    np.savez_compressed(tmp_path / "b.npz", x=x, y=y)
    for path in (plain, packed, zipped(packed, tmp_path / "gzip.zip"), tmp_path / "a.npz", tmp_path / "b.npz"):
        found, classes = load_emnist(path)
        assert isinstance(found, np.memmap)
        np.testing.assert_array_equal(found, x)
        np.testing.assert_array_equal(classes, y)


def test_battery(tmp_path):
    for name, shift in {"a": 0, "b": 1}.items():
        official(tmp_path / name, *pool(shift=shift), ".gz")
    options = {"tasks": 3, "task_length": 150}
    x, y = pool()
    y[7] = 99
    official(tmp_path / "bad", x, y, ".gz")
    check_stream(
        lambda: split_emnist(tmp_path / "a", **options),
        lambda: split_emnist(tmp_path / "b", **options),
        bad=lambda: split_emnist(tmp_path / "bad", **options),
        match=r"bad, image 7: the label is 99, expected a whole number in 0..46$",
    )


def test_the_shared_file(data):
    stream = split_emnist(data / "emnist47.npz")
    assert (len(stream), stream.classes) == (100_000, 10)
    chunk = stream.read(41_000, 42_000)
    assert chunk.x.shape == (1000, 28, 28)
    assert np.bincount(chunk.y, minlength=10).min() > 60
    assert len(np.unique(chunk.x.reshape(1000, -1), axis=0)) > 990


def test_files_that_are_missing_or_wrong(tmp_path):
    official(tmp_path / "a", *pool())
    (tmp_path / "a" / "emnist-balanced-test-labels-idx1-ubyte").unlink()
    with pytest.raises(BadInput, match="holds no emnist-balanced-test-labels-idx1-ubyte"):
        split_emnist(tmp_path / "a")
    with pytest.raises(BadInput, match="does not exist"):
        split_emnist(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="no path to EMNIST was given"):
        split_emnist()
    with pytest.raises(BadInput, match="begins with 4f4f50, expected 000008"):
        read_idx(b"OOPS")
    with pytest.raises(BadInput, match=r"of shape \(2,\) holds 1 values, expected 2"):
        read_idx(b"\0\0\x08\x01\0\0\0\x02\x07")


def test_labels_and_shapes_that_are_wrong(tmp_path):
    x, y = pool(60)
    y[7] = 99
    np.savez(tmp_path / "a.npz", x=x, y=y)
    with pytest.raises(BadInput, match=r"a.npz, image 7: the label is 99, expected a whole number in 0..46"):
        split_emnist(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=x[:, :20], y=y)
    with pytest.raises(
        BadInput, match=r"images of shape \(60, 20, 28\) and labels of shape \(60,\), expected \(n, 28, 28\)"
    ):
        split_emnist(tmp_path / "b.npz")
    packed = official(tmp_path / "packed", *pool(60), ".gz")
    name = "emnist-balanced-test-images-idx3-ubyte"
    good = (packed / f"{name}.gz").read_bytes()
    for data in (good[: len(good) // 2], b"no gzip", good[:30] + b"\xff" * 30 + good[60:]):
        (packed / f"{name}.gz").write_bytes(data)
        with pytest.raises(BadInput, match=rf"{name} cannot be unpacked"):
            split_emnist(packed)
    (packed / f"{name}.gz").write_bytes(gzip.compress(b"\0\0\x08\x03\0\0"))
    with pytest.raises(BadInput, match=rf"{name}: an idx file has 6 bytes, expected at least 16"):
        split_emnist(packed)


def test_download_without_a_network(no_network):
    with pytest.raises(
        BadInput,
        match=r"gzip.zip cannot be fetched \(no route to host\); fetch it where there is a network and give its path",
    ):
        split_emnist(download=True)
