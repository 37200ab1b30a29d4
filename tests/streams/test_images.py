import os

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

from prequential.errors import BadInput, BadSetting
from prequential.streams.images import ImageStream, decode
from streams.battery import check_stream


def picture(path, shade, size=(12, 10), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = shade if mode in ("L", "P") else (shade, 255 - shade, 0, 255)[: len(mode)]
    Image.new(mode, size, colour).save(path)


def folder(root, n=12, first=0):
    for i in range(n):
        picture(root / ("cat", "dog", "owl")[i % 3] / f"{i:03}.png", first + 10 * i)
    return root


def test_battery_of_a_folder(tmp_path):
    a, b = folder(tmp_path / "a"), folder(tmp_path / "b", first=1)
    check_stream(lambda: ImageStream(a), lambda: ImageStream(b))
    check_stream(
        lambda: ImageStream(a, order="shuffled", grey=True, size=7), lambda: ImageStream(a, order="shuffled", seed=1)
    )


def test_order(tmp_path):
    root = folder(tmp_path / "a")
    by_name = ImageStream(root)
    assert by_name.read(0, 6).y == ["cat", "dog", "owl"] * 2
    assert by_name.read(0, 12).x[:, 0, 0, 0].tolist() == list(range(0, 120, 10))
    assert by_name.classes == 3
    assert ImageStream(root, order="path").read(0, 12).y == ["cat"] * 4 + ["dog"] * 4 + ["owl"] * 4
    for i, file in enumerate(sorted(root.rglob("*.png"), reverse=True)):
        os.utime(file, (1000 + i, 1000 + i))
    assert ImageStream(root, order="modified").read(0, 12).y == ["owl"] * 4 + ["dog"] * 4 + ["cat"] * 4
    shuffled = ImageStream(root, order="shuffled", seed=3).read(0, 12)
    assert sorted(shuffled.y) == ["cat"] * 4 + ["dog"] * 4 + ["owl"] * 4
    assert shuffled.y != by_name.read(0, 12).y
    with pytest.raises(BadSetting, match=r"order \('random'\) must be one of name, path, modified, shuffled"):
        ImageStream(root, order="random")


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P"])
@pytest.mark.parametrize("suffix", ["png", "webp", "jpg"])
def test_every_picture_becomes_the_same_shape(tmp_path, mode, suffix):
    if (suffix, mode) in {("jpg", "RGBA"), ("jpg", "P"), ("webp", "P")}:
        pytest.skip("this format has no such mode")
    picture(tmp_path / f"a.{suffix}", 80, (31, 17), mode)
    assert decode(tmp_path / f"a.{suffix}", (8, 9)).shape == (8, 9, 3)
    assert decode(tmp_path / f"a.{suffix}", (8, 9), grey=True).shape == (8, 9)
    assert decode(tmp_path / f"a.{suffix}", None).shape == (17, 31, 3)
    assert decode((tmp_path / f"a.{suffix}").read_bytes(), (8, 9)).dtype == np.uint8


def test_other_shapes_are_cut_at_the_middle(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert (decode(tmp_path / "wide.png", (10, 10)) == 255).all()


def spoiled(tmp_path):
    root = folder(tmp_path / "a")
    (root / "dog" / "004.png").write_bytes(b"no picture")
    whole = (root / "owl" / "005.png").read_bytes()
    (root / "owl" / "005.png").write_bytes(whole[: len(whole) // 2])
    return root


def test_pictures_that_cannot_be_decoded(tmp_path):
    root = spoiled(tmp_path)
    stream = ImageStream(root)
    assert len(stream.read(0, 4)) == 4
    with pytest.raises(BadInput, match=r"example 4: .*004.png cannot be decoded \(cannot identify image file"):
        stream.read(2, 6)
    with pytest.raises(BadInput, match=r"example 5: .*005.png cannot be decoded"):
        stream.read(5, 6)
    skipping = ImageStream(root, on_bad_row="skip")
    assert (len(skipping), skipping.skipped) == (10, 2)
    assert skipping.read(3, 5).x[:, 0, 0, 0].tolist() == [30, 60]
    check_stream(lambda: ImageStream(root, on_bad_row="skip"))


def test_the_first_picture_is_bad(tmp_path):
    root = folder(tmp_path / "a")
    (root / "cat" / "000.png").write_bytes(b"")
    with pytest.raises(BadInput, match=r"example 0: .*000.png cannot be decoded"):
        ImageStream(root)
    assert ImageStream(root, on_bad_row="skip").read(0, 1).x.shape == (1, 10, 12, 3)


def manifest(tmp_path, text):
    folder(tmp_path / "pictures")
    (tmp_path / "list.csv").write_text(text)
    return tmp_path / "list.csv"


def test_manifest(tmp_path):
    path = manifest(
        tmp_path,
        "path,label,time\npictures/owl/002.png,5,30\npictures/cat/000.png,7,10\npictures/dog/001.png,5,20\npictures/cat/003.png,6,40\n",
    )
    stream = ImageStream(path)
    assert stream.read(0, 4).y == [7, 5, 5, 6]
    assert stream.read(0, 4).x[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
    assert stream.classes is None
    check_stream(lambda: ImageStream(path))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("file,label\na.png,1\n", "has the columns file, label, expected path, label and perhaps time"),
        ("path,label\na.png,\nb.png,1\n", "row 1, column 'label' is empty"),
        ("path,label,time\na.png,1,noon\n", "column 'time' holds text such as 'noon'"),
        ("path,label\n", "holds no images"),
    ],
)
def test_bad_manifests(tmp_path, text, what):
    with pytest.raises(BadInput, match=what):
        ImageStream(manifest(tmp_path, text))


def test_a_file_of_a_manifest_that_is_not_there(tmp_path):
    path = manifest(tmp_path, "path,label\npictures/cat/000.png,a\ngone.png,b\npictures/cat/003.png,a\n")
    with pytest.raises(BadInput, match=r"example 1: .*gone.png cannot be decoded"):
        ImageStream(path).read(0, 3)
    assert ImageStream(path, on_bad_row="skip").skipped == 1


def test_folders_without_classes_or_pictures(tmp_path):
    picture(tmp_path / "flat" / "a.png", 1)
    with pytest.raises(BadInput, match="holds images, but no folders named after their classes"):
        ImageStream(tmp_path / "flat")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="holds no images"):
        ImageStream(tmp_path / "empty")
