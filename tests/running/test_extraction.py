"""`prequential features`, and a run on what it leaves."""

import numpy as np
import pytest

from prequential.cli import main

pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def weights(tmp_path):
    """A tiny ResNet with random weights, saved as a user's own would be."""
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    ResNetModel(config).save_pretrained(tmp_path / "weights")
    return tmp_path / "weights"


@pytest.fixture
def photos(tmp_path):
    random = np.random.default_rng(0)
    for i in range(24):
        folder = tmp_path / "photos" / ("cat" if i % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / f"{i:03}.png")
    return tmp_path / "photos"


def test_extract_and_run(weights, photos, tmp_path, capsys):
    out = tmp_path / "features"
    main(["features", f"images:{photos}", str(out), "--network", str(weights), "--batch", "8"])
    assert "24 examples of 12 features" in capsys.readouterr().out.replace("\n", " ")
    flags = ["--width", "8", "--heads", "2", "--depth", "1", "--chunk", "8", "--threads", "1"]
    main(["run", "--stream", str(out), *flags, "--out", str(tmp_path / "run")])
    assert "24 examples, average accuracy" in capsys.readouterr().out


def test_cloc_needs_to_know_where_the_photos_are(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["features", "cloc:metadata.txt", str(tmp_path)])
    assert "needs --images" in capsys.readouterr().err
