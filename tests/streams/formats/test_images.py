import os
import re

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

pytest.importorskip("PIL")

from PIL import Image

from prequential.errors import BadInput, BadSetting
from prequential.streams.formats.image_decoding import Decoder, decode
from prequential.streams.formats.images import ImageStream
from prequential.streams.open import open_stream
from prequential.testing.streams import check_stream


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
    bad = folder(tmp_path / "c")
    (bad / "owl" / "008.png").write_bytes(b"nothing")
    check_stream(
        lambda: ImageStream(a),
        lambda: ImageStream(b),
        bad=lambda: ImageStream(bad),
        match=r"^example 8: .*008\.png cannot be decoded \(cannot identify image file\), expected an image$",
    )
    check_stream(
        lambda: ImageStream(a, order="shuffled", gray=True, size=7), lambda: ImageStream(a, order="shuffled", seed=1)
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
    assert decode(tmp_path / f"a.{suffix}", (8, 9), gray=True).shape == (8, 9)
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
    check_stream(lambda: ImageStream(root, on_bad_row="skip"), lambda: ImageStream(root, on_bad_row="skip", gray=True))


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
    other = tmp_path / "other.csv"
    other.write_text(path.read_text().replace(",6,40", ",5,40"))
    bad = tmp_path / "bad.csv"
    bad.write_text(path.read_text().replace(",6,40", ",,40"))
    check_stream(
        lambda: ImageStream(path),
        lambda: ImageStream(other),
        bad=lambda: ImageStream(bad),
        match=r"^bad\.csv, row 4, column 'label' is (empty|missing), expected a label",
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "page,label\na.html,1\n",
            "list.csv has no column of images that could be found; its columns are page, label; name",
        ),
        (
            "path,label\npictures/cat/000.png,\nb.png,1\n",
            "list.csv, row 1, column 'label' is (empty|missing), expected a label",
        ),
        ("path,label,time\na.png,1,noon\n", "time column 'time' has type string, expected numbers or dates"),
        (
            "path,label,time\na.png,1,1\nb.png,1,\n",
            "list.csv, row 2, column 'time' is (empty|missing), expected a time to order by",
        ),
        ("path,label\n,1\npictures/cat/000.png,2\n", "list.csv, row 1, column 'path' is empty, expected an image"),
        ("path,label\n", "list.csv has no rows"),
        ("path,time\na.png,1\n", "no column is left for the label: the columns are path, time"),
    ],
)
def test_bad_manifests(tmp_path, text, what):
    with pytest.raises(BadInput, match=what):
        ImageStream(manifest(tmp_path, text)).read(0, 2)


LISTED = [("pictures/owl/002.png", 5, 30), ("pictures/cat/000.png", 7, 10), ("pictures/dog/001.png", 5, 20)]
LISTED.append(("pictures/cat/003.png", 6, 40))


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "arrow"])
def test_columns_of_a_manifest_are_chosen(tmp_path, kind):
    folder(tmp_path / "pictures")
    picture(tmp_path / "pictures" / "mask.png", 200)
    names = ("mask", "photo_of", "kind", "taken", "rest")
    table = pa.table(
        dict(zip(names, zip(*(("pictures/mask.png", *row, "z") for row in LISTED), strict=True), strict=True))
    )
    path = tmp_path / f"list.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    else:
        pacsv.write_csv(table, path, pacsv.WriteOptions(delimiter="," if kind == "csv" else "\t"))
    options = {"image": "photo_of", "label": "kind", "time": "taken"}
    stream = ImageStream(path, **options)
    chunk = stream.read(0, 4)
    assert chunk.y == [7, 5, 5, 6]
    assert chunk.x[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
    assert stream.read(1, 3).y == [5, 5]
    assert ImageStream(path, image="photo_of", label="kind").read(0, 4).y == [5, 7, 5, 6]
    assert ImageStream(path).read(0, 4).x[:, 0, 0, 0].tolist() == [200] * 4  # the first column of paths
    check_stream(lambda: ImageStream(path, **options), lambda: ImageStream(path, image="photo_of", label="kind"))
    shuffled = [ImageStream(path, image="photo_of", label="kind", order="shuffled", seed=seed) for seed in (1, 2)]
    assert sorted(shuffled[0].read(0, 4).y) == [5, 5, 6, 7]
    assert shuffled[0].fingerprint() != shuffled[1].fingerprint()


def test_columns_that_cannot_be_chosen(tmp_path):
    path = manifest(tmp_path, "path,label,user,n\npictures/cat/000.png,a,u,1\n")
    with pytest.raises(BadInput, match=r"list.csv has no column 'kind'; its columns are path, label, user, n"):
        ImageStream(path, label="kind")
    with pytest.raises(BadSetting, match=r"the group \('user'\) cannot become a feature beside an image"):
        ImageStream(path, group="user")
    with pytest.raises(BadInput, match=r"column 'n' is the label and cannot also be the time"):
        ImageStream(path, label="n", time="n")
    with pytest.raises(BadInput, match=r"column 'path' is the label and cannot also be the image"):
        ImageStream(path, image="path", label="path")
    with pytest.raises(BadInput, match=r"column 'n' has type int64, expected images: bytes, or paths as text"):
        ImageStream(path, image="n")
    with pytest.raises(BadSetting, match=r"order \('shuffled'\) and time \('n'\) cannot be given together"):
        ImageStream(path, time="n", order="shuffled")
    with pytest.raises(BadSetting, match=r"on_bad_row \('drop'\) must be 'stop' or 'skip'"):
        ImageStream(path, on_bad_row="drop")


def test_a_folder_has_no_columns(tmp_path):
    root = folder(tmp_path / "a")
    for name in ("image", "label", "time", "group", "kinds"):
        with pytest.raises(
            BadSetting, match=rf"labeled by the names of its folders, so {name} \('x'\) cannot be chosen"
        ):
            ImageStream(root, **{name: "x"})


def test_dates_order_a_manifest_and_rows_without_are_left_out(tmp_path):
    path = manifest(
        tmp_path,
        "file,label,when\npictures/cat/003.png,c,2024-03-01\npictures/cat/000.png,a,2023-01-31\npictures/cat/006.png,x,\n"
        "pictures/dog/001.png,b,2024-02-29\n",
    )
    with pytest.raises(
        BadInput, match=r"list.csv, row 3, column 'when' is (empty|missing), expected a time to order by"
    ):
        ImageStream(path, time="when")
    stream = ImageStream(path, time="when", on_bad_row="skip")
    assert stream.read(0, 3).y == ["a", "b", "c"]
    assert stream.skipped == 1


def test_names_are_counted_as_a_person_does(tmp_path):
    for i in (1, 2, 9, 10, 11, 100):
        picture(tmp_path / "set" / f"class {i % 2 + 9}" / f"a{i}.png", i)
    assert ImageStream(tmp_path / "set").read(0, 6).x[:, 0, 0, 0].tolist() == [1, 2, 9, 10, 11, 100]
    by_path = ImageStream(tmp_path / "set", order="path")
    assert by_path.read(0, 6).x[:, 0, 0, 0].tolist() == [2, 10, 100, 1, 9, 11]
    assert by_path.read(0, 6).y == ["class 9"] * 3 + ["class 10"] * 3


def test_what_a_picture_holds_is_part_of_the_fingerprint_of_a_manifest(tmp_path):
    path = manifest(tmp_path, "path,label\npictures/cat/000.png,a\npictures/cat/003.png,b\n")
    before = ImageStream(path).fingerprint()
    picture(tmp_path / "pictures" / "cat" / "006.png", 99)
    assert ImageStream(path).fingerprint() == before  # not listed
    picture(tmp_path / "pictures" / "cat" / "003.png", 31)
    assert ImageStream(path).fingerprint() != before


def test_a_file_of_a_manifest_that_is_not_there(tmp_path):
    path = manifest(tmp_path, "path,label\npictures/cat/000.png,a\ngone.png,b\npictures/cat/003.png,a\n")
    with pytest.raises(
        BadInput, match=r"list.csv, row 2, column 'path' is '.*gone.png', which cannot be decoded \(No such"
    ):
        ImageStream(path).read(0, 3)
    assert ImageStream(path, on_bad_row="skip").skipped == 1


def test_folders_without_classes_or_pictures(tmp_path):
    picture(tmp_path / "flat" / "a.png", 1)
    with pytest.raises(BadInput, match="holds images, but no folders named after their classes"):
        ImageStream(tmp_path / "flat")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="holds no images"):
        ImageStream(tmp_path / "empty")


