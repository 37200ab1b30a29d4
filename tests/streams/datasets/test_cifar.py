import io
import pickle
import struct
import tarfile

import numpy as np
import pytest

from prequential.errors import BadInput
from prequential.streams.datasets import download
from prequential.streams.datasets.cifar import load_cifar, split_cifar
from prequential.testing.streams import check_stream


def pool(n=60, shift=0):
    x = (np.arange(n * 3072, dtype=np.int64) % (251 + shift)).astype(np.uint8).reshape(n, 32, 32, 3)
    return x, (np.arange(n) * 7 % 20).astype(np.uint8)


def text(value):
    return b"U" + bytes([len(value)]) + value


def whole(value):
    return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)


def as_python_2_pickled_it(x, y):
    """The instructions of the official file, which Python 2 wrote with protocol 2."""
    rows = x.transpose(0, 3, 1, 2).reshape(len(x), 3072)
    names = b"]q\x02(" + b"".join(text(f"s_{i:06}.png".encode()) + b"q\x03" for i in range(len(y))) + b"e"
    labels = b"]q\x04(" + b"".join(whole(int(label)) for label in y) + b"e"
    kind = b"cnumpy\ndtype\nq\x05U\x02u1q\x06K\x00K\x01\x87q\x07Rq\x08(K\x03U\x01|q\x09NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0ab"
    made = b"cnumpy.core.multiarray\n_reconstruct\nq\x0bcnumpy\nndarray\nq\x0cK\x00\x85q\x0dU\x01bq\x0e\x87q\x0fRq\x10"
    shape = whole(len(x)) + whole(3072) + b"\x86q\x11"
    array = made + b"(K\x01" + shape + kind + b"\x89T" + struct.pack("<I", rows.size) + rows.tobytes() + b"tq\x12b"
    items = text(b"filenames") + names + text(b"batch_label") + text(b"batch 1") + text(b"fine_labels") + labels
    items += text(b"coarse_labels") + labels + text(b"data") + array
    return b"\x80\x02}q\x01(" + items + b"u."


def binary(x, y):
    rows = x.transpose(0, 3, 1, 2).reshape(len(x), 3072)
    return np.concatenate([np.zeros((len(x), 1), np.uint8), y[:, None], rows], 1).tobytes()


def files(kind, x, y):
    cut = len(x) * 5 // 6
    suffix, make = {"python": ("", as_python_2_pickled_it), "binary": (".bin", binary)}[kind]
    return {f"train{suffix}": make(x[:cut], y[:cut]), f"test{suffix}": make(x[cut:], y[cut:])}


def folder(root, kind, x, y):
    root.mkdir(parents=True)
    for name, data in files(kind, x, y).items():
        (root / name).write_bytes(data)
    return root


