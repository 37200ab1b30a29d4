"""`prequential features`, and a run on what it leaves."""

import json
from pathlib import Path

import numpy as np
import pytest

from prequential.cli.app import main
from prequential.streams.formats.feature_folder import FeatureStream

pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")
BAD = (0, 9)  # photos that cannot be decoded: cut off, and empty


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A tiny ResNet with random weights, saved as a user's own would be."""
    from transformers import ResNetConfig, ResNetModel

    folder = tmp_path_factory.mktemp("weights")
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    ResNetModel(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"size": 24}')
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PREQUENTIAL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path):
    """24 photos of different sizes, two of them bad, the first among them."""
    random = np.random.default_rng(0)
    for i in range(24):
        path = photo(tmp_path, i)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40 + i, 50, 3), dtype=np.uint8)).save(path)
    photo(tmp_path, BAD[0]).write_bytes(photo(tmp_path, BAD[0]).read_bytes()[:200])
    photo(tmp_path, BAD[1]).write_bytes(b"")
    return tmp_path / "photos"


def photo(folder, i):
    return folder / "photos" / ("cat" if i % 2 else "dog") / f"{i:03}.jpg"


def check_features(out, bad=BAD):
    """All good photos are there, in order, and the bad ones are listed."""
    stream = FeatureStream(out)
    good = [i for i in range(24) if i not in bad]
    assert list(stream.read(0, 24).y) == [("cat" if i % 2 else "dog") for i in good]
    assert np.load(out / "position.npy").tolist() == good
    entries = [json.loads(line) for line in (out / "skipped.jsonl").read_text().splitlines()]
    assert [entry["position"] for entry in entries] == list(bad)
    return stream


def test_extract_and_run(weights, photos, tmp_path, capsys):
    out = tmp_path / "features"
    main(["features", f"images:{photos}", str(out), "--network", str(weights), "--batch", "8"])
    said = capsys.readouterr().out.replace("\n", " ")
    assert "22 examples of 12 features" in said
    assert "2 images skipped" in said
    check_features(out)
    flags = ["--width", "8", "--num-query-heads", "2", "--depth", "1", "--chunk-size", "8", "--threads", "1"]
    main(["run", "--stream", str(out), *flags, "--out", str(tmp_path / "run")])
    assert "22 examples, average accuracy" in capsys.readouterr().out


def test_photos_are_decoded_at_the_size_of_the_network(weights, photos, tmp_path):
    from prequential.features import load_network
    from prequential.streams.formats.image_decoding import decode

    out = tmp_path / "features"
    main(["features", str(photos), str(out), "--network", str(weights), "--batch", "1", "--dtype", "float32"])
    net = load_network(weights)
    assert net.size == 24
    image = decode(photo(tmp_path, 5), (24, 24))
    assert (check_features(out).read(4, 5).x == net(image[None])).all()


def test_bad_images_in_a_manifest(weights, photos, tmp_path):
    lines = [f"{photo(Path(), i)},{'cat' if i % 2 else 'dog'},{i}\n" for i in range(24)]
    (tmp_path / "list.csv").write_text("path,label,time\n" + "".join(lines))
    photo(tmp_path, 17).unlink()
    main(["features", f"images:{tmp_path / 'list.csv'}", str(tmp_path / "out"), "--network", str(weights)])
    check_features(tmp_path / "out", (*BAD, 17))


def test_bad_images_in_a_table(weights, photos, tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    images = [{"bytes": photo(tmp_path, i).read_bytes(), "path": None} for i in range(24)]
    images[17]["bytes"] = None
    labels = ["cat" if i % 2 else "dog" for i in range(24)]
    pq.write_table(pa.table({"image": images, "label": labels}), tmp_path / "table.parquet", row_group_size=5)
    main(["features", str(tmp_path / "table.parquet"), str(tmp_path / "out"), "--network", str(weights)])
    check_features(tmp_path / "out", (*BAD, 17))


def test_columns_of_a_manifest_are_chosen(weights, photos, tmp_path):
    """As options, or in brackets: newest first in the file, and two columns of paths and of labels."""
    lines = [f"photos/cat/001.jpg,{photo(Path(), i)},{'cat' if i % 2 else 'dog'},{i},x\n" for i in reversed(range(24))]
    (tmp_path / "list.csv").write_text("thumb,photo,kind,taken,rest\n" + "".join(lines))
    network = ["--network", str(weights), "--batch", "8"]
    flags = ["--label", "kind", "--time", "taken", "--image", "photo"]
    main(["features", str(tmp_path / "list.csv"), str(tmp_path / "a"), *network, *flags])
    check_features(tmp_path / "a")
    brackets = f"{tmp_path / 'list.csv'}(label=kind, time=taken, image=photo)"
    main(["features", brackets, str(tmp_path / "b"), *network])
    assert check_features(tmp_path / "b").fingerprint() == FeatureStream(tmp_path / "a").fingerprint()


def test_help_says_what_can_be_given(capsys):
    main(["features", "--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for part in ("--label", "--time", "--image ", "in parentheses", "skipped.jsonl", "digits(images=true)", "Parquet"):
        assert part in said


def test_bad_photos_of_cloc(weights, photos, tmp_path):
    lines = [f"{i % 3},{1000 + i},user{i % 2},{photo(Path(), i)}\n" for i in range(24)]
    (tmp_path / "meta.csv").write_text("".join(lines))
    main(["features", f"cloc:{tmp_path / 'meta.csv'}", str(tmp_path / "out"), "--network", str(weights), "--images", str(tmp_path)])  # fmt: skip
    good = [i for i in range(24) if i not in BAD]
    assert list(FeatureStream(tmp_path / "out").read(0, 24).y) == [i % 3 for i in good]
    assert np.load(tmp_path / "out" / "time.npy").tolist() == [1000 + i for i in good]
    assert len(set(np.load(tmp_path / "out" / "user.npy").tolist())) == 2


def test_arrays_come_as_they_are_with_their_tasks(weights, tmp_path, capsys):
    out = tmp_path / "out"
    main(["features", "digits(images=true, tasks=3, task_length=20)", str(out), "--network", str(weights)])
    assert "60 examples of 12 features" in capsys.readouterr().out
    assert np.load(out / "task_starts.npy").tolist() == [0, 20, 40]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["cloc:metadata.txt"], "needs --images"),
        (["digits", "--images", "somewhere"], "--images somewhere is for cloc:METADATA; digits says itself"),
        (["digits"], "digits gives vectors of 64 numbers, expected images to take features of"),
        (["digits(color=1)"], "digits does not take color"),
        (["gone"], "'gone' is neither a known stream nor a path that exists"),
        (["cloc:meta.csv(order=name)", "--images", "x"], "does not take order; it takes images, size, workers"),
        (["digits(images=true)", "--label", "a"], "digits does not take label"),
        (
            ["cloc:meta.csv", "--images", ".", "--label", "a"],
            "--label a is for manifests and tables; the fields of cloc:",
        ),
        (["cloc:nometa", "--images", "."], "nometa does not exist; expected CLOC's metadata: a text file"),
        (["digits", "--batch", "0"], "batch (0) must be at least 1"),
        (["digits", "--network", "nothing"], "'nothing' is no network and no folder"),
    ],
)
def test_one_sentence(arguments, sentence, weights, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    network = [] if "--network" in arguments else ["--network", str(weights)]
    with pytest.raises(SystemExit):
        main(["features", arguments[0], "out", *arguments[1:], *network])
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