def test_16_bits_become_8(tmp_path):
    deep = np.arange(0, 65536, 256, dtype=np.uint16).reshape(16, 16) + 255
    expected = np.arange(256, dtype=np.uint8).reshape(16, 16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    Image.fromarray(deep).save(tmp_path / "deep.tif")
    Image.fromarray(deep).save(tmp_path / "deep.pgm")
    assert Image.open(tmp_path / "deep.png").mode == "I;16"
    assert Image.open(tmp_path / "deep.pgm").mode == "I"
    for name in ("deep.png", "deep.tif", "deep.pgm"):
        np.testing.assert_array_equal(decode(tmp_path / name, None, gray=True), expected)
        np.testing.assert_array_equal(decode(tmp_path / name, None), np.repeat(expected[..., None], 3, 2))
        assert decode(tmp_path / name, (8, 8)).shape == (8, 8, 3)


@pytest.mark.parametrize(("kind", "what"), [(np.float32, "floating-point"), (np.int32, "32-bit")])
def test_numbers_of_unknown_range_are_refused(tmp_path, kind, what):
    root = folder(tmp_path / "a", 3)
    Image.fromarray(np.full((4, 4), 1, kind)).save(root / "cat" / "999.tif")
    with pytest.raises(
        BadInput, match=rf"^example 3: .*999.tif cannot be decoded \(it holds {what} numbers, whose range is not known"
    ):
        ImageStream(root).read(0, 4)
    assert ImageStream(root, on_bad_row="skip").skipped == 1


def test_sizes_and_seeds_out_of_range(tmp_path):
    root = folder(tmp_path / "a", 3)
    for size in (0, -3, (4, 0), (4, 5, 6)):
        with pytest.raises(
            BadSetting, match=rf"^size \({re.escape(str(size))}\) must be at least 1: one number, or two"
        ):
            ImageStream(root, size=size)
    with pytest.raises(BadSetting, match=r"size \(0\) must be at least 1"):
        open_stream(f"images:{root}(size=0)")
    both = [open_stream(f"images:{root}(size={size})") for size in ("[4, 5]", "(4, 5)")]
    assert both[0].read(0, 2).x.shape == (2, 4, 5, 3)
    assert both[0].fingerprint() == both[1].fingerprint() == ImageStream(root, size=(4, 5)).fingerprint()
    with pytest.raises(BadSetting, match=r"seed \(-1\) must be in"):
        ImageStream(root, order="shuffled", seed=-1)


@pytest.mark.parametrize(("workers", "sentence"), [(0, "must be at least 1"), (10**6, "must be at most 256")])
def test_workers_are_bounded(workers, sentence):
    with pytest.raises(BadSetting, match=rf"workers \({workers}\) {sentence}"):
        Decoder(workers)