def archive(path, kind, x, y):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in {**files(kind, x, y), "file.txt~": b""}.items():
            info = tarfile.TarInfo(f"cifar-100-{kind}/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_all_forms_give_the_same(tmp_path):
    x, y = pool()
    np.savez(tmp_path / "x.npz", x=x, y=y)
    forms = [
        folder(tmp_path / "p" / "cifar-100-python", "python", x, y),
        tmp_path / "p",
        folder(tmp_path / "b", "binary", x, y),
        archive(tmp_path / "cifar-100-python.tar.gz", "python", x, y),
        archive(tmp_path / "cifar-100-binary.tar.gz", "binary", x, y),
        tmp_path / "x.npz",
    ]
    for path in forms:
        found, classes = load_cifar(path)
        assert isinstance(found, np.memmap)
        np.testing.assert_array_equal(found, x)
        np.testing.assert_array_equal(classes, y)


@pytest.mark.parametrize("kind", ["python", "binary"])
def test_battery(tmp_path, kind):
    a, b = archive(tmp_path / "a.tar.gz", kind, *pool()), archive(tmp_path / "b.tar.gz", kind, *pool(shift=1))
    options = {"tasks": 4, "task_length": 80}
    x, y = pool()
    y[7] = 200
    bad = archive(tmp_path / "bad.tar.gz", kind, x, y)
    check_stream(
        lambda: split_cifar(a, **options),
        lambda: split_cifar(b, **options),
        bad=lambda: split_cifar(bad, **options),
        match=r"image 7: the label is 200, expected a whole number in 0..99$",
    )


def test_sheets_of_webp(tmp_path):
    image = pytest.importorskip("PIL.Image")
    x, _ = pool(1200)
    for part in range(2):
        sheet = x[600 * part : 600 * (part + 1)].reshape(20, 30, 32, 32, 3).swapaxes(1, 2).reshape(640, 960, 3)
        out = io.BytesIO()
        image.fromarray(sheet).save(out, "webp", lossless=True)
        data = np.frombuffer(out.getvalue(), np.uint8)
        np.savez(
            tmp_path / f"cifar100_webp_{part}.npz",
            webp=data,
            offset=np.array([0, len(data)]),
            first_class=np.int64(part),
        )
    for path in (tmp_path, tmp_path / "cifar100_webp_0.npz"):
        found, classes = load_cifar(path)
        np.testing.assert_array_equal(found, x)
        np.testing.assert_array_equal(classes, np.repeat([0, 1], 600))


def test_files_that_are_missing_or_wrong(tmp_path):
    with pytest.raises(BadInput, match="holds none of the forms of CIFAR-100"):
        split_cifar(tmp_path)
    (tmp_path / "x.tar.gz").write_bytes(b"no archive")
    with pytest.raises(BadInput, match="is no archive of CIFAR-100"):
        split_cifar(tmp_path / "x.tar.gz")
    (tmp_path / "de.csv").write_text("a,b\n1,2\n")
    with pytest.raises(
        BadInput,
        match=r"^\S+de.csv is no archive of CIFAR-100 \(it is no tar archive\); expected cifar-100-python.tar.gz, .+ or a .npz file$",
    ):
        split_cifar(tmp_path / "de.csv")
    with tarfile.open(tmp_path / "y.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("train.bin"), io.BytesIO())
    with pytest.raises(BadInput, match=r"holds train.bin, expected train and test, or train.bin and test.bin"):
        split_cifar(tmp_path / "y.tar.gz")
    folder(tmp_path / "b", "binary", *pool())
    (tmp_path / "b" / "test.bin").write_bytes(b"123")
    with pytest.raises(BadInput, match=r"test.bin has 3 bytes, expected a multiple of 3074"):
        split_cifar(tmp_path / "b")
    with pytest.raises(BadInput, match="no path to CIFAR-100 was given"):
        split_cifar()


def test_labels_and_shapes_that_are_wrong(tmp_path):
    x, y = pool()
    np.savez(tmp_path / "shape.npz", x=x[:, :30], y=y)
    with pytest.raises(
        BadInput, match=r"images of shape \(60, 30, 32, 3\) and labels of shape \(60,\), expected \(n, 32"
    ):
        split_cifar(tmp_path / "shape.npz")
    y[7] = 200
    np.savez(tmp_path / "label.npz", x=x, y=y)
    with pytest.raises(BadInput, match=r"label.npz, image 7: the label is 200, expected a whole number in 0..99"):
        split_cifar(tmp_path / "label.npz")
    for kind, what in (("binary", "b, image 7: the label is 200"), ("python", "train, image 7: the label is 200")):
        folder(tmp_path / kind[0], kind, x, y)
        with pytest.raises(BadInput, match=what):
            split_cifar(tmp_path / kind[0])
    (tmp_path / "p" / "train").write_bytes(pickle.dumps([1, 2], 2))
    with pytest.raises(BadInput, match="train holds a list, expected a dict with data and fine_labels"):
        split_cifar(tmp_path / "p")
    (tmp_path / "p" / "train").write_bytes(pickle.dumps({"data": np.zeros((2, 5), np.uint8), "fine_labels": [1, 2]}, 2))
    with pytest.raises(BadInput, match=r"train holds data of shape \(2, 5\), expected \(n, 3072\)"):
        split_cifar(tmp_path / "p")


def test_download_without_a_network(no_network):
    with pytest.raises(
        BadInput,
        match=r"cifar-100-binary.tar.gz cannot be fetched \(no route to host\); fetch it where there is a network and give",
    ):
        split_cifar(download=True)


def test_a_download_with_another_content_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(download.urllib.request, "urlopen", lambda *_, **__: io.BytesIO(b"not the archive"))
    with pytest.raises(BadInput, match=r"gave a file with MD5 [0-9a-f]{32}, expected 03b5dce01913d631647c71ecec9e9cb8"):
        split_cifar(download=True)
